"""Prepared transactions as handles see them without a write side: its owner decides those with puts, on request."""

from __future__ import annotations

import threading

from holdfast.errors import TransactionStateError
from holdfast.persistence.exchange.requests import ABORT_PREPARED, ASK_OUTCOME, COMMIT_PREPARED
from holdfast.persistence.filesystem.storage import storage_errors
from holdfast.persistence.format.commit_record import PartOf
from holdfast.queue.engine.coordinators import Outcome, find_coordinator
from holdfast.queue.engine.queue_handle import QueueHandle
from holdfast.queue.prepared.prepared_resolver import AskCoordinator, PreparedResolver
from holdfast.queue.prepared.prepared_transactions import Found, find_batch, find_transaction
from holdfast.queue.prepared.vote_settling import AskGroup
from holdfast.queue.remote.submit_side import SubmitSide

DECIDE_SECONDS = 30.0
"""How long the owner of the write side is waited for that does not answer: by far longer than a sync under load."""

OUTCOME_SECONDS = 1.0
"""The same while looking, where nobody waits for the answer: what is not answered stays in doubt."""


class ConsumerResolver(PreparedResolver):
    """For a handle that only consumes: decides what only acknowledges, and has the writer decide the rest.

    While it asks, it holds no lock that the owner needs in order to answer.

    Parameters
    ----------
    sides, ask, ask_group
        As for :class:`PreparedResolver`.
    """

    def __init__(self, handle: QueueHandle, ask: AskCoordinator, ask_group: AskGroup) -> None:
        super().__init__(handle, ask, ask_group)
        self._lock = threading.Lock()
        self._submit_side: SubmitSide | None = None

    def commit(self, transaction_id: str, *, force: bool = False, nonce: bytes | None = None) -> range:
        """Commit a prepared transaction, or have it committed; return the offsets of its puts."""
        self._check_may_decide()
        if self._is_decided_here(transaction_id, nonce, force=force):
            return super().commit(transaction_id, force=force, nonce=nonce)
        side = self._asking()
        return side.decide(COMMIT_PREPARED, transaction_id, force=force, nonce=nonce, timeout=DECIDE_SECONDS)

    def abort(self, transaction_id: str, *, force: bool = False, nonce: bytes | None = None) -> None:
        """Abort a prepared transaction, or have it aborted."""
        self._check_may_decide()
        if self._is_decided_here(transaction_id, nonce, force=force):
            super().abort(transaction_id, force=force, nonce=nonce)
        else:
            side = self._asking()
            side.decide(ABORT_PREPARED, transaction_id, force=force, nonce=nonce, timeout=DECIDE_SECONDS)

    def _is_decided_here(self, transaction_id: str, nonce: bytes | None, *, force: bool) -> bool:
        """Whether a transaction has no puts, or another queue has to be asked first."""
        with storage_errors("looking for a prepared transaction", self._handle.path):
            found = find_transaction(self._handle, transaction_id)
        if found is None or (nonce is not None and found.nonce not in (nonce, b"")):
            return self._memory.is_of_votes(transaction_id, nonce)
        if found.decider is not None or found.part_of is not None:
            return not force or (found.batch is None and not found.damage)
        return found.batch is None and not found.damage and found.coordinator is None

    def _own_outcome(self, found: Found) -> Outcome:
        outcome = super()._own_outcome(found)
        is_asked = find_coordinator(self._handle.queue_id) is not None  # in this process, and so was asked just now
        if outcome is not Outcome.IN_DOUBT or is_asked or find_batch(self._handle, found.id) is not None:
            return outcome
        side = self._asking()
        try:
            offsets = side.decide(ASK_OUTCOME, found.id, force=False, nonce=found.nonce, timeout=OUTCOME_SECONDS)
        except TransactionStateError:
            return Outcome.IN_DOUBT
        return Outcome.COMMITTED if offsets else Outcome.ABORTED

    # -- Asking ------------------------------------------------------------------------------------------------------

    def _asking(self) -> SubmitSide:
        with self._lock:
            self._lifecycle.check()
            if self._submit_side is None:
                self._submit_side = self._handle.open_submit_side()  # not before it is needed: it makes a mailbox
            return self._submit_side

    def stop_asking(self) -> None:
        """Take back what no owner has taken, and close the mailbox."""
        with self._lock:
            self._lifecycle.close()
            side, self._submit_side = self._submit_side, None
        if side is not None:
            side.close()


class SubmitResolver(PreparedResolver):
    """For a handle that submits: lists prepared transactions, and asks the owner to decide.

    Parameters
    ----------
    sides, ask, ask_group
        As for :class:`PreparedResolver`; ``handle`` submits.
    """

    def __init__(self, handle: QueueHandle, ask: AskCoordinator, ask_group: AskGroup) -> None:
        super().__init__(handle, ask, ask_group)
        assert handle.submit_side is not None, "as its mode says"
        self._submit_side = handle.submit_side

    def make_ready(
        self,
        transaction_id: str,
        *,
        puts: bool,
        part_of: PartOf | None = None,
        is_random: bool = False,
        group: str | None = None,
    ) -> None:
        """Do nothing: the owner does, when it is asked to prepare."""

    def commit(self, transaction_id: str, *, force: bool = False, nonce: bytes | None = None) -> range:
        """Have a prepared transaction committed; return the offsets of its puts."""
        return self._submit_side.decide(COMMIT_PREPARED, transaction_id, force=force, nonce=nonce)

    def abort(self, transaction_id: str, *, force: bool = False, nonce: bytes | None = None) -> None:
        """Have a prepared transaction aborted."""
        self._submit_side.decide(ABORT_PREPARED, transaction_id, force=force, nonce=nonce)
