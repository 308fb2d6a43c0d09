"""Decides votes of the group that this handle owns, for clients: those of reservations."""

from __future__ import annotations

from holdfast.errors import TransactionNotFoundError
from holdfast.persistence.outcomes.outcome_log import ABORTED, COMMITTED, OutcomeEntry
from holdfast.queue.engine.queue_handle import QueueHandle
from holdfast.queue.prepared.outcome_memory import OutcomeMemory
from holdfast.queue.threads.keyed_lock import KeyedLock


class OwnVotes:
    """The votes of this handle's group.

    Parameters
    ----------
    handle : QueueHandle
        The queue, with the read side of the group.
    memory : OutcomeMemory
        The outcomes; the only log that this handle writes to.
    keyed_lock : KeyedLock
        Those of all who decide transactions with this handle.
    """

    def __init__(self, handle: QueueHandle, memory: OutcomeMemory, keyed_lock: KeyedLock) -> None:
        self._handle = handle
        self._memory = memory
        self._keyed_lock = keyed_lock

    def outcome(self, nonce: bytes) -> OutcomeEntry | None:
        """Return the outcome of a transaction that only acknowledged here; None if none is remembered."""
        return self._memory.find_own_vote(self._handle.group.name, nonce)

    def settle(self, transaction_id: str, nonce: bytes, *, is_committed: bool) -> None:
        """Decide a vote, durably: finish its messages, or release them. Again does nothing.

        Raises
        ------
        TransactionStateError
            It was decided the other way.
        TransactionNotFoundError
            It is unknown.
        """
        side = self._handle.require_read_side()
        with self._keyed_lock.alone(transaction_id):
            if nonce in side.progress.votes:
                outcome = COMMITTED if is_committed else ABORTED
                self._memory.note_own_vote(self._handle.group.name, transaction_id, nonce, outcome)
            elif self._memory.outcome_log(transaction_id, nonce, is_committed=is_committed) is None:
                raise TransactionNotFoundError(
                    f"group {self._handle.group.name!r} of {self._handle.path} holds nothing of transaction "
                    f"{transaction_id!r} any more, and has forgotten its outcome",
                    id=transaction_id,
                )
            is_there = side.is_started and side.resolve(nonce, is_committed=is_committed, is_durable=True)
            if not is_there:  # the thread that settled it may not have waited for the disk
                side.flush()
