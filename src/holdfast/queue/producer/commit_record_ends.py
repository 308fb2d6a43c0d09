"""Ends pending commit records of a queue: makes durable what they wait for, and forgets them."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping

from holdfast.persistence.groups.own_group import OwnGroup
from holdfast.persistence.log.follow_up import follow_up
from holdfast.persistence.log.pending_commit_records import Needs, OwnFile, PendingCommitRecords, is_durable
from holdfast.persistence.outcomes.prepared_files import PreparedFiles

_PENDING_MAX = 256
"""At so many pending records those that can end are ended: with one sync of each position file for all of them. Records
that wait for nothing but the answer of their session are not counted."""

_DEFERRED_SECONDS = 1.0
"""How often the background tries to end records that need files of other queues."""


class CommitRecordEnds:
    """Ends commit records of one queue. Threads may share it.

    Parameters
    ----------
    pending : PendingCommitRecords
        What has not ended.
    groups : collection of OwnGroup
        The groups that are open beside the write side; it changes as they come and go.
    prepared : PreparedFiles
        What leaves ``prepared/``.
    """

    def __init__(
        self,
        pending: PendingCommitRecords,
        groups: Collection[OwnGroup],
        prepared: PreparedFiles,
    ) -> None:
        self._pending = pending
        self._groups = groups
        self._prepared = prepared
        self._deferred_due = time.monotonic() + _DEFERRED_SECONDS

    def end_own(self) -> None:
        """End those that need only this queue's own files, and touch no others: for a caller with the append lock."""
        self._end(self._pending.applied_needs(own_only=True))

    def end_all(self) -> None:
        """End all that can end. This may sync files of other queues, so the caller holds no append lock."""
        self._end(self._pending.applied_needs())

    def end_if_many(self) -> None:
        """Keep their number bounded: as :meth:`end_all`, if there are many."""
        if self._pending.unsettled_count >= _PENDING_MAX:
            follow_up("decisions stay open for now", self.end_all)

    def end_deferred(self, now: float) -> bool:
        """As :meth:`end_all`, now and then, if some need other queues; return whether some wait for the next time."""
        if not self._pending.has_deferred:
            return False
        if now < self._deferred_due:
            return True
        self._deferred_due = now + _DEFERRED_SECONDS
        self.end_all()
        return False

    def _end(self, applied: Mapping[bytes, Needs]) -> None:
        wanted = frozenset[OwnFile]().union(*(needs.own for needs in applied.values()))
        self._pending.end(applied, self._sync(wanted))

    def _sync(self, wanted: Collection[OwnFile]) -> set[OwnFile]:
        """Sync files; return those that are durable now. A failure is logged, and leaves its file out."""
        syncs = {OwnFile.PREPARED: self._prepared.sync, OwnFile.GROUP: self._sync_groups}
        return {file for file, sync in syncs.items() if file in wanted and is_durable(sync)}

    def _sync_groups(self) -> None:
        for group in list(self._groups):
            group.sync()
