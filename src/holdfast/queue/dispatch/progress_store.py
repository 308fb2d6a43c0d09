"""The progress store of a group: its progress in memory and in its position file, kept equal, and what that frees.

The caller holds the take lock around everything but :meth:`ProgressStore.commit` and :meth:`ProgressStore.flush`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import pairwise

from holdfast.clock import Clock
from holdfast.persistence.filesystem.layout import DataFileName
from holdfast.persistence.format.commit_record import Run
from holdfast.persistence.format.constants import ENTRY_DELIVERED, ENTRY_DONE, ENTRY_LOST
from holdfast.persistence.groups.position_entry import DELIVERY_COUNT_MAX, NO_HINT, Change, done_changes
from holdfast.persistence.groups.position_file_writer import PositionFileWriter
from holdfast.persistence.groups.progress import GroupProgress
from holdfast.persistence.groups.vote import Vote, outcome_changes, vote_changes
from holdfast.persistence.log.flush_policy import FlushPolicy
from holdfast.persistence.log.follow_up import follow_up
from holdfast.persistence.log.log_files import LogFiles
from holdfast.persistence.log.log_reader import Record
from holdfast.queue.threads.flusher import Flusher
from holdfast.queue.threads.group_commit import GroupCommit

Reclaim = Callable[[GroupProgress, Callable[[], object]], object]
"""Retires finished files: takes the group's progress, and what makes that durable."""


class ProgressStore:
    """Records the progress of messages, as durably as the flush policy requires, and retires finished data files.

    Parameters
    ----------
    positions : PositionFileWriter
        The writer of the position file.
    progress : GroupProgress
        What ``positions`` checkpoints.
    files : LogFiles
        The data files of the log.
    policy, clock
        When an acknowledgement is synced, and for the background thread.
    reclaim : callable
        Retires finished files.
    """

    def __init__(
        self,
        positions: PositionFileWriter,
        progress: GroupProgress,
        files: LogFiles,
        policy: FlushPolicy,
        clock: Clock,
        reclaim: Reclaim,
    ) -> None:
        self.progress = progress
        self._positions = positions
        self._files = files
        self._policy = policy
        self._commits = GroupCommit(positions.sync)
        self._reclaim = reclaim
        self._reclaim_due = True
        self._unfinished: dict[int, tuple[int, int]] = {}
        self._passed = 0
        self._unsynced_since: float | None = None
        interval = policy.seconds / 2 if policy.seconds is not None else 1.0
        self._flusher = Flusher(self._tick, positions.sync, interval, clock) if policy.seconds is not None else None

    # -- Noting ------------------------------------------------------------------------------------------------------

    def deliver_one(self, record: Record, number: int = 0) -> int:
        """Note that a record is about to be handed out: as :meth:`deliver`."""
        count = self.progress.deliveries.get(record[0], 0) + 1
        self._positions.append_one(ENTRY_DELIVERED, record, min(count, DELIVERY_COUNT_MAX), number)
        return count

    def deliver(self, records: Sequence[Record], number: int = 0) -> list[int]:
        """Note that records are about to be handed out, under this number; return the delivery count of each."""
        deliveries = self.progress.deliveries
        counts = [deliveries.get(record[0], 0) + 1 for record in records]
        assert counts.count(counts[0]) == len(counts), "one that was handed out before comes alone"
        self._positions.append(runs_of(ENTRY_DELIVERED, records, counts[0], number))
        return counts

    def finish_one(self, record: Record) -> int:
        """Note that a record is done: as :meth:`finish`."""
        ticket = self._positions.append_one(ENTRY_DONE, record)
        if self._reclaim_due or (self._unfinished and self._is_finished(record[5])):
            self._free((record[5],))
        return ticket

    def finish(self, records: Sequence[Record]) -> int:
        """Note that records are done, all together; return the ticket to :meth:`commit`."""
        changes = runs_of(ENTRY_DONE, records)
        ticket = self._positions.append(changes)
        if self._unfinished or self._reclaim_due:
            self._free([change.hint[0] for change in changes])
        return ticket

    def finish_runs(self, runs: Sequence[Run]) -> int:
        """As :meth:`finish`, for messages that were not read: runs of offsets, each inside one data file."""
        ticket = self._positions.append(
            [Change(ENTRY_DONE, first, count, (file, end)) for first, count, file, end in runs]
        )
        self._free([run[2] for run in runs])
        return ticket

    @property
    def end(self) -> int:
        """The ticket of the latest entries."""
        return self._positions.end

    def finish_offsets(self, offsets: Sequence[int]) -> None:
        """Record messages as finished by offset alone."""
        if offsets:
            self._positions.append(done_changes(offsets))
            self._free(list(self._unfinished))

    def skip(self, changes: Sequence[Change]) -> None:
        """Note what is skipped; the files that this finishes are retired by the next pass."""
        self._positions.append(changes)
        for sequence in list(self._unfinished):
            self._look_at_file(sequence)

    def note(self, changes: Sequence[Change]) -> None:
        """Note what changes together."""
        self._positions.append(changes)

    def vote(self, vote: Vote) -> int:
        """Record messages as held until their transaction is decided; return the ticket to :meth:`sync`."""
        return self._positions.append(vote_changes(vote))

    def resolve(self, vote: Vote, *, is_committed: bool) -> int:
        """Record the outcome of a vote: its messages are finished, or released."""
        ticket = self._positions.append(outcome_changes(vote, committed=is_committed))
        if is_committed:
            self._free([run[2] for run in vote.runs])
        return ticket

    def lose(self, offsets: range) -> int:
        """Note that damaged messages are given up; return how many of them were not finished before."""
        lost = self.progress.unfinished_in(offsets.start, offsets.stop)
        if lost:
            self._positions.append([Change(ENTRY_LOST, offsets.start, len(offsets), NO_HINT)])
            for sequence in list(self._unfinished):  # their receivers are not known
                self._look_at_file(sequence)
        return lost

    # -- Another life ------------------------------------------------------------------------------------------------

    def adopt(self) -> bool:
        """Continue with the progress of another life of the group, if it has begun one; return whether it has."""
        if self.progress is self._positions.progress:
            return False
        self.progress = self._positions.progress
        self._unfinished.clear()
        self._passed = 0
        self._reclaim_due = True
        return True

    def free(self) -> None:
        """Retire the data files that the group has finished without reading them."""
        self._reclaim_due = True
        self._free(())

    # -- Making it durable -------------------------------------------------------------------------------------------

    def commit(self, ticket: int) -> None:
        """Make the recorded progress as durable as the policy requires."""
        commits_max = self._policy.commits
        if commits_max is not None and (commits_max == 1 or self._positions.unsynced_count >= commits_max):
            self._commits.wait(ticket)
        if self._flusher is not None and self._flusher.idle:
            self._flusher.kick()

    def sync(self, ticket: int) -> None:
        """Sync the recorded progress, under any policy."""
        self._commits.wait(ticket)

    def flush(self) -> None:
        """Sync everything noted so far."""
        self._commits.wait(self._positions.end)

    def _tick(self) -> bool:
        if not self._positions.unsynced_count:
            self._unsynced_since = None
            return False
        now = time.monotonic()
        if self._unsynced_since is None:
            self._unsynced_since = now
        elif self._policy.seconds is not None and now - self._unsynced_since >= self._policy.seconds / 2:
            self._unsynced_since = None
            self._positions.sync()
        return True

    # -- Retiring ----------------------------------------------------------------------------------------------------

    def pass_files(self, current: DataFileName) -> None:
        """Take note that reading has come to file ``current``: the files before it can be finished now."""
        if current.sequence == self._passed:
            return
        names = self._files.names()
        for name, following in pairwise(names):
            if self._passed <= name.sequence < current.sequence:
                self._unfinished[name.sequence] = (name.first_offset, following.first_offset)
                self._look_at_file(name.sequence)
        self._passed = current.sequence
        self._free(())

    def _is_finished(self, sequence: int) -> bool:
        """Whether a file that reading has passed is finished now; False for any other."""
        offsets = self._unfinished.get(sequence)
        return offsets is not None and not self.progress.unfinished_in(*offsets)

    def _look_at_file(self, sequence: int) -> None:
        """See whether a file that reading has passed is finished now."""
        if self._is_finished(sequence):
            del self._unfinished[sequence]
            self._reclaim_due = True

    def _free(self, sequences: Sequence[int]) -> None:
        """Retire finished ones of these files; the recorded progress counts even if that fails."""
        follow_up(
            "finished data files could not be retired, and stay until the next one is", self._retire_finished, sequences
        )

    def _retire_finished(self, sequences: Sequence[int]) -> None:
        for sequence in sequences:
            self._look_at_file(sequence)
        if self._reclaim_due:
            self._reclaim_due = False
            self._reclaim(self.progress, self._positions.sync)

    # -- Ending ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Sync and close the position file."""
        if self._flusher is not None:
            self._flusher.stop()
        self._positions.close()


def runs_of(kind: int, records: Sequence[Record], delivery_count: int = 0, number: int = 0) -> list[Change]:
    """Return what to note: one change for each run of offsets inside one data file. Deferred ones have any order."""
    records = sorted(records)  # costs little if they are
    first, last, count = records[0], records[-1], len(records)
    if last[0] - first[0] == count - 1 and first[5] == last[5]:
        return [Change(kind, first[0], count, (last[5], last[4]), delivery_count, number)]
    changes = []
    start = 0
    for at in range(1, len(records) + 1):
        before = records[at - 1]
        if at == len(records) or records[at][0] != before[0] + 1 or records[at][5] != before[5]:
            changes.append(Change(kind, records[start][0], at - start, (before[5], before[4]), delivery_count, number))
            start = at
    return changes
