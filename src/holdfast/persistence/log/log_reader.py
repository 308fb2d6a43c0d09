"""The read side's file: returns records in offset order, and moves to the next file at the end of a sealed one.

Every checksum is verified. Damage does not stop it: lost records are reported through ``on_loss`` with their place, and
reading continues at the next frame that verifies. It never reads past the end it is given, so it never sees half a
batch.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from holdfast.errors import StorageError, UnsupportedVersionError
from holdfast.persistence.filesystem.layout import DataFileName, check_header, read_data_file_header
from holdfast.persistence.filesystem.storage import MISSING, File
from holdfast.persistence.format.constants import FRAME_HEADER_BYTES, FRAME_SIZE_END, FRAMES_START
from holdfast.persistence.format.file_header import DataFileHeader, block_copies
from holdfast.persistence.format.frame_runs import read_messages
from holdfast.persistence.format.report import DAMAGED, UNSYNCED_OR_DAMAGED, Damage
from holdfast.persistence.format.seal import Seal
from holdfast.persistence.log.log_files import LogFiles
from holdfast.persistence.log.log_tail import LogEnd
from holdfast.persistence.segment.frame_scanner import FrameScanner, Gap
from holdfast.persistence.segment.frame_trailer import read_seal

FILE_MISSING = "a data file is missing"
"""The reason of a loss between two files: reclaimed, as only a group's progress tells, or lost."""

LEFT_OUT = "messages were left out of a merged data file"
"""The reason of a loss inside of a merged file: no group needed them then. If one does now, its progress tells."""

CHUNK_BYTES = 2**18
"""How much is read at once where there is that much; a larger record makes its own chunk larger."""

_NEAR_COUNT = 256
"""Records that are read faster than the index of their file."""


Record = tuple[int, int, bytes, bytes, int, int]
"""Offset, timestamp (ns), encoded headers, payload, position behind the frame, sequence of the data file.

A plain tuple: one is made for every record that is read, and nothing is cheaper.
"""


class LogReader:
    """A cursor over the records of one queue.

    Parameters
    ----------
    files : LogFiles
        The data files.
    on_loss : callable
        Called with a :class:`Damage` when records cannot be read; its offsets may have been finished long ago.
    recheck : bool
        Whether to make sure after every read that the file has not been reused meanwhile: for readers without a group
        that pins files.

    Attributes
    ----------
    next_offset : int
        Offset of the record that comes next.
    recheck : bool
        As above; may change.
    has_seen_headers : bool
        Whether the last :meth:`read` met records with headers.
    """

    def __init__(
        self,
        files: LogFiles,
        on_loss: Callable[[Damage], None],
        *,
        recheck: bool = False,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        self._storage = files.storage
        self._files = files
        self._queue_id = files.queue_id
        self._on_loss = on_loss
        self.recheck = recheck
        self.next_offset = 0
        self.has_seen_headers = False
        self._chunk_bytes = chunk_bytes
        self._file: File | None = None
        self._name = DataFileName(0, 0)
        self._sealed_end: int | None = None
        self._seal: Seal | None = None
        self._position = 0
        self._buffer = b""
        self._at = 0
        self._is_idle = False
        self._seen_at = (0, 0)

    @property
    def name(self) -> DataFileName:
        """The data file that is being read."""
        return self._name

    # -- Moving ------------------------------------------------------------------------------------------------------

    def seek(self, offset: int, hint: tuple[int, int] | None = None) -> None:
        """Go to the record ``offset``, or to one a little before it; the caller skips records that it does not want.

        Parameters
        ----------
        offset : int
            Where to go.
        hint : tuple of int or None
            Sequence of a data file and a position in it where that record is known to start.
        """
        self.close()
        self._files.refresh()
        self._name = DataFileName(0, 0)
        self._position = 0
        self.next_offset = offset
        name = self._files.containing(offset)
        if name is None or name.first_offset > offset or not self._open(name) or self._name.is_merged:
            return
        is_hinted = hint is not None and hint[0] == name.sequence and hint[1] >= FRAMES_START
        if hint is not None and is_hinted and self._files.has_positions(name.sequence):
            self._position = hint[1]
            return
        self.next_offset, self._position = self._indexed_position(offset) or (name.first_offset, FRAMES_START)

    def begin_at(self, name: DataFileName) -> None:
        """Go to the first record of a data file, without a look at which files there are."""
        self.next_offset = name.first_offset
        self._open(name)  # a merged file that replaces it is entered there

    def go_on_to(self, offset: int) -> None:
        """As :meth:`seek`; but if that is ahead in the current file, nothing is read twice."""
        ahead = offset - self.next_offset
        name = self._files.containing(offset)
        if self._file is None or name is None or name.sequence != self._name.sequence or ahead < 0:
            self.seek(offset)
        elif self._name.is_merged:
            self._enter_merged(offset)
        elif ahead > _NEAR_COUNT and (indexed := self._indexed_position(offset)) and indexed[0] > self.next_offset:
            self.move_to(indexed[0], name.sequence, indexed[1])

    def move_to(self, offset: int, sequence: int, position: int) -> None:
        """Go to the record ``offset``, which is known to start there; cheap inside the current file."""
        is_here = self._file is not None and self._name.sequence == sequence and not self._name.is_merged
        if not is_here or not self._files.has_positions(sequence):
            self.seek(offset, (sequence, position))
            return
        at = position - (self._position - self._at)
        if 0 <= at <= len(self._buffer):
            self._at = at
        else:
            self._buffer, self._at = b"", 0
        self._position, self.next_offset = position, offset

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
        self._file = self._seal = None
        self._buffer, self._at = b"", 0
        self._is_idle = False

    def rest(self) -> None:
        """Close the file if nothing was read since the last call; the next read continues at the same place."""
        at = (self._name.sequence, self._position)
        if self._file is not None and at == self._seen_at:
            self.close()
            self._is_idle = True
        self._seen_at = at

    def _end_rest(self) -> None:
        """Open the file again. If it is gone it was finished meanwhile, or is missing: the read tells which."""
        try:
            self._file = self._storage.open(self._files.path(self._name), writable=False)
        except FileNotFoundError:
            self._enter_replacing()
        self._is_idle = False

    def _open(self, name: DataFileName) -> bool:
        """Open a data file at its first frame, or a merged one at ``next_offset``: that has no other positions.

        A merged file that has taken its place is opened instead. If that fails, report the records that are lost.
        """
        self.close()
        path = self._files.path(name)
        try:
            self._file = self._storage.open(path, writable=False)
            self._header = DataFileHeader.decode(block_copies(self._file.read_at(FRAMES_START, 0)), str(path))
            check_header(self._header, name, self._queue_id, path)
        except (StorageError, OSError) as error:
            self.close()
            if isinstance(error, UnsupportedVersionError):  # not damaged: another Holdfast can read it
                raise
            if isinstance(error, OSError) and not isinstance(error, MISSING):
                raise
            if isinstance(error, MISSING):
                self._files.refresh()
                replacing = self._files.replacing(name.sequence)
                if replacing is not None and replacing != name:
                    return self._open(replacing)
            following = self._files.next_after(name.sequence)
            if isinstance(error, StorageError) and following is not None:
                self._lose(path, 0, 0, range(self.next_offset, following.first_offset), str(error))
                self.next_offset = following.first_offset
            self._name = name
            return False
        self._name = name
        self._sealed_end = None
        self._position = FRAMES_START
        if name.is_merged:
            self._enter_merged(self.next_offset)
        return True

    def _enter_merged(self, offset: int) -> None:
        """Go to the first frame of the open merged file that is at or behind ``offset``, or in front of damage.

        A place that somebody remembers is of a file that this one has replaced, or the same as from its index.
        """
        assert self._file is not None
        first = self._header.first_offset
        indexed = self._indexed_position(offset) or (first, FRAMES_START)
        scanner = FrameScanner(self._file, self._header.salt, indexed[1], self._file.size(), is_merged=True)
        frames = scanner.frames(indexed[0] - first)
        self._position = next(each.position for each in frames if isinstance(each, Gap) or each.index >= offset - first)
        self.next_offset = max(offset, first)
        self._buffer, self._at = b"", 0

    def _enter_replacing(self) -> bool:
        """Go to the merged file that has taken the place of the open one; False if none has."""
        self._files.refresh()
        replacing = self._files.replacing(self._name.sequence)
        return replacing is not None and replacing != self._name and self._open(replacing)

    def _open_next(self, end: LogEnd) -> bool:
        """Move to the file that holds ``next_offset``, or the first one behind it."""
        name = self._files.next_after(self._name.sequence)
        if name is None or name.first_offset != self.next_offset:
            self._files.refresh()
            name = self._files.next_after(self._name.sequence)
        is_listed_anew = False
        while name is not None and name.sequence <= end[0]:
            if name.first_offset > self.next_offset and not is_listed_anew:
                self._files.refresh()  # a listing during a merge may have seen neither the old names nor the new one
                name, is_listed_anew = self._files.next_after(self._name.sequence), True
                continue
            if name.first_offset > self.next_offset:
                gap = range(self.next_offset, name.first_offset)
                self._lose(self._files.path(name).parent, 0, 0, gap, FILE_MISSING)
            self.next_offset = max(self.next_offset, name.first_offset)
            if self._open(name):
                return True
            is_listed_anew = False
            name = self._files.next_after(name.sequence)
        return False

    def _limit(self, end: LogEnd) -> int:
        """Return the position behind the last byte of the current file that may be read."""
        if self._name.sequence == end[0] and not self._name.is_merged:
            return end[1]
        if self._sealed_end is None:
            assert self._file is not None
            self._sealed_end = self._file.size()
            following = self._files.next_after(self._name.sequence)
            if following is None or (not self._name.is_merged and not self._name.is_before(following)):
                if self._enter_replacing():
                    return self._limit(end)
                following = self._files.next_after(self._name.sequence)
            if following is not None and self._name.is_before(following) and not self._name.is_merged:
                try:
                    header = read_data_file_header(self._storage, self._files.path(following))
                except (StorageError, OSError) as error:  # reported when its turn comes; the seal tells the end here
                    if isinstance(error, MISSING) and self._enter_replacing():
                        return self._limit(end)
                    return self._sealed_end
                if header.previous_sequence == self._name.sequence:
                    self._sealed_end = min(self._sealed_end, header.previous_end)
        return self._sealed_end

    def _indexed_position(self, offset: int) -> tuple[int, int] | None:
        """Return offset and position of an indexed record at or before ``offset``, from the file's seal."""
        assert self._file is not None
        self._seal = seal = self._seal or read_seal(self._file, self._header)
        entry = seal.position_before(offset - self._header.first_offset) if seal is not None else None
        return (self._header.first_offset + entry[0], entry[1]) if entry else None

    # -- Reading -----------------------------------------------------------------------------------------------------

    def read(self, count_max: int, end: LogEnd) -> list[Record]:
        """Return up to ``count_max`` records below ``end``, at least one if there is one.

        Stops early at the end of a chunk, so that ``CHUNK_BYTES`` bounds memory rather than ``count_max``.
        """
        records: list[Record] = []
        self.has_seen_headers = False
        if self._is_idle:
            self._end_rest()
        while not records and self.next_offset < end[2]:
            limit = self._limit(end) if self._file is not None else 0
            if self._position < limit:
                wanted = count_max if not self._name.is_merged else min(count_max, end[2] - self.next_offset)
                if not self._read_frames(records, wanted, limit) and not self._pass_damage(limit, end):
                    break
            elif self._name.sequence >= end[0]:
                self._finish_log(end)
                break
            elif not self._finish_file(end):
                self._finish_missing(end)
                break
        return records

    def _finish_log(self, end: LogEnd) -> None:
        """Report the offsets at the end of the log that recovery skipped because they may have been seen."""
        if self._name.sequence == end[0] and (self._file is not None or not self.recheck):
            lost = range(self.next_offset, end[2])
            path = self._files.path(self._name)
            self._on_loss(
                Damage(path, self._position, 0, lost, UNSYNCED_OR_DAMAGED, "delivered once, but not in the log")
            )
            self.next_offset = end[2]

    def _finish_missing(self, end: LogEnd) -> None:
        """Report the offsets of a missing last data file."""
        if self.next_offset < end[2] and not self.recheck and self._files.named(end[0]) is None:
            lost = range(self.next_offset, end[2])
            self._lose(self._files.path(self._name).parent, 0, 0, lost, "the last data file is missing")
            self.next_offset = end[2]

    def _finish_file(self, end: LogEnd) -> bool:
        """Move from the end of a file to the next; a sealed file that ends too early has lost its last records."""
        following = self._files.next_after(self._name.sequence)
        if self._file is not None and following is not None and self._name.is_before(following):
            lost = range(self.next_offset, following.first_offset)
            if lost:
                self._lose(self._files.path(self._name), self._position, 0, lost, "the file ends too early")
                self.next_offset = following.first_offset
        return self._open_next(end)

    def _read_frames(self, records: list[Record], count_max: int, limit: int) -> bool:
        """Decode frames from the current chunk, up to its end or ``count_max``; False in front of a bad frame."""
        if not self._fill_frame(limit):
            return False
        at, index = self._at, self.next_offset - self._header.first_offset
        shift, header = self._position - at, self._header
        gaps: list[int] | None = [] if header.is_merged else None
        at, index, is_good, has_headers = read_messages(
            self._buffer,
            at,
            min(len(self._buffer), limit - shift),
            header.salt,
            header.base_timestamp_ns,
            header.first_offset,
            index,
            index + count_max,
            shift,
            self._name.sequence,
            records,
            gaps,
        )
        if gaps:
            self._leave_out(gaps)
        self.has_seen_headers |= has_headers
        self._at, self._position, self.next_offset = at, shift + at, header.first_offset + index
        return is_good

    def _fill_frame(self, limit: int) -> bool:
        """Load the whole frame at the position into the chunk; False if it cannot be."""
        if not self._fill(FRAME_HEADER_BYTES, limit):
            return False
        size = int.from_bytes(self._buffer[self._at + 1 : self._at + FRAME_SIZE_END], "little")
        return self._fill(FRAME_SIZE_END + size, limit)

    def _fill(self, size: int, limit: int) -> bool:
        """Load ``size`` bytes from the position into the chunk; False if they cannot be read."""
        if self._at + size <= len(self._buffer):
            return True
        assert self._file is not None
        self._buffer = self._file.read_at(min(max(size, self._chunk_bytes), limit - self._position), self._position)
        self._at = 0
        if self._position + size > limit:
            return False
        if self.recheck and self._was_reused():
            self._buffer = b""
        return len(self._buffer) >= size

    def _was_reused(self) -> bool:
        """Whether the file has begun another life since it was opened: then the bytes just read are void."""
        assert self._file is not None
        copies = block_copies(self._file.read_at(FRAMES_START, 0))
        try:
            header = DataFileHeader.decode(copies, "")
        except StorageError:
            return True
        return header.file_id != self._header.file_id

    # -- Damage ------------------------------------------------------------------------------------------------------

    def _pass_damage(self, limit: int, end: LogEnd) -> bool:
        """Report damage at the position, and continue at the next frame that verifies; False at the end."""
        assert self._file is not None
        if self.recheck and self._was_reused():
            return self._open_next(end)  # consumed meanwhile: nothing is lost, and nothing of it may be returned
        first = self._header.first_offset
        scanner = FrameScanner(self._file, self._header.salt, self._position, limit, is_merged=self._name.is_merged)
        gap = scanner.gap(self.next_offset - first)
        if gap.frame is not None:
            next_offset = first + gap.frame.index
        elif self._name.sequence == end[0]:
            next_offset = end[2]
        else:
            following = self._files.next_after(self._name.sequence)
            is_adjacent = following is not None and self._name.is_before(following)
            next_offset = following.first_offset if following is not None and is_adjacent else self.next_offset
        lost = range(self.next_offset, next_offset)
        reason = gap.reason or f"message {first + gap.stray_index} is in the place of message {self.next_offset}"
        self._lose(self._files.path(self._name), gap.position, gap.resume - gap.position, lost, reason)
        self._position, self.next_offset = gap.resume, max(self.next_offset, next_offset)
        self._buffer, self._at = b"", 0
        return True

    def _leave_out(self, gaps: list[int]) -> None:
        path, first = self._files.path(self._name), self._header.first_offset
        for start, end in zip(gaps[::2], gaps[1::2], strict=True):
            self._lose(path, 0, 0, range(first + start, first + end), LEFT_OUT)

    def _lose(self, path: Path, position: int, size: int, offsets: range, reason: str) -> None:
        self._on_loss(Damage(path, position, size, offsets, DAMAGED, reason))
