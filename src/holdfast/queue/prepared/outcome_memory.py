"""Finds recent outcomes by id: of transactions with puts in ``prepared/``, of others with their group."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from holdfast.errors import TransactionStateError
from holdfast.persistence.filesystem.storage import storage_errors
from holdfast.persistence.format.commit_record import CommitRecord
from holdfast.persistence.groups.group_files import list_groups
from holdfast.persistence.outcomes.outcome_log import COMMITTED, OutcomeEntry, OutcomeLog
from holdfast.queue.engine.queue_handle import QueueHandle


class OutcomeMemory:
    """The outcomes of one queue: this handle writes the logs that it owns, and reads the others.

    Parameters
    ----------
    handle : QueueHandle
        The queue.
    """

    def __init__(self, handle: QueueHandle) -> None:
        self._handle = handle
        self._lock = threading.Lock()
        self._own_group: OutcomeLog | None = None

    def reserve(self, *, puts: bool) -> None:
        """Reserve space for one more outcome; raises DiskFullError or StorageError."""
        (self._handle.require_batches().prepared.outcome_log if puts else self._of_own_group()).reserve()

    def find(self, transaction_id: str, nonce: bytes | None) -> OutcomeEntry | None:
        """Return the outcome of the latest transaction of this id, or of this nonce; None if it is unknown."""
        handle = self._handle
        memories = [self._of_own_group()]
        if handle.batches is not None:
            memories.append(handle.batches.prepared.outcome_log)
        found = _latest(memories, transaction_id, nonce)
        if found is None:
            with storage_errors("looking for decided transactions", handle.directory.groups):
                names = [group.name for group in list_groups(handle.storage, handle.directory)]
            found = _latest(
                (self._of_group(name) for name in names if name != handle.group.name), transaction_id, nonce
            )
        return found

    def outcome_log(self, transaction_id: str, nonce: bytes | None, *, is_committed: bool) -> OutcomeEntry | None:
        """As :meth:`find`; raises TransactionStateError if the other outcome is known."""
        outcome_log = self.find(transaction_id, nonce)
        if outcome_log is not None and outcome_log.is_committed != is_committed:
            state = "committed" if outcome_log.is_committed else "aborted"
            raise TransactionStateError(
                f"transaction {transaction_id} was {state}", transaction=transaction_id, state=state
            )
        return outcome_log

    def is_of_votes(self, transaction_id: str, nonce: bytes | None) -> bool:
        """Whether the latest transaction of this id, or of this nonce, that is remembered only acknowledged.

        For a handle that does not own the write side: for transactions with puts it asks the owner, which knows the
        durable ones.
        """
        handle = self._handle
        with storage_errors("looking for decided transactions", handle.directory.groups):
            groups = {group.name for group in list_groups(handle.storage, handle.directory)} - {handle.group.name}
        votes = _latest((self._of_own_group(), *map(self._of_group, groups)), transaction_id, nonce)
        puts = _latest((OutcomeLog(handle.storage, handle.directory.outcome_log),), transaction_id, nonce)
        return votes is not None and (puts is None or puts.timestamp_ns <= votes.timestamp_ns)

    def note_batch(self, commit_record: CommitRecord, offsets: range) -> None:
        """Note that a transaction with puts was committed; its commit record proves it until this is synced."""
        outcome_log = self._handle.require_batches().prepared.outcome_log
        outcome_log.note(commit_record.id, commit_record.nonce, COMMITTED, offsets, commit_record.timestamp_ns)

    def note_own_vote(self, transaction_id: str, nonce: bytes, outcome: int) -> None:
        """Note the outcome of a transaction that only acknowledges, durably, with the group that this handle owns."""
        memory = self._of_own_group()
        memory.note(transaction_id, nonce, outcome, range(0), self._handle.clock.time_ns())
        memory.sync()

    def find_own_vote(self, nonce: bytes) -> OutcomeEntry | None:
        """Return an outcome that is remembered with the group that this handle owns; None if there is none."""
        return self._of_own_group().find_nonce(nonce)

    def note_vote(self, group: str, transaction_id: str, nonce: bytes, outcome: int) -> None:
        """Note the same with a group that has no owner; the caller holds the lock that a new owner needs."""
        memory = self._of_group(group)
        try:
            memory.note(transaction_id, nonce, outcome, range(0), self._handle.clock.time_ns())
        finally:
            memory.close()

    def _of_own_group(self) -> OutcomeLog:
        with self._lock:
            if self._own_group is None:
                self._own_group = self._of_group(self._handle.group.name)
            return self._own_group

    def _of_group(self, name: str) -> OutcomeLog:
        return OutcomeLog(self._handle.storage, self._handle.directory.group(name) / "decided")

    def close(self) -> None:
        """Sync and close the files."""
        if self._own_group is not None:
            self._own_group.close()


def _latest(memories: Iterable[OutcomeLog], transaction_id: str, nonce: bytes | None) -> OutcomeEntry | None:
    found = [each.find(transaction_id) if nonce is None else each.find_nonce(nonce) for each in memories]
    return max((each for each in found if each is not None), key=lambda each: each.timestamp_ns, default=None)
