"""Several transactions of a life that are prepared at once, and decided by their ids in any order."""

from __future__ import annotations

from unittest.mock import patch

from holdfast.persistence.prepared_log import prepared_log
from holdfast.queue.prepared.log_moves import LogMoves
from proof.crash_states.history import Part
from proof.crash_states.lives.books import PREPARED, A, Held, InHand
from proof.crash_states.lives.transacting import TIMEOUT_SECONDS, Transacting
from support.builders.handles import handle_of

WAITING = "waiting"
WAITING_MAX = 3


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

    def commit_waiting(self, number: int) -> None:
        """Commit one of them by its id: the first or the last."""
        name = self.waiting[number]
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
