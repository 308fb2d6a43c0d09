"""Copies what lives in adjacent data files into one that can take their place. docs/format.md, "Merged data files".

Nothing is locked meanwhile, and nothing of the log is changed: the copy has a name that no reader looks at, until
``compactor.py`` gives it the one that replaces the others. Memory is that of two chunks.
"""

from __future__ import annotations

from bisect import bisect_left
from contextlib import closing
from dataclasses import dataclass
from operator import itemgetter

from holdfast.errors import CorruptionError, HoldfastError
from holdfast.persistence.filesystem.file_names import open_alone
from holdfast.persistence.filesystem.layout import DataFileName, QueueDirectory, read_data_file_header
from holdfast.persistence.filesystem.storage import File
from holdfast.persistence.format.constants import (
    COMPATIBLE_BORN_SEALED,
    FLAG_HEADERS,
    FLAGS_SINGLE,
    FRAMES_START,
    INDEX_STRIDE_BYTES,
    KIND_SEAL,
)
from holdfast.persistence.format.file_header import DataFileHeader, block_buffers
from holdfast.persistence.format.framing import encode_frame
from holdfast.persistence.format.report import Damage
from holdfast.persistence.format.seal import Seal
from holdfast.persistence.log.log_files import LogFiles
from holdfast.persistence.log.log_reader import FILE_MISSING, LogReader, Record
from holdfast.persistence.segment.batch_file_buffer import FileBuffer

LIVE_SHARE = 4
"""At most one part of so many lives in files that are merged: so a merge writes a third of what it frees at most."""

_READ_COUNT = 256

_offset_of = itemgetter(0)


class NotWorthwhileError(HoldfastError):
    """The files have more bytes that live than it seemed: copying them costs too much for what it frees."""

    code = "not_worthwhile"


@dataclass(frozen=True, slots=True)
class MergeRun:
    """Adjacent data files, and what lives in them.

    Attributes
    ----------
    names : tuple of DataFileName
        In log order; no other file is between them.
    end : int
        Offset behind the last message of the last one.
    live : tuple of range
        Offsets of the messages that some group needs; at least one.
    size_bytes : int
        Of all the files.
    """

    names: tuple[DataFileName, ...]
    end: int
    live: tuple[range, ...]
    size_bytes: int

    @property
    def live_count(self) -> int:
        """How many messages live."""
        return sum(map(len, self.live))

    @property
    def merged_name(self) -> DataFileName:
        """The name of the file that takes their place: it covers all of theirs, and is of a later generation."""
        first, last = self.names[0], self.names[-1]
        generation = 1 + max(name.generation for name in self.names)
        return DataFileName(last.sequence, first.first_offset, last.sequence - first.first_sequence, generation)


def copy_live(files: LogFiles, directory: QueueDirectory, run: MergeRun) -> int:
    """Write the live messages of some files into ``next.merged``, durably except for its name; return its size.

    Raises
    ------
    CorruptionError
        A live message does not verify: nothing is merged.
    NotWorthwhileError
        They take more than a quarter of the bytes.
    FileNotFoundError
        A file is gone: it was retired meanwhile.
    OSError
        The disk refuses.
    """
    first = read_data_file_header(files.storage, files.path(run.names[0]))
    header = DataFileHeader(
        files.queue_id,
        run.names[-1].sequence,
        run.names[0].first_offset,
        first.base_timestamp_ns,
        first.previous_sequence,
        first.previous_end,
        features=COMPATIBLE_BORN_SEALED,
        merged_count=run.live_count,
    )
    with open_alone(files.storage, directory.next_merged) as file:
        file.truncate(0)
        copy = _Copy(file, header, run.size_bytes // LIVE_SHARE)
        losses: list[Damage] = []
        end = (run.names[-1].sequence + 1, FRAMES_START, run.end)
        with closing(LogReader(files, losses.append)) as reader:
            for live in run.live:
                _copy_run(reader, live, end, copy, losses)
        if copy.count != run.live_count:
            raise CorruptionError(f"{files.directory} has {copy.count} of {run.live_count} messages that are needed")
        size = copy.finish(run.end)
        file.sync()
    return size


def _copy_run(reader: LogReader, live: range, end: tuple[int, int, int], copy: _Copy, losses: list[Damage]) -> None:
    reader.go_on_to(live.start)
    while reader.next_offset < live.stop:
        records = reader.read(min(_READ_COUNT, live.stop - reader.next_offset), end)  # never beyond, so never back
        if losses:
            damage = losses[0]
            if damage.reason == FILE_MISSING:
                raise FileNotFoundError(str(damage.path))  # retired meanwhile: by now all groups have finished it
            raise CorruptionError(f"{damage}; its file is not merged", path=str(damage.path))
        if not records:
            break
        for record in records[bisect_left(records, live.start, key=_offset_of) :]:
            copy.add(record)


class _Copy:
    """A merged file that is being written."""

    def __init__(self, file: File, header: DataFileHeader, bytes_max: int) -> None:
        self._header = header
        self._bytes_max = bytes_max
        self._buffer = FileBuffer(file)
        self._buffer.append(block_buffers(header.encode()))
        self._entries: list[tuple[int, int]] = []
        self._times = (0, 0)
        self.count = 0

    def add(self, record: Record) -> None:
        """Append a message under its own offset, as one that was committed alone."""
        offset, timestamp, headers, payload, _, _ = record
        index, at = offset - self._header.first_offset, self._buffer.end
        if not self._entries or at - self._entries[-1][1] >= INDEX_STRIDE_BYTES:
            self._entries.append((index, at))
        flags = FLAGS_SINGLE | (FLAG_HEADERS if headers else 0)
        self._append(payload, index=index, timestamp_ns=timestamp, flags=flags, headers=headers)
        self._times = (self._times[0] if self.count else timestamp, timestamp)
        self.count += 1

    def finish(self, end_offset: int) -> int:
        """Write the seal, which has the index behind the last message that was left out; return the size."""
        index = end_offset - self._header.first_offset
        seal = Seal(index, *self._times, tuple(self._entries))
        self._append(seal.encode(), index=index, timestamp_ns=self._times[1], kind=KIND_SEAL)
        self._buffer.flush()
        return self._buffer.end

    def _append(self, payload: bytes, **fields: object) -> None:
        self._buffer.append(*encode_frame(self._header.salt, payload, durable_mark=0, **fields))  # type: ignore[arg-type]
        if self._buffer.end > self._bytes_max:
            raise NotWorthwhileError("what lives in the files takes more than a quarter of their bytes")
