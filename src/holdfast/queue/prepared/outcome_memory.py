"""Finds recent outcomes by id: of transactions with puts in ``prepared/``, of others with their group."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import ExitStack

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
        self._own_groups: dict[str, OutcomeLog] = {}

    def reserve(self, *, puts: bool, group: str) -> None:
        """Reserve space for one more outcome, of puts or of a group's; raises DiskFullError or StorageError."""
        (self._handle.require_batches().prepared.outcome_log if puts else self._of_own_group(group)).reserve()

    def find(self, transaction_id: str, nonce: bytes | None) -> OutcomeEntry | None:
        """Return the outcome of the latest transaction of this id, or of this nonce; None if it is unknown."""
        found = self._find_here(transaction_id, nonce)
        if found is None:
            others = (self._of_group(name) for name in self._others())
            found = _latest(others, transaction_id, nonce)
        return found

    def group_of(self, nonce: bytes) -> str | None:
        """Return the group that remembers a transaction and is not open here; None if that is remembered elsewhere."""
        if self._find_here("", nonce) is not None:
            return None
        return next((name for name in self._others() if self._of_group(name).find_nonce(nonce) is not None), None)

    def _find_here(self, transaction_id: str, nonce: bytes | None) -> OutcomeEntry | None:
        handle = self._handle
        memories = [self._of_own_group(name) for name in list(handle.group_readers)]
        memories.append(handle.require_batches().prepared.outcome_log)
        return _latest(memories, transaction_id, nonce)

    def outcome_log(self, transaction_id: str, nonce: bytes | None, *, is_committed: bool) -> OutcomeEntry | None:
        """As :meth:`find`; raises TransactionStateError if the other outcome is known."""
        outcome_log = self.find(transaction_id, nonce)
        if outcome_log is not None and outcome_log.is_committed != is_committed:
            state = "committed" if outcome_log.is_committed else "aborted"
            raise TransactionStateError(
                f"transaction {transaction_id} was {state}", transaction=transaction_id, state=state
            )
        return outcome_log

    def note_batch(self, commit_record: CommitRecord, offsets: range) -> None:
        """Note that a transaction with puts was committed; its commit record proves it until this is synced."""
        outcome_log = self._handle.require_batches().prepared.outcome_log
        outcome_log.note(commit_record.id, commit_record.nonce, COMMITTED, offsets, commit_record.timestamp_ns)

    def note_own_vote(self, group: str, transaction_id: str, nonce: bytes, outcome: int) -> None:
        """Note the outcome of a transaction that only acknowledges, durably, with a group that is open here."""
        memory = self._of_own_group(group)
        memory.note(transaction_id, nonce, outcome, range(0), self._handle.clock.time_ns())
        memory.sync()

    def find_own_vote(self, group: str, nonce: bytes) -> OutcomeEntry | None:
        """Return an outcome that is remembered with a group that is open here; None if there is none."""
        return self._of_own_group(group).find_nonce(nonce)

    def note_vote(self, group: str, transaction_id: str, nonce: bytes, outcome: int) -> None:
        """Note the same with a group that has no owner; the caller holds the lock that a new owner needs."""
        memory = self._of_group(group)
        try:
            memory.note(transaction_id, nonce, outcome, range(0), self._handle.clock.time_ns())
        finally:
            memory.close()

    def _others(self) -> list[str]:
        """Return the names of the groups that are not open here."""
        own = list(self._handle.group_readers)
        with storage_errors("looking for decided transactions", self._handle.directory.groups):
            groups = list_groups(self._handle.storage, self._handle.directory)
        return [group.name for group in groups if group.name not in own]

    def _of_own_group(self, name: str) -> OutcomeLog:
        with self._lock:
            if name not in self._own_groups:
                self._own_groups[name] = self._of_group(name)
            return self._own_groups[name]

    def _of_group(self, name: str) -> OutcomeLog:
        return OutcomeLog(self._handle.storage, self._handle.directory.group(name) / "decided")

    def close(self) -> None:
        """Sync and close the files."""
        with ExitStack() as closing:  # each one, even if another raises
            for each in self._own_groups.values():
                closing.callback(each.close)


def _latest(memories: Iterable[OutcomeLog], transaction_id: str, nonce: bytes | None) -> OutcomeEntry | None:
    found = [each.find(transaction_id) if nonce is None else each.find_nonce(nonce) for each in memories]
    return max((each for each in found if each is not None), key=lambda each: each.timestamp_ns, default=None)
