"""Walks the frames of one data file, checks everything, and skips damage.

Recovery, ``verify`` and the slow path of all readers share it. The readers' fast paths (``log/log_reader.py``, Spark's
``frame_walk.py``) do the same for good frames only, and faster.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from holdfast.persistence.filesystem.storage import ReadableFile
from holdfast.persistence.format.checksum import crc32c
from holdfast.persistence.format.constants import (
    FLAGS_SINGLE,
    FRAME_BODY_START,
    FRAME_HEADER,
    FRAME_HEADER_BYTES,
    FRAME_PREFIX,
    FRAME_SIZE_END,
    FRAMES_START,
    KIND_MESSAGE,
    MESSAGES_MAX,
    RECORD_SIZE_MIN,
    STX,
)
from holdfast.persistence.format.file_header import DataFileHeader
from holdfast.persistence.format.frame_runs import pass_messages
from holdfast.persistence.format.framing import Frame, FrameError, decode_frame, resynchronise

WINDOW_BYTES = 2**20
"""How much is read at once; a larger frame makes its own window larger."""

_LARGE_BYTES = 32 * 2**20
"""A frame from this size on is read twice, the first time piece by piece."""

_ZEROS = bytes(WINDOW_BYTES)

_FIRST_BYTES = 64 * 2**10
"""Where a first message usually ends; a larger one is read whole."""

_FIRST_FRAMES = 64
"""Frames that are no messages may stand before it: decisions that were carried."""


_ALIKE = frozenset({FLAGS_SINGLE, 0})
"""Flags FIRST and LAST of messages that stand in runs: commits of their own, and the middle of a batch.

The first of a batch stands alone: in the log of a shared queue, most batches are one message and a commit record.
"""


@dataclass(frozen=True, slots=True)
class Gap:
    """Bytes without a frame that could come next.

    Attributes
    ----------
    position, resume : int
        The first of them, and the byte behind the last one.
    frame : Frame or None
        The good frame that starts at ``resume``; None at the end.
    reason : str
        Why they do not verify; empty if a good frame is at ``position`` whose index is not the next one.
    stray_index : int
        The index of that frame.
    """

    position: int
    resume: int
    frame: Frame | None
    reason: str
    stray_index: int


@dataclass(slots=True)  # not frozen, as Frame
class Run:
    """A frame, and the messages behind it that are as it is.

    Attributes
    ----------
    ends : list of int
        The position behind each.
    durable_mark, earliest, latest : int
        The highest durable mark, and the least and the highest timestamp in ns.
    """

    ends: list[int]
    durable_mark: int
    earliest: int
    latest: int


class FrameScanner:
    """A cursor over the frames between two positions of a file.

    Parameters
    ----------
    file, salt
        The file, and the salt of its frames' checksums.
    position, end : int
        Where to start, and the byte behind the last one that may belong to a frame.
    is_merged : bool
        Whether the file is a merged one: a frame of a higher index may be the next one.

    Attributes
    ----------
    position : int
        Where the next frame should start.
    expected : int
        The index of the next frame, while :meth:`frames` is followed.
    """

    def __init__(self, file: ReadableFile, salt: int, position: int, end: int, *, is_merged: bool = False) -> None:
        self._file = file
        self._salt = salt
        self._end = end
        self._is_merged = is_merged
        self.position = position
        self.expected = 0
        self._window = b""
        self._window_start = position

    def next(self) -> Frame:
        """Return the frame at ``position`` and move behind it.

        Raises
        ------
        FrameError
            There is none that verifies; the position does not change.
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
        """Raise FrameError if a large frame does not verify: its size alone never allocates memory."""
        if self._window[at] != STX:
            raise FrameError("no STX")
        record_size = size - FRAME_SIZE_END
        crc = self._salt ^ record_size
        for piece in range(FRAME_BODY_START, size, WINDOW_BYTES):
            crc = crc32c(crc, self._file.read_at(min(WINDOW_BYTES, size - piece), self.position + piece))
        if self._window[at : at + FRAME_BODY_START] != FRAME_PREFIX.pack(STX, record_size, crc):
            raise FrameError("the checksum does not match")

    def pass_messages(self, index: int) -> int:
        """Move behind messages in the middle of a batch, as many as are in the window; return the next index.

        ``index`` is that of the first. It makes the same checks as :meth:`next`, a few times as fast; :meth:`next`
        tells why it stops.
        """
        start = self._load(FRAME_HEADER_BYTES)
        at, index, *_ = pass_messages(self._window, start, self._salt, self.position, index, 0, None)
        self.position += at - start
        return index

    def run_from(self, frame: Frame) -> Run:
        """Move behind messages that follow a frame of :meth:`frames` and are as it is, as many as are in the window.

        All of them are messages that are no batch, or in the middle of one. They pass the checks of :meth:`next`.
        """
        ends, mark, timestamp, alike = [frame.end], frame.durable_mark, frame.timestamp_ns, frame.flags & FLAGS_SINGLE
        if frame.kind != KIND_MESSAGE or alike not in _ALIKE:
            return Run(ends, mark, timestamp, timestamp)
        start = self._load(FRAME_HEADER_BYTES)
        at, self.expected, highest, earliest, latest = pass_messages(
            self._window, start, self._salt, self.position, self.expected, alike, ends
        )
        self.position += at - start
        return Run(ends, max(mark, highest), min(timestamp, earliest), max(timestamp, latest))

    def skip_damage(self, index_min: int) -> Frame | None:
        """Return the next frame behind ``position`` that verifies and move behind it; None if there is none.

        ``index_min`` is the index of the first message that is missing.
        """
        damaged_from = self.position
        start = damaged_from + 1
        while start < self._end:
            window = self._file.read_at(min(WINDOW_BYTES, self._end - start), start)
            if window == _ZEROS:  # reserved space, never written; most of a new file
                start += WINDOW_BYTES
                continue
            index_max = index_min + (start + len(window) - damaged_from) // FRAME_HEADER_BYTES
            if self._is_merged:
                index_max = MESSAGES_MAX
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

    def frames(self, expected: int = 0, *, is_ordered: bool = True) -> Iterator[Frame | Gap]:
        """Yield all good frames and the gaps between them; last comes the gap at the end, which may have no bytes.

        ``expected`` is the index of the first frame. Unless ``is_ordered``, any index will do. Between two of them
        :meth:`run_from` may be called.
        """
        self.expected = expected
        while True:
            position = self.position
            try:
                frame = self.next()
                index, expected = frame.index, self.expected
                if is_ordered and index != expected and (index < expected or not self._is_merged):
                    raise FrameError
            except FrameError:
                self.position = position
                gap = self.gap(self.expected)
                yield gap
                if gap.frame is None:
                    return
                frame = gap.frame
            self.expected = frame.index + (frame.kind == KIND_MESSAGE)  # next_index would be a call for every frame
            yield frame

    def gap(self, expected: int) -> Gap:
        """Return the gap at ``position``, where no frame of the index ``expected`` is; move behind the frame after it.

        A frame of a higher index is that frame itself, and the gap has no bytes.
        """
        position, reason, stray_index = self.position, "", 0
        frame: Frame | None = None
        try:
            frame = self.next()
            stray_index = frame.index
        except FrameError as error:
            reason = str(error)
        if frame is None or frame.index <= expected:
            self.position = position
            frame = self.skip_damage(expected)
        return Gap(position, self._end if frame is None else frame.position, frame, reason, stray_index)

    def past_damage(self) -> Iterator[Frame]:
        """Yield all readable frames up to the end, skipping damage between them."""
        return (each for each in self.frames(is_ordered=False) if isinstance(each, Frame))

    def past_messages(self) -> Iterator[Frame]:
        """Yield all readable frames that are no messages, skipping damage between them."""
        for frame in self.past_damage():
            if frame.kind == KIND_MESSAGE:
                self.run_from(frame)
            else:
                yield frame

    def _load(self, size: int) -> int:
        """Load ``size`` bytes from ``position`` into the window, as far as the file has them."""
        at = self.position - self._window_start
        if not 0 <= at <= len(self._window) - size:
            wanted = min(max(size, WINDOW_BYTES), max(0, self._end - self.position))
            self._window = self._file.read_at(wanted, self.position)
            self._window_start = self.position
            at = 0
        return at


def claimed_frames(file: ReadableFile, position: int, end: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield position, end, kind, flags and index of frames from their headers, unverified.

    It ends in front of bytes that cannot be a header, or if the frame would end behind ``end``.
    """
    window, start = b"", position
    while position + FRAME_HEADER_BYTES <= end:
        at = position - start
        if at + FRAME_HEADER_BYTES > len(window):
            window, start, at = file.read_at(min(WINDOW_BYTES, end - position), position), position, 0
            if len(window) < FRAME_HEADER_BYTES:
                return
        stx, size, _, kind, flags, _, _, index, _, _ = FRAME_HEADER.unpack_from(window, at)
        behind = position + FRAME_SIZE_END + size
        if stx != STX or size < RECORD_SIZE_MIN or behind > end:
            return
        yield position, behind, kind, flags, index
        position = behind


def first_message(file: ReadableFile, header: DataFileHeader) -> Frame | None:
    """Return the first message of a data file, or None if it cannot be read; only few carried decisions precede it."""
    size = file.size()
    for end in (min(FRAMES_START + _FIRST_BYTES, size), size):
        scanner = FrameScanner(file, header.salt, FRAMES_START, end)
        with suppress(FrameError):
            for _ in range(_FIRST_FRAMES):
                if (frame := scanner.next()).kind == KIND_MESSAGE:
                    return frame
    return None
