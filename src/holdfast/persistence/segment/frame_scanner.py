"""Walks the frames of one data file with everything checked, and finds its way past what is damaged.

Recovery, ``verify`` and the reader's slow path share it. The reader's fast path (``data_file_reader.py``) does the same
for good frames only, and faster.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.persistence.filesystem.storage import File
from holdfast.persistence.format.checksum import crc32c
from holdfast.persistence.format.constants import (
    FRAME_BODY_START,
    FRAME_HEADER_BYTES,
    FRAME_PREFIX,
    FRAME_SIZE_END,
    STX,
)
from holdfast.persistence.format.framing import Frame, FrameError, decode_frame, pass_messages, resynchronise

WINDOW_BYTES = 2**20
"""How much is read at once; a larger frame makes its own window larger."""

_LARGE_BYTES = 32 * 2**20
"""A frame from this size on is read twice, the first time piece by piece."""

_ZEROS = bytes(WINDOW_BYTES)


class FrameScanner:
    """A cursor over the frames between two positions of a file.

    Parameters
    ----------
    file, salt
        What to read, and what its frames' checksums start from.
    position, end : int
        Where to start, and the byte behind the last one that may belong to a frame.

    Attributes
    ----------
    position : int
        Where the next frame should start.
    """

    def __init__(self, file: File, salt: int, position: int, end: int) -> None:
        self._file = file
        self._salt = salt
        self._end = end
        self.position = position
        self._window = b""
        self._window_start = position

    def next(self) -> Frame:
        """Return the frame at ``position`` and move behind it.

        Raises
        ------
        FrameError
            There is none that verifies; the position stays.
        """
        at = self._load(FRAME_HEADER_BYTES)
        size = FRAME_SIZE_END + int.from_bytes(self._window[at + 1 : at + FRAME_SIZE_END], "little")
        if at + size > len(self._window) and self.position + size <= self._end:
            if size > _LARGE_BYTES:
                self._check_in_pieces(at, size)
            at = self._load(size)
        frame = decode_frame(self._window, at, self.position, self._salt, self._end)
        self.position = frame.end
        return frame

    def _check_in_pieces(self, at: int, size: int) -> None:
        """Raise FrameError where a large frame does not verify: nothing is allocated on the word of its size alone."""
        if self._window[at] != STX:
            raise FrameError("no STX")
        record_size = size - FRAME_SIZE_END
        crc = self._salt ^ record_size
        for piece in range(FRAME_BODY_START, size, WINDOW_BYTES):
            crc = crc32c(crc, self._file.read_at(min(WINDOW_BYTES, size - piece), self.position + piece))
        if self._window[at : at + FRAME_BODY_START] != FRAME_PREFIX.pack(STX, record_size, crc):
            raise FrameError("the checksum does not match")

    def pass_messages(self, index: int) -> int:
        """Move behind messages in the middle of a batch, as many as are at hand; return the index of what comes next.

        ``index`` is that of the first. It makes the same checks as :meth:`next`, a few times as fast; where it stops,
        that says why.
        """
        start = self._load(FRAME_HEADER_BYTES)
        at, index = pass_messages(self._window, start, self.position, self._salt, index)
        self.position += at - start
        return index

    def skip_damage(self, index_min: int) -> Frame | None:
        """Return the next frame behind ``position`` that verifies and move behind it; None where there is none.

        ``index_min`` is the index of the first message that is missing.
        """
        damaged_from = self.position
        start = damaged_from + 1
        while start < self._end:
            window = self._file.read_at(min(WINDOW_BYTES, self._end - start), start)
            if window == _ZEROS:  # space that was reserved and never written; most of a file that was just begun
                start += WINDOW_BYTES
                continue
            index_max = index_min + (start + len(window) - damaged_from) // FRAME_HEADER_BYTES
            for at in resynchronise(window, index_min, index_max):
                self._window, self._window_start, self.position = window, start, start + at
                try:
                    return self.next()
                except FrameError:
                    continue
            if len(window) < WINDOW_BYTES:
                break
            start += len(window) - FRAME_HEADER_BYTES + 1  # a header that straddles two windows is seen whole in one
        self.position = damaged_from
        return None

    def past_damage(self) -> Iterator[Frame]:
        """Yield all frames up to the end that can be read, whatever is damaged between them."""
        index = 0
        while self.position < self._end:
            frame: Frame | None
            try:
                frame = self.next()
            except FrameError:
                frame = self.skip_damage(index)
            if frame is None:
                return
            index = frame.next_index
            yield frame

    def _load(self, size: int) -> int:
        """See to it that ``size`` bytes from ``position`` are in the window, as far as the file has them."""
        at = self.position - self._window_start
        if not 0 <= at <= len(self._window) - size:
            wanted = min(max(size, WINDOW_BYTES), max(0, self._end - self.position))
            self._window = self._file.read_at(wanted, self.position)
            self._window_start = self.position
            at = 0
        return at
