"""Which data files are so far behind the end of the log that they need not be kept. docs/retention.md.

A file is as far behind as its newest message. So the files outside of a bound are always the oldest ones. Time is the
smaller of the clock and the newest message of the log: a clock that jumps forward makes nothing old.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

from holdfast.errors import StorageError
from holdfast.persistence.filesystem.layout import DataFileName, QueueDirectory, read_data_file_header
from holdfast.persistence.filesystem.storage import MISSING
from holdfast.persistence.format.constants import DATA_FILE_BYTES_LIMIT, ENTRY_SKIPPED
from holdfast.persistence.groups.position_entry import NO_HINT, Change
from holdfast.persistence.groups.progress import GroupProgress
from holdfast.persistence.log.log_files import LogFiles
from holdfast.persistence.log.watermark import Watermark, marked
from holdfast.persistence.segment.frame_trailer import read_seal

_CHANGES_MAX = 1000
"""Runs that are skipped in one step, 64 bytes of a position file each."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How far behind the end of the log the newest message of a data file may be; None: without a bound.

    Attributes
    ----------
    age_ns : int or None
        How much older than now, in nanoseconds.
    size_bytes : int or None
        Below so many bytes of data files behind it.
    message_count : int or None
        Below so many messages behind it.
    """

    age_ns: int | None = None
    size_bytes: int | None = None
    message_count: int | None = None

    @property
    def is_any(self) -> bool:
        """Whether there is any bound."""
        return (self.age_ns, self.size_bytes, self.message_count) != (None, None, None)


NOTHING = Bounds(size_bytes=0)
"""Every data file is outside of it."""


@dataclass(frozen=True, slots=True)
class Retention:
    """What is kept of a log beside what its groups need.

    Attributes
    ----------
    kept : Bounds
        Finished files inside of it are kept; ``NOTHING``: none are.
    unread : Bounds
        While there is no group, files outside of it count as finished; if there is no bound, none do.
    free_bytes_min : int
        While the file system has less space than this, finished files are not kept.
    total_bytes_max : int or None
        While all data files take more than this, finished files are not kept.
    spare_bytes_max : int
        A larger file is not kept as a spare: the file that uses it would be larger than bounds count it.
    """

    kept: Bounds = NOTHING
    unread: Bounds = Bounds()  # immutable
    free_bytes_min: int = 0
    total_bytes_max: int | None = None
    spare_bytes_max: int = DATA_FILE_BYTES_LIMIT


class Distances:
    """How far behind the end of the log its data files are. The last file is never behind anything.

    Parameters
    ----------
    directory, files
        The log; the list of its files is up to date.
    now_ns : int
        The clock.
    """

    def __init__(self, directory: QueueDirectory, files: LogFiles, now_ns: int) -> None:
        self._directory = directory
        self._files = files
        self._names = files.names()
        self._clock_ns = now_ns

    def outside(self, bounds: Bounds) -> list[DataFileName]:
        """Return the files outside of any of some bounds: the oldest ones."""
        count = max(0, len(self._names) - 1)
        counts = [each(bounds, count) for each in (self._too_old, self._too_large, self._too_many)]
        return self._names[: max(counts)]

    def end_of(self, names: Sequence[DataFileName]) -> int:
        """Return the offset behind the oldest files of the log, which these are."""
        return self._names[len(names)].first_offset if names else 0

    @cached_property
    def _mark(self) -> Watermark | None:
        return marked(self._files.storage, self._directory.write_mark)

    @cached_property
    def _newest_ns(self) -> int:
        """Timestamp of the newest message that is known: of the mark, or when the last file was begun."""
        newest_ns = 0 if self._mark is None else self._mark.timestamp_ns
        with suppress(StorageError, *MISSING):
            last = read_data_file_header(self._files.storage, self._files.path(self._names[-1]))
            newest_ns = max(newest_ns, last.base_timestamp_ns)
        return newest_ns

    def _too_old(self, bounds: Bounds, count: int) -> int:
        if bounds.age_ns is None or not count:
            return 0
        now_ns = min(self._clock_ns, self._newest_ns)
        return bisect_left(range(count), now_ns - bounds.age_ns, key=self._newest_in)

    def _too_large(self, bounds: Bounds, count: int) -> int:
        if not count or bounds.size_bytes is None:
            return 0
        if not bounds.size_bytes:
            return count
        mark, last = self._mark, self._names[-1]
        behind = mark.written if mark is not None and mark.sequence == last.sequence else 0  # not what is reserved
        while count and behind < bounds.size_bytes:
            count -= 1
            behind += self._files.size_of(self._names[count])
        return count

    def _too_many(self, bounds: Bounds, count: int) -> int:
        if bounds.message_count is None or not count:
            return 0
        mark, end = self._mark, self._names[-1].first_offset
        if mark is not None:
            end = max(end, mark.first_offset + mark.written_count)
        last_end = end - bounds.message_count  # a file that ends here or before is outside
        return bisect_right([following.first_offset for following in self._names[1:]], last_end)

    def _newest_in(self, at: int) -> int:
        """Return the timestamp of the newest message of a file; if that is not known, of one behind it."""
        for name in self._names[at:-1]:
            with suppress(StorageError, *MISSING):
                path = self._files.path(name)
                header = read_data_file_header(self._files.storage, path)
                with self._files.storage.open(path, writable=False) as file:
                    seal = read_seal(file, header)
                if seal is not None and seal.message_count:
                    return max(seal.timestamp_max_ns, header.base_timestamp_ns)
        return self._newest_ns


def skipped_changes(progress: GroupProgress, end: int, in_use: Sequence[int] = ()) -> list[Change]:
    """Return the entries that skip what a group has not finished below ``end``: as many as fit one step.

    Dead letters stay, what votes hold, and what is ``in_use`` by transactions. Sessions that have a message in hand are
    told later that it was taken away.
    """
    kept = [(offset, offset + 1) for offset in {*progress.dead, *in_use} if offset < end]
    kept += [(run.start, run.stop) for vote in progress.votes.values() for run in vote.offsets if run.start < end]
    kept.append((end, end))
    changes: list[Change] = []
    first = progress.floor
    for start, stop in sorted(kept):
        changes += [_skipped(run) for run in progress.unfinished_runs(first, start)]
        first = max(first, stop)
    changes = changes[:_CHANGES_MAX]
    starts = [each.first_offset for each in changes]
    for offset, number in sorted(progress.numbers.items()):
        at = bisect_right(starts, offset) - 1
        if at >= 0 and offset < starts[at] + changes[at].count:
            changes.append(_skipped(range(offset, offset + 1), number))
    return changes


def _skipped(run: range, number: int = 0) -> Change:
    return Change(ENTRY_SKIPPED, run.start, len(run), NO_HINT, 0, number)
