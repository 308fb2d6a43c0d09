"""The life of two queues on a simulated disk, one process after the other: does things and keeps the books.

Beside each queue stands the model of its group; after each call the history says what a crash from then on may leave.
Queue "a" is the one that things are done to; "b" is there for transactions over two.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace

from holdfast import Delivery, FlushPolicy, PersistentQueue, Transaction, transaction
from proof.crash_states.history import History, Moment, Part, Side, State
from proof.crash_states.opening import CLOCK, open_queue, take_apart
from support.model import ModelGroup
from support.recorded_run import message
from support.simulated_storage import SimulatedStorage

A, B = "a", "b"
LOG, PROGRESS, PREPARED = (A, Part.LOG), (A, Part.PROGRESS), (A, Part.PREPARED)
Place = tuple[int, int]
"""The number of a disk, and how many operations it has seen."""

TRANSACTION_ID = "again"  # always the same: an id may be used again once it was decided


@dataclass(frozen=True)
class Segment:
    """One life of a disk, from its beginning or from a kill, and what was true as its calls returned."""

    storage: SimulatedStorage
    moments: list[Moment]

    def around(self, operation_count: int) -> tuple[Moment, Moment]:
        """Return the last moment at or before a crash, and the one that was under way (or the same)."""
        at = max(i for i, moment in enumerate(self.moments) if moment.operation_count <= operation_count)
        before = self.moments[at]
        under_way = before.operation_count < operation_count and at + 1 < len(self.moments)
        return before, self.moments[at + 1] if under_way else before


@dataclass
class InHand:
    """The one transaction that is under way."""

    handle: Transaction
    puts: list[bytes]
    acks: list[int]
    is_prepared: bool = False


class Life:
    """Two queues under one flush policy."""

    def __init__(self, policy: FlushPolicy) -> None:
        self.policy = policy
        self.history = History()
        self.groups: dict[str, ModelGroup | None] = {}
        self.queues: dict[str, PersistentQueue] = {}
        self.in_hand: dict[int, Delivery] = {}
        self.tx: InHand | None = None
        self.held: dict[str, tuple[int, list[bytes], list[int]]] = {}
        self._commits: dict[Side, list[int]] = {}
        self.segments = [Segment(SimulatedStorage(), [])]
        self._return("nothing")

    @property
    def storage(self) -> SimulatedStorage:
        """The disk as it is now."""
        return self.segments[-1].storage

    @property
    def queue(self) -> PersistentQueue:
        """The one that things are done to."""
        return self.queues[A]

    def twin(self) -> Life:
        """Return a life with the same past, whose queues were closed, that goes its own way."""
        assert not self.queues, "close them first"
        twin = Life(self.policy)
        twin.history = self.history.copy()
        twin.groups = deepcopy(self.groups)
        twin.segments = [Segment(self.storage.crash_keeping_all(), [])]
        twin._return("the past")
        return twin

    def mark(self) -> Place:
        """Return where this life is; its disk is replayed from here on."""
        self.storage.replay_from_here()
        return len(self.segments) - 1, len(self.storage.log)

    def end(self) -> None:
        """Close everything, on a disk that nobody looks at any more."""
        for queue in self.queues.values():
            queue.close()
        self._take_apart()

    def _take_apart(self) -> None:
        while self.queues:
            take_apart(self.queues.popitem()[1])

    # -- Opening and closing -----------------------------------------------------------------------------------------

    def open(self, name: str = A) -> None:
        """Open a queue; what it shows is durable from here on."""
        if name not in self.history.payloads:
            self.history.add_queue(name)
            self.groups[name] = None
        self.queues[name] = open_queue(self.storage, name, self.policy)
        self._reopened(name)
        self._return(f"open({name})")

    def _reopened(self, name: str) -> None:
        group = self.groups[name]
        if group is not None:
            group.reopen()
        self._all_durable(name)

    def close(self) -> None:
        """Close everything in order: what was taken comes back, a prepared transaction stays."""
        for name, queue in self.queues.items():
            queue.close()
            self._handed_back(name)
            self._all_durable(name)
            self._return(f"close({name})")
        self._take_apart()
        self.tx = None

    def reopen(self) -> None:
        """Close everything and open it again."""
        self.close()
        for name in self.groups:
            self.open(name)

    def _handed_back(self, name: str) -> None:
        """Closing says that nobody has failed with what was in hand, or in an open transaction."""
        group = self.groups[name]
        if name != A or group is None:
            return
        in_transaction = [] if self.tx is None or self.tx.is_prepared else self.tx.acks
        for offsets in (in_transaction, list(self.in_hand)):
            if offsets:
                group.release(offsets)
                self._happened({PROGRESS: group.state()})
        self.in_hand.clear()

    def kill(self) -> None:
        """Let the process die: nothing that was written is lost. The next one goes on."""
        storage = self.storage.crash_keeping_all()
        self.end()
        self.in_hand, self.tx = {}, None
        self.segments.append(Segment(storage, [replace(self.segments[-1].moments[-1], operation_count=0, call="kill")]))
        for name in self.groups:
            self.open(name)

    def flush(self) -> None:
        """Sync everything."""
        self.queue.flush()
        self._all_durable(A)
        self._return("flush")

    # -- Putting -----------------------------------------------------------------------------------------------------

    def put(self, *sizes: int) -> None:
        """Put one message, or several as a batch."""
        payloads = self._payloads(A, sizes)
        before = self._last_data_file(A)
        first = self.queue.put(payloads[0]) if len(payloads) == 1 else self.queue.put_many(payloads).start
        assert first == len(self.history.payloads[A]), f"offset {first} given twice, or one passed over"
        self._appended(A, payloads, before)
        self._committed(LOG)
        self._return(f"put{sizes}")

    def _payloads(self, name: str, sizes: Sequence[int]) -> list[bytes]:
        first = sum(map(len, self.history.payloads.values())) + (len(self.tx.puts) if self.tx is not None else 0)
        first += sum(len(puts) for _, puts, _ in self.held.values())
        return [name.encode() + message(first + number, size - 1) if size else b"" for number, size in enumerate(sizes)]

    def _appended(self, name: str, payloads: Sequence[bytes], data_file_before: str) -> None:
        """Note what is in a log now; where that began a data file, the one before was sealed and synced."""
        if self._last_data_file(name) != data_file_before:
            self.history.is_durable((name, Part.LOG))
        self.history.payloads[name] += payloads
        self._happened({(name, Part.LOG): len(self.history.payloads[name])})

    def _last_data_file(self, name: str) -> str:
        return max(self.storage.list(self.queues[name].path / "data"), default="")

    # -- Taking ------------------------------------------------------------------------------------------------------

    def ready(self) -> list[int]:
        """Return what can be taken."""
        group = self.groups[A] or ModelGroup()
        held = {offset for _, _, acks in self.held.values() for offset in acks}
        return [offset for offset in group.ready(len(self.history.payloads[A]), CLOCK.time_ns()) if offset not in held]

    def _group(self) -> ModelGroup:
        """Return the group, which begins durably at its first use."""
        group = self.groups[A]
        if group is None:
            group = self.groups[A] = ModelGroup(self.queue.stats().first_offset)
            self._happened({PROGRESS: group.state()}, durable=True)
        return group

    def get(self, count: int = 1) -> None:
        """Take and acknowledge."""
        group, ready = self._group(), self.ready()
        payloads = [self.queue.get(block=False)] if count == 1 else self.queue.get_many(count, timeout=0)
        offsets = self._offsets(payloads, ready)
        group.hand_out(offsets)
        group.finish(offsets)
        self._progressed(f"get({count})", is_commit=True)

    def _offsets(self, payloads: Sequence[bytes], ready: Sequence[int]) -> list[int]:
        """Return the offsets of what was taken: the first of what was ready, no matter that empty ones are alike."""
        offsets = list(ready[: len(payloads)])
        assert list(payloads) == [self.history.payloads[A][offset] for offset in offsets], f"not the first of {ready}"
        return offsets

    def receive(self) -> None:
        """Take a message and keep it in hand."""
        group, ready = self._group(), self.ready()
        delivery = self.queue.receive(timeout=0)
        (offset,) = self._offsets([delivery.payload], ready)
        assert [delivery.delivery_count] == group.deliver([offset])
        self.in_hand[offset] = delivery
        self._progressed("receive")

    def ack(self) -> None:
        """Acknowledge the oldest message in hand."""
        offset = min(self.in_hand)
        self.in_hand.pop(offset).ack()
        self._group().finish([offset])
        self._progressed(f"ack({offset})", is_commit=True)

    def nack(self) -> None:
        """Give the oldest message in hand back, to come again at once."""
        offset = min(self.in_hand)
        self.in_hand.pop(offset).nack(delay=0)
        self._group().give_back([offset])
        self._progressed(f"nack({offset})")

    def release(self) -> None:
        """Give the oldest message in hand back untried."""
        offset = min(self.in_hand)
        self.in_hand.pop(offset).release()
        self._group().release([offset])
        self._progressed(f"release({offset})")

    def reject(self) -> None:
        """Make the oldest message in hand a dead letter."""
        offset = min(self.in_hand)
        self.in_hand.pop(offset).reject("no use")
        self._group().bury([offset])
        self._progressed(f"reject({offset})", is_commit=True)

    def retry(self) -> None:
        """Have all dead letters come again, before the others: reading has come by them."""
        group = self._group()
        self.queue.peek(sum(map(len, self.history.payloads.values())))
        offsets = sorted(group.dead)
        assert self.queue.dead.retry(offsets) == len(offsets)
        group.retry(offsets, CLOCK.time_ns())
        self._progressed(f"retry{offsets}", is_commit=True)

    def _progressed(self, call: str, *, is_commit: bool = False) -> None:
        self._happened({PROGRESS: self._group().state()})
        if is_commit:
            self._committed(PROGRESS)
        self._return(call)

    # -- Transactions ------------------------------------------------------------------------------------------------

    def begin(self, *sizes: int) -> None:
        """Begin a transaction that puts."""
        payloads = self._payloads(A, sizes)
        self.tx = InHand(self.queue.begin(), payloads, [])
        self.tx.handle.put_many(payloads)
        self._return(f"begin{sizes}")

    def take(self) -> None:
        """Receive a message in a transaction, a new one where there is none, and acknowledge it there."""
        if self.tx is None:
            self.tx = InHand(self.queue.begin(), [], [])
        group, ready = self._group(), self.ready()
        delivery = self.tx.handle.receive(timeout=0)
        (offset,) = self._offsets([delivery.payload], ready)
        assert [delivery.delivery_count] == group.deliver([offset])
        self.tx.handle.ack(delivery)
        self.tx.acks.append(offset)
        self._progressed(f"take({offset})")

    def prepare(self) -> None:
        """Prepare the transaction: durable, and in doubt."""
        tx = self._transaction()
        tx.handle.prepare(TRANSACTION_ID)
        tx.is_prepared = True
        self.held[TRANSACTION_ID] = len(tx.puts), tx.puts, tx.acks
        self._happened({PREPARED: self._in_doubt()}, durable=True)
        if tx.acks:
            self._all_durable(A, Part.PROGRESS)  # the vote was synced
        self._return("prepare")

    def commit(self) -> None:
        """Commit the transaction, prepared or not; one from before a restart by its id."""
        puts, acks, is_prepared = self._take_transaction()
        before = self._last_data_file(A)
        tx, self.tx = self.tx, None
        offsets = self.queue.commit_prepared(TRANSACTION_ID) if tx is None else tx.handle.commit()
        assert offsets == range(start := len(self.history.payloads[A]), start + len(puts)), "other offsets"
        self._committed_transaction(puts, acks, before, is_prepared=is_prepared)
        self._return("commit")

    def _committed_transaction(self, puts: list[bytes], acks: list[int], before: str, *, is_prepared: bool) -> None:
        states: dict[Side, State] = {}
        if puts:
            if self._last_data_file(A) != before:
                self.history.is_durable(LOG)
            self.history.payloads[A] += puts
            states[LOG] = len(self.history.payloads[A])
        if acks:
            self._group().finish(acks)
            states[PROGRESS] = self._group().state()
        if is_prepared:
            states[PREPARED] = self._in_doubt()
        self._happened(states, {A: frozenset(acks)})
        is_large = sum(map(len, puts)) > LARGE_BYTES
        if is_prepared or is_large or (puts and acks):
            self._all_durable(A, Part.LOG if puts else Part.PROGRESS)
            if is_prepared:
                self._all_durable(A, Part.PREPARED)
        elif states:
            self._committed(LOG if puts else PROGRESS)

    def abort(self) -> None:
        """Abort the transaction, prepared or not."""
        _, acks, is_prepared = self._take_transaction()
        tx, self.tx = self.tx, None
        if tx is None:
            self.queue.abort_prepared(TRANSACTION_ID)
        else:
            tx.handle.abort()
        if acks:
            group = self._group()
            group.in_flight.update(acks)  # what came back with a restart was held, too
            group.give_back(acks)
        if is_prepared:
            self._happened({PREPARED: self._in_doubt()}, durable=True)
        self._return("abort")

    def _transaction(self) -> InHand:
        assert self.tx is not None, "begin one first"
        return self.tx

    def _take_transaction(self) -> tuple[list[bytes], list[int], bool]:
        """Return what is in the transaction, and whether it is in doubt; it is not from here on."""
        if TRANSACTION_ID in self.held:
            _, puts, acks = self.held.pop(TRANSACTION_ID)
            return puts, acks, True
        return self._transaction().puts, self._transaction().acks, False

    def _in_doubt(self) -> State:
        return frozenset((key, count, frozenset(acks)) for key, (count, _, acks) in self.held.items())

    def two_queues(self) -> None:
        """Move a message from one queue to the other, in one transaction; where there is none, put into both."""
        if B not in self.queues:
            self.open(B)
        ready = self.ready()
        with_message = bool(ready)
        tx = transaction(self.queues[A], self.queues[B])
        states: dict[Side, State] = {}
        finished: list[int] = []
        before = {name: self._last_data_file(name) for name in (A, B)}
        if with_message:
            group = self._group()
            delivery = tx.receive(self.queue, timeout=0)
            finished = self._offsets([delivery.payload], ready)
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
            self.history.payloads[name] += payloads
            states[name, Part.LOG] = len(self.history.payloads[name])
        if finished:
            self._group().finish(finished)
            states[PROGRESS] = self._group().state()
        self._happened(states, {A: frozenset(finished)})
        for name in put:
            self._all_durable(name, Part.LOG)
        self._return("two_queues")

    # -- Keeping the books -------------------------------------------------------------------------------------------

    def _happened(
        self, states: dict[Side, State], finished: dict[str, frozenset[int]] | None = None, *, durable: bool = False
    ) -> None:
        self.history.happened(states, finished, durable=durable)

    def _all_durable(self, name: str, *parts: Part) -> None:
        self.history.is_durable(*((name, part) for part in parts or Part))

    def _committed(self, side: Side) -> None:
        """Note what the policy promises to have synced: fewer commits than it counts wait for a sync."""
        commits = self._commits.setdefault(side, [])
        commits.append(self.history.number(side))
        due = self.policy.commits
        if due is not None and len(commits) >= due:
            self.history.is_durable(side, number=commits[-due])

    def _return(self, call: str) -> None:
        self.segments[-1].moments.append(self.history.moment(len(self.storage.log), call))


LARGE_BYTES = 16 * 2**10 // 4  # a transaction that puts more is decided by a synced frame
