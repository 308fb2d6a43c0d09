"""Transactions of a life: over one queue and over two, prepared ones among them."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from holdfast import Delivery, StaleReceiptError, TransactionStateError, transaction
from holdfast.persistence.prepared_log import prepared_log
from holdfast.queue.prepared.log_moves import LogMoves
from proof.crash_states.asked import PLAIN, Asked
from proof.crash_states.history import Part, Side, State
from proof.crash_states.lives.books import (
    COMMITS,
    LARGE_BYTES,
    LOG,
    PREPARED,
    PROGRESS,
    A,
    B,
    Held,
    InHand,
)
from proof.crash_states.lives.taking import Taking
from support.builders.handles import handle_of, without_space

TIMEOUT_SECONDS = 10**6  # no transaction ends by itself
WAITING = "waiting"
WAITING_MAX = 3
TRANSACTION_ID = "again"  # always the same: an id may be used again once it was decided


class Transacting(Taking):
    """Begins, prepares and decides."""

    @property
    def is_in_doubt(self) -> bool:
        """Whether a transaction is prepared that is no reservation, and no part of a joint commit."""
        return TRANSACTION_ID in self.held

    def begin(self, *sizes: int, asked: Asked = PLAIN) -> None:
        """Begin a transaction that puts."""
        payloads = self._payloads(A, sizes)
        self.tx = InHand(self.queue.begin(timeout=TIMEOUT_SECONDS), payloads, asked=asked)
        self.tx.handle.put_many([self.wish(payload, asked) for payload in payloads])
        self._return(f"begin{sizes}")

    def take(self) -> None:
        """Receive a message in a transaction, a new one where there is none, and acknowledge it there."""
        tx = self._begun_transaction()
        delivery, offset = self._received(tx)
        tx.handle.ack(delivery)
        tx.acks.append(offset)
        self._progressed(f"take({offset})")

    def _begun_transaction(self) -> InHand:
        """Return the transaction; a new one where there is none."""
        if self.tx is None:
            self.tx = InHand(self.queue.begin(timeout=TIMEOUT_SECONDS))
        return self.tx

    def _received(self, tx: InHand) -> tuple[Delivery, int]:
        """Receive a message in a transaction; return it, and its offset."""
        group, end = self._group(), len(self.history.payloads[A])
        delivery = tx.handle.receive(timeout=0)
        (offset,) = self._offsets(group, [delivery.payload], end, self.held_offsets)
        assert [delivery.delivery_count] == group.deliver([offset])
        return delivery, offset

    def prepare(self) -> None:
        """Prepare the transaction: durable, and in doubt."""
        tx = self._transaction()
        tx.handle.prepare(TRANSACTION_ID)
        tx.is_prepared = True
        self.held[TRANSACTION_ID] = Held(tx.puts, tx.acks, tx.asked)
        self._happened({PREPARED: self._in_doubt()}, durable=True)
        if tx.acks:
            self._all_durable(A, Part.PROGRESS)  # the vote was synced
        self._over(tx, tx.acks)
        if tx.received:  # they are ready again, and the delivery counts
            self._group().give_back(tx.received)
            tx.received = []
            self._happened({PROGRESS: self._group().state()})
        self._return("prepare")

    def commit(self) -> None:
        """Commit the transaction, prepared or not; one from before a restart by its id."""
        taken, is_prepared = self._take_transaction()
        before = self._last_data_file(A)
        tx, self.tx = self.tx, None
        offsets = self.queue.commit_prepared(TRANSACTION_ID) if tx is None else tx.handle.commit()
        assert offsets == range(start := len(self.history.payloads[A]), start + len(taken.puts)), "other offsets"
        self._committed_transaction(taken, before, is_prepared=is_prepared)
        if tx is not None and not is_prepared:
            self._over(tx, tx.acks)
            if tx.received:
                self._group().release(tx.received)
                self._happened({PROGRESS: self._group().state()})
        self._reads_anew()
        self._return("commit")

    def _over(self, tx: InHand, offsets: list[int]) -> None:
        """Check that deliveries which a transaction has finished, or holds in doubt, are of no use any more."""
        for offset in offsets:
            if offset in tx.given:
                for verb in (tx.given[offset].ack, tx.given[offset].nack, tx.given[offset].release):
                    with pytest.raises((StaleReceiptError, TransactionStateError)):
                        verb()

    def _committed_transaction(self, taken: Held, before: str, *, is_prepared: bool) -> None:
        puts, acks = taken.puts, taken.acks
        states: dict[Side, State] = {}
        if puts:
            if self._last_data_file(A) != before:
                self.history.is_durable(LOG)
            self._in_log(A, puts, taken.asked)
            states[LOG] = len(self.history.payloads[A])
        if acks:
            self._group().finish(acks)
            states[PROGRESS] = self._group().state()
        is_in_log = self.way == "client" and bool(puts or acks) and not is_prepared
        if is_in_log and not puts:  # the commit record alone finishes them, whatever the progress says
            states[COMMITS] = self.history.number(COMMITS) + 1
        if is_prepared:
            states[PREPARED] = self._in_doubt()
        self._happened(states, {A: frozenset(acks)})
        if is_in_log:
            self._all_durable(A, Part.LOG, Part.COMMITS)
        is_large = sum(map(len, puts)) > LARGE_BYTES
        if is_prepared or is_large or (puts and acks):
            if puts or acks:  # else it has promised nothing of either
                self._all_durable(A, Part.LOG if puts else Part.PROGRESS)
            if is_prepared:
                self._all_durable(A, Part.PREPARED)
        elif states and not is_in_log:
            self._committed(LOG if puts else PROGRESS)

    def abort(self) -> None:
        """Abort the transaction, prepared or not."""
        taken, is_prepared = self._take_transaction()
        tx, self.tx = self.tx, None
        if tx is None:
            self.queue.abort_prepared(TRANSACTION_ID)
        else:
            tx.handle.abort()
        acks = taken.acks if tx is None or is_prepared else tx.taken
        if tx is not None and not is_prepared:
            self.in_hand |= tx.given  # their receiver has them again
        if acks:
            group = self._group()
            group.in_flight.update(acks)  # what came back with a restart was held, too
            group.give_back(acks)
        if is_prepared:
            self._happened({PREPARED: self._in_doubt()}, durable=True)
        self._reads_anew()
        self._return("abort")

    def _transaction(self) -> InHand:
        assert self.tx is not None, "begin one first"
        return self.tx

    def _take_transaction(self) -> tuple[Held, bool]:
        """Return what is in the transaction, and whether it is in doubt; it is not from here on."""
        if TRANSACTION_ID in self.held:
            return self.held.pop(TRANSACTION_ID), True
        tx = self._transaction()
        return Held(tx.puts, tx.acks, tx.asked), False

    def _in_doubt(self, name: str = A) -> State:
        held = {key: each for key, each in self.held.items() if each.queue == name}
        return frozenset((key, len(each.puts), frozenset(each.acks)) for key, each in held.items())

    def two_queues(self) -> None:
        """Move a message from one queue to the other, in one transaction; where there is none, put into both."""
        if B not in self.queues:
            self.open(B)
        with_message = bool(self.may_come())
        tx = transaction(self.queues[A], self.queues[B])
        states: dict[Side, State] = {}
        finished: list[int] = []
        before = {name: self._last_data_file(name) for name in (A, B)}
        if with_message:
            group, end = self._group(), len(self.history.payloads[A])
            delivery = tx.receive(self.queue, timeout=0)
            finished = self._offsets(group, [delivery.payload], end, self.held_offsets)
            group.deliver(finished)
            self._progressed("receive of two queues")
            tx.ack(self.queue, delivery)
        put: dict[str, list[bytes]] = {}
        for name in (B,) if with_message else (A, B):
            put[name] = self._payloads(name, [90])
            tx.put(self.queues[name], put[name][0])
        tx.commit()
        for name, payloads in put.items():
            if self._last_data_file(name) != before[name]:
                self.history.is_durable((name, Part.LOG))
            self._in_log(name, payloads)
            states[name, Part.LOG] = len(self.history.payloads[name])
        if finished:
            self._group().finish(finished)
            states[PROGRESS] = self._group().state()
        self._happened(states, {A: frozenset(finished)})
        for name in put:
            self._all_durable(name, Part.LOG)
        self._return("two_queues")

    def adopt(self) -> None:
        """Prepare and commit a large batch, which becomes a data file by itself."""
        self.begin(LARGE_BYTES, 300)
        self.prepare()
        self.commit()


class Preparing(Transacting):
    """Prepares one after the other, so that segments of the prepared log fill, and go."""

    @property
    def waiting(self) -> list[str]:
        """The ids of what was prepared so, oldest first."""
        return [key for key in self.held if key.startswith(WAITING)]

    def prepare_another(self, *sizes: int, takes: bool = False) -> None:
        """Prepare one more transaction that puts, and perhaps acknowledges a message."""
        name = next(name for number in range(9) if (name := f"{WAITING}-{number}") not in self.held)
        tx = InHand(self.queue.begin(timeout=TIMEOUT_SECONDS), self._payloads(A, sizes))
        tx.handle.put_many(tx.puts)
        if takes:
            delivery, offset = self._received(tx)
            tx.handle.ack(delivery)
            tx.acks.append(offset)
            self._progressed(f"taken for {name}")
        tx.handle.prepare(name)
        self.held[name] = Held(tx.puts, tx.acks)
        self._happened({PREPARED: self._in_doubt()}, durable=True)
        if tx.acks:
            self._all_durable(A, Part.PROGRESS)
        self._return(f"prepare {name}")

    def move_waiting(self) -> None:
        """Let what is prepared be undecided for long: it moves to files of its own, and segments go."""
        with patch.object(prepared_log, "UNDECIDED_SECONDS", 0.0):
            LogMoves(handle_of(self.queue)).run()
        self._return("move")

    def commit_waiting(self, number: int, *, has_space: bool = True) -> None:
        """Commit one of them by its id: the first or the last; on a full disk, with the space that it has reserved."""
        name = self.waiting[number]
        if not has_space:
            without_space(self.queue)
        before, taken = self._last_data_file(A), self.held.pop(name)
        offsets = self.queue.commit_prepared(name)
        assert offsets == range(start := len(self.history.payloads[A]), start + len(taken.puts)), "other offsets"
        self._committed_transaction(taken, before, is_prepared=True)
        self._reads_anew()
        self._return(f"commit {name}")

    def abort_waiting(self, number: int) -> None:
        """Abort one of them by its id: the first or the last."""
        name = self.waiting[number]
        taken = self.held.pop(name)
        self.queue.abort_prepared(name)
        if taken.acks:
            group = self._group()
            group.in_flight.update(taken.acks)
            group.give_back(taken.acks)
        self._happened({PREPARED: self._in_doubt()}, durable=True)
        self._reads_anew()
        self._return(f"abort {name}")
