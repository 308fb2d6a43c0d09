"""Merges adjacent data files with little that lives into one. docs/compaction.md; the steps: docs/format.md.

Which messages live is asked twice: before they are copied, and under the groups lock before the copy takes the place of
its sources. A group that was made or moved back meanwhile may need what was not copied; then the copy is void.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise

from holdfast.clock import Clock
from holdfast.errors import CorruptionError
from holdfast.persistence.compaction.merging import LIVE_SHARE, MergeRun, NotWorthwhileError, copy_live
from holdfast.persistence.filesystem.layout import (
    MERGED,
    DataFileName,
    QueueDirectory,
    note_feature,
    read_data_file_header,
)
from holdfast.persistence.filesystem.storage import MISSING
from holdfast.persistence.format.constants import DATA_FILE_BYTES_LIMIT, FRAMES_START, MESSAGES_MAX
from holdfast.persistence.format.report import merged
from holdfast.persistence.groups.group_files import (
    GroupInfo,
    groups_locked,
    list_groups,
    progress_reader,
    sync_deletions,
)
from holdfast.persistence.groups.group_visit import make_durable
from holdfast.persistence.groups.position_file_reader import PositionFileReader
from holdfast.persistence.groups.retention import Distances, Retention
from holdfast.persistence.log.log_files import LogFiles
from holdfast.persistence.log.sealed_file import end_offset

_FILES_MAX = 256
"""Replaced by one merge: removing them may take some milliseconds, which a group that is made waits for."""

_PASS_FILES_MAX = 1024
"""Replaced by one pass in the background; the next one continues."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """What a compaction has done, or would do.

    Attributes
    ----------
    file_count, merged_count : int
        Data files that were replaced, and those that took their place.
    freed_bytes, written_bytes : int
        How much less the data files take now, and what was written for that: a third of it at most.
    kept : dict of str to int
        Why other sealed files stay as they are, and how many.
    """

    file_count: int = 0
    merged_count: int = 0
    freed_bytes: int = 0
    written_bytes: int = 0
    kept: dict[str, int] = field(default_factory=dict)


ACTIVE = "is being written"
RETAINED = "is kept by the retention of the queue"
HELD = "has messages that a prepared transaction or a reservation holds"
ALIVE = "lives by more than a quarter"
NO_GROUP = "waits for the first group"
DAMAGED = "is damaged, or would be merged with one that is"
CHANGED = "is needed by a group that was made or moved meanwhile"
GONE = "was not there any more"


class Compactor:
    """Merges data files of a queue whose write side its caller owns.

    Parameters
    ----------
    directory, files, clock
        The queue.
    retention : Retention
        What it keeps although it is finished: that is not merged.
    file_bytes : int
        How large a merged file may become.
    sync_groups : callable
        Makes the progress of the groups durable that this process has open. Raises if an earlier sync of one has
        failed: a second one of another handle could succeed over lost data.
    """

    def __init__(
        self,
        directory: QueueDirectory,
        files: LogFiles,
        clock: Clock,
        retention: Retention,
        file_bytes: int,
        sync_groups: Callable[[], object] = lambda: None,
    ) -> None:
        self._directory = directory
        self._files = files
        self._clock = clock
        self._retention = retention
        self._file_bytes = min(file_bytes, DATA_FILE_BYTES_LIMIT)
        self._sync_groups = sync_groups
        self._kept: dict[str, int] = {}
        self._live_bytes = self._dead_bytes = 0

    def run(
        self, *, dry_run: bool = False, ratio: float = 0, is_over: Callable[[], bool] = lambda: False
    ) -> Compaction:
        """Merge what can be merged, until ``is_over``; with ``dry_run`` only tell what that would be, about.

        With a ``ratio`` only until the files have at most so many times as many dead bytes as live ones, and no more of
        them than a pass in the background may.

        Raises
        ------
        StorageError
            ``queue.json`` does not verify, or a Holdfast of another version wrote a file.
        OSError
            The disk refuses; every merge is whole or has not happened.
        """
        self._kept = {}
        self._live_bytes = self._dead_bytes = 0
        file_count = merged_count = freed = written = 0
        runs = self._runs()
        for run in runs:
            is_enough = ratio > 0 and (self._dead_bytes <= ratio * self._live_bytes or file_count >= _PASS_FILES_MAX)
            if is_enough or is_over():
                break
            size = run.written_bytes if dry_run else self._merge(run.run)
            if size:
                file_count, merged_count = file_count + len(run.run.names), merged_count + 1
                freed, written = freed + run.run.size_bytes - size, written + size
                self._dead_bytes -= run.run.size_bytes - size
        return Compaction(file_count, merged_count, freed, written, self._kept)

    # -- What ----------------------------------------------------------------------------------------------------------

    def _runs(self) -> list[_Planned]:
        """Return the files to merge, from the oldest on."""
        with groups_locked(self._files.storage, self._directory, self._clock):
            self._files.refresh()
            self._files.remove_rests()
            now = _Needs(self._directory, self._files, self._clock, self._retention)
        runs: list[_Planned] = []
        row: list[_Candidate] = []
        for each in self._candidates(now):
            if isinstance(each, str) or (row and now.live_in(row[-1].end, each.name.first_offset)):
                runs += self._divided(row)  # behind it is what stays, or a gap that some group misses
                row = []
            if isinstance(each, str):
                self._keep(each)
            else:
                row.append(each)
                self._live_bytes += each.live_bytes
                self._dead_bytes += each.size_bytes - each.live_bytes
        return [*runs, *self._divided(row)]

    def _candidates(self, needs: _Needs) -> Iterator[_Candidate | str]:
        """Yield for each file what lives in it, or why it stays."""
        names = self._files.names()
        for name, following in pairwise(names):
            reason = needs.reason_to_keep(name)
            if reason:
                yield reason
                continue
            try:
                header = read_data_file_header(self._files.storage, self._files.path(name))
                is_near = name.is_before(following)
                end = (
                    following.first_offset if is_near else end_offset(self._files.storage, self._files.path(name), name)
                )
            except CorruptionError:
                yield DAMAGED
                continue
            except MISSING:
                yield GONE
                continue
            if needs.holds(name.first_offset, end):
                yield HELD
                continue
            live = needs.live_in(name.first_offset, end)
            count = header.merged_count or max(1, end - name.first_offset)
            size = self._files.size_of(name)
            yield _Candidate(name, end, live, size, size * sum(map(len, live)) // count)
        if names:
            yield ACTIVE

    def _divided(self, row: Sequence[_Candidate]) -> list[_Planned]:
        """Return those of adjacent files to merge: as many at once as live in one file, and a quarter at most."""
        runs: list[_Planned] = []
        chosen: list[_Candidate] = []
        for each in row:
            if chosen and not self._fits([*chosen, each]):
                runs += self._planned(chosen)
                chosen = []
            chosen.append(each)
            while chosen and not self._fits(chosen) and not chosen[0].is_small(self._file_bytes):
                chosen = chosen[1:]
                self._keep(ALIVE)
        return runs + self._planned(chosen)

    def _fits(self, chosen: Sequence[_Candidate]) -> bool:
        live, size = sum(each.live_bytes for each in chosen), sum(each.size_bytes for each in chosen)
        span = chosen[-1].end - chosen[0].name.first_offset
        is_room = live <= self._file_bytes - FRAMES_START and span < MESSAGES_MAX and len(chosen) <= _FILES_MAX
        return is_room and (FRAMES_START + live) * LIVE_SHARE <= size

    def _planned(self, chosen: Sequence[_Candidate]) -> list[_Planned]:
        if not chosen or not self._fits(chosen) or not any(each.live for each in chosen):
            for _ in chosen:
                self._keep(ALIVE)
            return []
        names = tuple(each.name for each in chosen)
        live = merged(run for each in chosen for run in each.live)
        run = MergeRun(names, chosen[-1].end, live, sum(each.size_bytes for each in chosen))
        return [_Planned(run, FRAMES_START + sum(each.live_bytes for each in chosen))]

    def _keep(self, reason: str, count: int = 1) -> None:
        self._kept[reason] = self._kept.get(reason, 0) + count

    # -- How -----------------------------------------------------------------------------------------------------------

    def _merge(self, run: MergeRun) -> int:
        """Merge some files; return the size of the new one, 0 if they stay as they are."""
        files = self._files
        try:
            size = copy_live(files, self._directory, run)
            reason = self._replace(run)
        except CorruptionError:
            reason = DAMAGED
        except NotWorthwhileError:
            reason = ALIVE
        except MISSING:
            reason = GONE
        except BaseException:
            self._remove_copy()
            raise
        if reason:
            self._remove_copy()
            self._keep(reason, len(run.names))
            return 0
        return size

    def _remove_copy(self) -> None:
        """Give the space of a copy back that has not become a data file; one that stays is written over."""
        with suppress(OSError):
            self._files.storage.remove(self._directory.next_merged)

    def _replace(self, run: MergeRun) -> str:
        """Give the copy the place of its sources, if they may still go; return why not.

        The order makes it safe: what the groups have finished is synced, then the name that covers the others, and only
        then these are removed.
        """
        files, directory = self._files, self._directory
        note_feature(files.storage, directory, MERGED)
        self._sync_ahead()
        with groups_locked(files.storage, directory, self._clock):
            self._sync_groups()
            needs = _Needs(directory, files, self._clock, self._retention)
            needs.make_durable()
            names = files.names()
            at = names.index(run.names[0]) if run.names[0] in names else 0
            if tuple(names[at : at + len(run.names)]) != run.names:
                return GONE
            reasons = [reason for reason in map(needs.reason_to_keep, run.names) if reason]
            if reasons:
                return reasons[0]
            first = run.names[0].first_offset
            if needs.holds(first, run.end):
                return HELD
            if merged([*run.live, *needs.live_in(first, run.end)]) != run.live:
                return CHANGED
            files.storage.rename(directory.next_merged, files.path(run.merged_name))
            files.storage.sync_directory(directory.data)
            files.refresh()
            files.remove_replaced()
        return ""

    def _sync_ahead(self) -> None:
        """Sync the progress of all groups before they are locked: that may take seconds if others write much.

        What is noted meanwhile, and whether an earlier sync has failed, is left to the lock. Raises ``OSError``.
        """
        files, directory = self._files, self._directory
        for group in list_groups(files.storage, directory):
            reader = progress_reader(files.storage, directory, files.queue_id, group)
            with suppress(*MISSING):  # its file was just replaced, or the group is gone
                reader.refresh()
                if not reader.is_durable:
                    reader.sync()


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A data file that may be merged."""

    name: DataFileName
    end: int
    live: tuple[range, ...]
    size_bytes: int
    live_bytes: int

    def is_small(self, file_bytes: int) -> bool:
        """Whether it is a merged file that may go into another one, with others that live less."""
        return self.name.is_merged and self.size_bytes * LIVE_SHARE <= file_bytes


@dataclass(frozen=True, slots=True)
class _Planned:
    """Files to merge, and about how much that writes."""

    run: MergeRun
    written_bytes: int


class _Needs:
    """What the groups and the retention of a queue need, as the disk has it. Made under the groups lock."""

    def __init__(self, directory: QueueDirectory, files: LogFiles, clock: Clock, retention: Retention) -> None:
        storage = files.storage
        files.refresh()
        self._storage = storage
        self._directory = directory
        self._clock = clock
        self._outside = frozenset(Distances(directory, files, clock.time_ns()).outside(retention.kept))
        self._groups: list[GroupInfo] = list_groups(storage, directory)
        self._readers: list[PositionFileReader] = [
            progress_reader(storage, directory, files.queue_id, group) for group in self._groups
        ]
        self._progress = [reader.refresh() for reader in self._readers]

    def reason_to_keep(self, name: DataFileName) -> str:
        """Return why a file is not merged, whatever lives in it; empty if nothing says so."""
        if not self._groups:
            return NO_GROUP
        return "" if name in self._outside else RETAINED

    def holds(self, first: int, end: int) -> bool:
        """Whether a vote or a reservation has any of these messages."""
        votes = (vote for progress in self._progress for vote in progress.votes.values())
        return any(run.start < end and first < run.stop for vote in votes for run in vote.offsets)

    def live_in(self, first: int, end: int) -> tuple[range, ...]:
        """Return those of some messages that any group has not finished."""
        return merged(run for progress in self._progress for run in progress.unfinished_runs(first, end))

    def make_durable(self) -> None:
        """Make durable what the groups have finished, and which groups there are. Raises ``OSError``."""
        sync_deletions(self._storage, self._directory, self._groups)
        self._progress = [
            make_durable(self._storage, self._directory, self._clock, group, reader)
            for group, reader in zip(self._groups, self._readers, strict=True)
        ]
