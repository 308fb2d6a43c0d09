"""The write sides that are open in this process: the coordinator of a transaction is asked here first.

A queue of this process holds its own write lock, so no other handle could read its log for an outcome.
"""

from __future__ import annotations

from enum import Enum

from holdfast.persistence.log.pending_commit_records import PendingCommitRecords


class Outcome(Enum):
    """The answer of a coordinator about a transaction."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    IN_DOUBT = "in doubt"


class Coordinator:
    """The write side of a queue, as the participants of its transactions see it.

    Parameters
    ----------
    queue_id : bytes, length 16
        The queue.
    commit_records : PendingCommitRecords
        The pending commit records, which participants may still ask for.
    """

    def __init__(self, queue_id: bytes, commit_records: PendingCommitRecords) -> None:
        self._queue_id = queue_id
        self._commit_records = commit_records
        self._deciding: set[bytes] = set()
        _coordinators[queue_id] = self

    def begin(self, nonce: bytes) -> None:
        """Note that a transaction is about to be decided: until :meth:`end` its absence proves nothing."""
        self._deciding.add(nonce)

    def end(self, nonce: bytes) -> None:
        """Note that it was decided, and that all participants know; or that it was given up."""
        self._deciding.discard(nonce)

    def outcome(self, nonce: bytes) -> Outcome:
        """Return the outcome of a transaction; one that is not in the log was aborted."""
        if nonce in self._deciding:
            return Outcome.IN_DOUBT
        if self._commit_records.find(nonce) is None:
            return Outcome.ABORTED
        return Outcome.COMMITTED if self._commit_records.is_durable(nonce) else Outcome.IN_DOUBT

    def close(self) -> None:
        """Answer no more."""
        if _coordinators.get(self._queue_id) is self:
            del _coordinators[self._queue_id]


_coordinators: dict[bytes, Coordinator] = {}


def find_coordinator(queue_id: bytes) -> Coordinator | None:
    """Return the coordinator of a queue that this process has open; None if it has not."""
    return _coordinators.get(queue_id)
