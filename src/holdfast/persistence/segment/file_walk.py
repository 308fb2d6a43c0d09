"""Walks all of one data file for ``verify``: every frame, the order of the indexes, and the seal."""

from __future__ import annotations

from array import array
from pathlib import Path

from holdfast.persistence.filesystem.storage import File
from holdfast.persistence.format.constants import FRAMES_START, KIND_MESSAGE, KIND_SEAL
from holdfast.persistence.format.file_header import DataFileHeader
from holdfast.persistence.format.framing import Frame
from holdfast.persistence.format.report import DAMAGED, Damage, count_of
from holdfast.persistence.format.seal import Seal
from holdfast.persistence.segment.frame_scanner import FrameScanner, Gap, Run


class FileWalk:
    """One walk; results are in the attributes.

    Parameters
    ----------
    file, header, path
        The data file.
    end : int
        The position behind its last byte that counts.
    message_count : int or None
        Messages it should hold; None if unknown.

    Attributes
    ----------
    frame_count, message_count : int
        Frames and messages that verified.
    damage : list of Damage
        The bytes that did not verify.
    """

    def __init__(
        self, file: File, header: DataFileHeader, path: Path, end: int, message_count: int | None = None
    ) -> None:
        self._file = file
        self._header = header
        self._path = path
        self._end = end
        self._expected_count = message_count
        self._positions = array("Q")  # of the messages that are there
        self._gaps: list[range] = []  # of the indexes that are not
        self._count = 0
        self._earliest, self._latest = 2**64 - 1, 0  # timestamps of messages, as in the seal; a base may be later
        self.frame_count = 0
        self.message_count = 0
        self.damage: list[Damage] = []

    @property
    def end_offset(self) -> int:
        """Offset behind the last message, lost ones included."""
        return self._header.first_offset + self._count

    @property
    def end_position(self) -> int:
        """Position behind the last byte that was read."""
        return self._end

    def run(self) -> None:
        """Read the file from its first frame to its end."""
        count, is_merged = self._expected_count, self._header.is_merged
        scanner = FrameScanner(self._file, self._header.salt, FRAMES_START, self._end, is_merged=is_merged)
        for each in scanner.frames():
            if isinstance(each, Gap):
                self._pass(each)
                continue
            run = scanner.run_from(each)
            self.frame_count += len(run.ends)
            if each.index > self._count:  # of a merged file: else there was a gap before it
                self._leave_out(each.index)
            if each.kind == KIND_MESSAGE:
                self._take(each.position, run)
            elif each.kind == KIND_SEAL:
                self._check_seal(each)
        if count is not None and self._count < count:
            self._lose(scanner.position, 0, count, "the file ends too early")
        elif count is not None and self._count > count:
            reason = f"the file holds {self._count} messages where {count} should be"
            self._report(scanner.position, 0, range(0), reason)

    def _pass(self, gap: Gap) -> None:
        """Report a gap, unless it is the end of the file."""
        if gap.position < self._end:
            count = gap.frame.index if gap.frame is not None else self._expected_count or self._count
            reason = gap.reason or f"index {gap.stray_index} is in the place of {self._count}"
            self._lose(gap.position, gap.resume - gap.position, count, reason)

    def _take(self, position: int, run: Run) -> None:
        self.message_count += len(run.ends)
        self._count += len(run.ends)
        self._positions.append(position)
        self._positions.extend(run.ends[:-1])  # each message starts behind the one before it
        self._earliest = min(self._earliest, run.earliest)
        self._latest = max(self._latest, run.latest)

    def _check_seal(self, frame: Frame) -> None:
        """Compare the seal with the frames; a file that was closed and opened again has a seal that knows less."""
        try:
            seal = Seal.decode(frame.payload)
        except ValueError as error:
            self._report(frame.position, frame.end - frame.position, range(0), f"the seal cannot be read: {error}")
            return
        wrong = []
        if seal.message_count != self._count:
            wrong.append(f"{seal.message_count} messages instead of {self._count}")
        if self._header.is_merged and self._header.merged_count != self.message_count and not self.damage:
            self._report(0, 0, range(0), f"{self.message_count} messages instead of {self._header.merged_count}")
        if any(not self._is_at(index, position) for index, position in seal.entries):
            wrong.append("positions of other frames")
        if seal.timestamp_min_ns > self._earliest or seal.timestamp_max_ns < self._latest:
            wrong.append("timestamps that do not span those of the messages")
        if wrong:
            reason = f"the seal names {' and '.join(wrong)}"
            self._report(frame.position, frame.end - frame.position, range(0), reason)

    def _is_at(self, index: int, position: int) -> bool:
        if index >= self._count or any(index in gap for gap in self._gaps):
            return index < self._count
        missing = sum(count_of(gap) for gap in self._gaps if gap.stop <= index)
        return self._positions[index - missing] == position

    def _lose(self, position: int, size: int, count: int, reason: str) -> None:
        """Report bad bytes, and the messages between those read so far and ``count``."""
        first, gap = self._header.first_offset, range(self._count, max(self._count, count))
        self._report(position, size, range(first + gap.start, first + gap.stop), reason)
        if gap:
            self._gaps.append(gap)
            self._count = gap.stop

    def _leave_out(self, count: int) -> None:
        """Note that a merged file has not the messages between those read so far and ``count``."""
        self._gaps.append(range(self._count, count))
        self._count = count

    def _report(self, position: int, size: int, offsets: range, reason: str) -> None:
        self.damage.append(Damage(self._path, position, size, offsets, DAMAGED, reason))
