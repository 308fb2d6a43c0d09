"""Reads the messages of one planned range on an executor; takes no lock, and never gives wrong rows.

A file may be consumed and reused while it is read: its id is compared after every read and before anything is given on.
Damage is skipped up to the next frame that verifies, and reported with its place.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from holdfast.arrow.reading.file_range import FileRange, clipped
from holdfast.arrow.reading.frame_walk import Walked, walk
from holdfast.errors import RetryableError, StorageError
from holdfast.persistence.filesystem.layout import check_header
from holdfast.persistence.filesystem.storage import MISSING, ReadableFile
from holdfast.persistence.format.constants import FRAME_SIZE_END, FRAMES_START
from holdfast.persistence.format.file_header import DataFileHeader, block_copies
from holdfast.persistence.format.report import DAMAGED, Damage
from holdfast.persistence.segment.frame_scanner import FrameScanner
from holdfast.persistence.segment.frame_trailer import read_seal

CHUNK_BYTES = 2 * 2**20
"""Read at once: stays in the processor's caches, and makes batches of 1,000 messages of 2 KB. Memory for twice as much
is new to the process each time, which costs 5 % of a read."""

BATCH_COUNT_MAX = 10_000
"""Messages of one batch, where they are small."""

_RECORD_BYTES_MAX = 2**31 - 1 - CHUNK_BYTES
"""Arrow counts the bytes of a column in 31 bits, and so does Spark."""


class ConsumedMeanwhileError(RetryableError):
    """A data file that a read had planned was consumed before it was read. Attribute: ``path``."""

    code = "consumed_meanwhile"


class Opener(Protocol):
    """Opens data files: a storage, or what asks another machine for them."""

    def open(self, path: Path, *, writable: bool) -> ReadableFile:
        """Open a file to be read; a missing one is one of the errors ``MISSING``."""


class FileRangeReader:
    """Walks over one range.

    Parameters
    ----------
    files, path, queue_id
        What opens the file, where it is, and its queue.
    part : FileRange
        What to read.
    on_loss : callable
        Called with a :class:`Damage` whose offsets are wanted ones; may raise.
    """

    def __init__(
        self, files: Opener, path: Path, queue_id: bytes, part: FileRange, on_loss: Callable[[Damage], None]
    ) -> None:
        self._files = files
        self._path = path
        self._queue_id = queue_id
        self._part = part
        self._on_loss = on_loss
        self._position = max(part.position, FRAMES_START)
        self._next = part.start if part.position else part.name.first_offset

    @property
    def position(self) -> int:
        """Position in the file of the messages that were given last; at the end, where the next would."""
        return self._position

    def walked(self) -> Iterator[Walked]:
        """Yield the wanted messages that can be read.

        Raises
        ------
        ConsumedMeanwhileError
            The file is gone, or is reused.
        StorageError
            A Holdfast of another format version wrote it, or the disk refuses.
        """
        try:
            file = self._files.open(self._path, writable=False)
        except MISSING:
            raise self._consumed() from None
        try:
            header = self._read_header(file)
            if header is not None:
                yield from self._walked(file, header)
        finally:
            file.close()

    def _walked(self, file: ReadableFile, header: DataFileHeader) -> Iterator[Walked]:
        part = self._part
        limit = min(file.size(), part.limit or file.size())
        if not part.position and (header.is_merged or part.start - part.name.first_offset > BATCH_COUNT_MAX):
            self._jump(file, header)
        size = CHUNK_BYTES
        while self._next < part.end and self._position < limit:
            wanted_bytes = min(size, limit - self._position)
            data = file.read_at(wanted_bytes, self._position)
            self._check_life(file, header)
            size = CHUNK_BYTES
            at, is_good = 0, True
            while is_good and self._next < part.end:
                batch_end = part.end if header.is_merged else min(part.end, self._next + BATCH_COUNT_MAX)  # it has gaps
                index_max = batch_end - header.first_offset
                found = walk(data, at, header, self._next - header.first_offset, index_max)
                is_good, is_over = found.is_good, found.end == at
                at = found.end
                self._next = found.next_offset
                if (rows := self._wanted(found)) is not None:
                    yield rows
                if is_over:
                    break
            self._position += at
            if not is_good:
                self._pass_damage(file, header, limit)
            elif at == 0 and self._next < part.end:
                size = self._next_size(file, limit)
                if size <= len(data) or len(data) < wanted_bytes:  # the latter: the file was cut meanwhile
                    self._pass_damage(file, header, limit)
                    size = CHUNK_BYTES
        if self._next < part.end:
            self._lose(self._position, 0, self._next, part.end, "the file ends too early")

    def _next_size(self, file: ReadableFile, limit: int) -> int:
        """Return the size of the frame at the position, which was not whole in the last chunk; 0 if it cannot be."""
        size = FRAME_SIZE_END + int.from_bytes(file.read_at(FRAME_SIZE_END, self._position)[1:], "little")
        if self._position + size > limit:
            return 0
        if size > _RECORD_BYTES_MAX:
            raise StorageError(
                f"{self._path}: message {self._next} has {size} bytes; Arrow and Spark can hold none over 2 GiB",
                path=str(self._path),
            )
        return size

    def _wanted(self, found: Walked) -> Walked | None:
        """Return the messages of the range among those found; None if there are none."""
        if not len(found):
            return None
        offsets = found.offsets
        first, end = offsets[0], offsets[-1] + 1
        runs = clipped(self._part.wanted, first, end)
        if runs == ((first, end),):
            return found
        if not runs:
            return None
        return found.chosen([at for run in runs for at in range(*(bisect_left(offsets, offset) for offset in run))])

    # -- The life of the file ----------------------------------------------------------------------------------------

    def _read_header(self, file: ReadableFile) -> DataFileHeader | None:
        """Return the header, or None if it is damaged and that was reported."""
        part = self._part
        try:
            header = DataFileHeader.decode(block_copies(file.read_at(FRAMES_START, 0)), str(self._path))
        except StorageError as error:
            if error.code != "corruption":
                raise
            self._lose(0, FRAMES_START, part.start, part.end, str(error))
            return None
        if (header.sequence, header.first_offset) != part.name[:2]:
            raise self._consumed()
        check_header(header, part.name, self._queue_id, self._path)
        if part.file_id and header.file_id != part.file_id:
            raise self._consumed()
        return header

    def _check_life(self, file: ReadableFile, header: DataFileHeader) -> None:
        """Make sure that the bytes just read are of the life of the file that was opened."""
        try:
            now = DataFileHeader.decode(block_copies(file.read_at(FRAMES_START, 0)), str(self._path))
        except StorageError:
            raise self._consumed() from None
        if now.file_id != header.file_id:
            raise self._consumed()

    def _consumed(self) -> ConsumedMeanwhileError:
        return ConsumedMeanwhileError(f"{self._path} was consumed after this read was planned", path=str(self._path))

    def _jump(self, file: ReadableFile, header: DataFileHeader) -> None:
        """Go to an indexed message near the first one that is wanted."""
        seal = read_seal(file, header)
        entry = seal.position_before(self._part.start - header.first_offset) if seal is not None else None
        if entry is not None:
            self._next, self._position = header.first_offset + entry[0], entry[1]

    # -- Damage ------------------------------------------------------------------------------------------------------

    def _pass_damage(self, file: ReadableFile, header: DataFileHeader, limit: int) -> None:
        """Report damage at the position, and continue at the next frame that verifies."""
        scanner = FrameScanner(file, header.salt, self._position, limit, is_merged=header.is_merged)
        gap = scanner.gap(self._next - header.first_offset)
        self._check_life(file, header)
        end = self._part.end
        following = end if gap.frame is None else min(end, header.first_offset + gap.frame.index)
        reason = gap.reason or f"another message is in the place of message {self._next}"
        self._lose(gap.position, gap.resume - gap.position, self._next, following, reason)
        self._position, self._next = gap.resume, max(self._next, following)

    def _lose(self, position: int, size: int, first: int, end: int, reason: str) -> None:
        runs = clipped(self._part.wanted, first, end)
        if runs:  # messages outside of the range are not lost to it
            lost = range(runs[0][0], runs[-1][1])
            self._on_loss(Damage(self._path, position, size, lost, DAMAGED, reason))
