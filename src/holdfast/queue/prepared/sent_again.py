"""What was done before of a request to prepare that comes again: its client got no answer, perhaps of another owner."""

from __future__ import annotations

from contextlib import suppress

from holdfast.errors import CorruptionError
from holdfast.persistence.filesystem.storage import storage_errors
from holdfast.persistence.outcomes.prepared_files import Waiting
from holdfast.persistence.prepared_log.entry import Entry
from holdfast.queue.engine.queue_handle import QueueHandle
from holdfast.queue.prepared.outcome_memory import OutcomeMemory
from holdfast.queue.prepared.prepared_transactions import Found, find_batch, find_transaction, is_left_to_log


class SentAgain:
    """Finds what an owner has prepared before.

    Parameters
    ----------
    handle : QueueHandle
        The queue, with the sides that this process owns.
    memory : OutcomeMemory
        What is remembered of decided transactions.
    """

    def __init__(self, handle: QueueHandle, memory: OutcomeMemory) -> None:
        self._handle = handle
        self._memory = memory

    def was_prepared(self, transaction_id: str, nonce: bytes) -> bool:
        """Whether a transaction waits for its outcome, durably, or was decided and is remembered.

        A vote whose puts are not there does not count: it is aborted.
        """
        found = self._found(transaction_id)
        if found is not None and found.nonce == nonce:
            self._confirm(found.batch)
            return not is_left_to_log(found)
        if self._handle.require_write_side().has_decided(nonce):
            return True
        return self._memory.find(transaction_id, nonce) is not None

    def has_puts(self, transaction_id: str, nonce: bytes) -> bool:
        """As :meth:`was_prepared`, of a transaction that only puts: no vote is read, and no outcome of one."""
        batch = None
        with storage_errors("looking for a prepared transaction", self._handle.path), suppress(CorruptionError):
            batch = find_batch(self._handle, transaction_id)  # one that is damaged has the id, which is refused
        if batch is not None and batch.commit_record.nonce == nonce:
            self._confirm(batch)
            return True
        outcomes = self._handle.require_batches().prepared.outcome_log
        return self._handle.require_write_side().has_decided(nonce) or outcomes.find_nonce(nonce) is not None

    def lacks_puts(self, transaction_id: str, nonce: bytes) -> bool:
        """Whether a part that another queue decides has voted, and no puts of it are prepared."""
        found = self._found(transaction_id)
        return (
            found is not None
            and (found.nonce, found.batch, found.damage) == (nonce, None, ())
            and found.decider is not None
        )

    def _found(self, transaction_id: str) -> Found | None:
        with storage_errors("looking for a prepared transaction", self._handle.path):
            return find_transaction(self._handle, transaction_id)

    def _confirm(self, batch: Waiting | None) -> None:
        """Make an entry durable whose own sync has failed or was cut short; raises PoisonedError if it cannot be."""
        if isinstance(batch, Entry):
            self._handle.require_batches().prepared.log.sync()
