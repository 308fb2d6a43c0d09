"""The log as a stream sees it at one moment: its end, and the messages of its files.

The cost of a poll does not depend on the backlog: one small file for the end, two listings if files are asked for,
and of them only those that a batch reads.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from holdfast.arrow.reading.file_range import FileRange, Runs, clipped
from holdfast.arrow.reading.snapshot import pinned, read_mark, settled_files, visible_end, visible_files
from holdfast.persistence.filesystem.layout import (
    DataFileName,
    QueueDirectory,
    open_directory,
)
from holdfast.persistence.filesystem.storage import MISSING, OsStorage, Storage
from holdfast.persistence.log.log_files import LogFiles
from holdfast.persistence.log.log_times import offset_since
from holdfast.persistence.log.sealed_file import left_out
from holdfast.persistence.log.watermark import Watermark


@dataclass(frozen=True)
class StreamLog:
    """One reading of a queue's state. It holds nothing open.

    Attributes
    ----------
    storage, directory, queue_id
        The queue.
    mark : Watermark or None
        The end of the log; None if nothing was ever put.
    """

    storage: Storage
    directory: QueueDirectory
    queue_id: bytes
    mark: Watermark | None

    @classmethod
    def look(cls, storage: Storage, path: Path) -> StreamLog:
        """Read a queue's state; raises QueueNotFoundError, and StorageError where ``write.mark`` does not verify."""
        directory, queue_id, _ = open_directory(storage, path, create=False, writable=False)
        return cls(storage, directory, queue_id, read_mark(storage, directory, queue_id))

    @property
    def end(self) -> int:
        """The offset behind the last message that may be read."""
        return 0 if self.mark is None else visible_end(self.mark)

    @cached_property
    def names(self) -> list[DataFileName]:
        """The data files, as they are when this is asked first: after the end was read."""
        return settled_files(self.storage, self.directory)

    def path(self, name: DataFileName) -> Path:
        """Return where a file is."""
        return self.directory.data_file(name)

    def is_active(self, name: DataFileName) -> bool:
        """Whether a file was being written at that time."""
        return self.mark is not None and name.sequence == self.mark.sequence

    def files_from(self, offset: int) -> Iterator[tuple[DataFileName, int]]:
        """Yield the files that hold an offset and later ones, each with the offset behind its last message."""
        if self.mark is not None:
            at = bisect_right(self.names, offset, key=lambda name: name.first_offset)
            yield from visible_files(self.storage, self.directory, self.mark, self.names[max(0, at - 1) :])

    def part(self, name: DataFileName, first: int, end: int, position: int = 0) -> FileRange:
        """Return messages of one file as something to be read."""
        assert self.mark is not None, "there is no file where nothing was ever put"
        return pinned(self.mark, name, ((first, end),), position)

    def left_out(self, name: DataFileName) -> Runs:
        """Return the offsets that a merged file does not contain; none if it is another one, or is gone by now."""
        return _left_out(self.path(name), name, self.queue_id) if name.is_merged else ()

    def between(self, start: int, end: int) -> tuple[list[FileRange], Runs]:
        """Return the messages from ``start`` to ``end``, and the offsets that no file contains."""
        parts: list[FileRange] = []
        gaps: list[tuple[int, int]] = []
        expected = start
        for name, file_end in self.files_from(start):
            if name.first_offset >= end:
                break
            first, last = max(start, name.first_offset), min(end, file_end)
            if first > expected:
                gaps.append((expected, first))
            if first < last:
                parts.append(self.part(name, first, last))
                gaps += clipped(self.left_out(name), first, last)
                expected = last
        if expected < end:
            gaps.append((expected, end))
        return parts, tuple(gaps)

    def first_from(self, offset: int) -> int:
        """Return the first offset from ``offset`` on that a file holds; the end of the log if there is none."""
        for name, file_end in self.files_from(offset):
            first = max(offset, name.first_offset)
            first = next((behind for gap, behind in self.left_out(name) if gap <= first < behind), first)
            if first < file_end:
                return first
        return self.end

    def first_since(self, timestamp_ns: int) -> int:
        """Return the first offset whose message was put at a time or later; the end of the log if there is none."""
        if self.mark is None:
            return 0
        files = LogFiles(self.storage, self.directory, self.queue_id)
        return offset_since(files, timestamp_ns, (self.mark.sequence, self.mark.visible[0], self.end))


@lru_cache(maxsize=64)
def _left_out(path: Path, name: DataFileName, _queue_id: bytes) -> Runs:
    """Read a merged file, once for all of its batches: a queue never gives a name to two contents."""
    try:
        return tuple((gap.start, gap.stop) for gap in left_out(OsStorage(), path, name))
    except MISSING:  # reading it says so
        return ()
