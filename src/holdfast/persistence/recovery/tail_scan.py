"""Finds the end of the log after a crash: which frames of the last data file count, and which bytes are damage or torn.

The rules, docs/format.md, "Recovery":

* A **witness** is a position below which everything was on the disk once: the synced end in ``write.mark``, or the
  highest durable mark that any frame of the file carries.
* Bad bytes below the witness hit acknowledged data. They are reported, and reading continues at the next good frame.
* Bad bytes above it are a torn tail. After a power cut, unsynced writes are there in any order, with holes: frames
  behind the first bad one do not count, even good ones. Nor does a batch without its last frame.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.persistence.filesystem.storage import File
from holdfast.persistence.format.constants import (
    COMPATIBLE_BORN_SEALED,
    FLAG_CLEAN_CLOSE,
    FLAG_FIRST,
    FLAG_LAST,
    FLAG_PENDING_COMMIT_RECORDS,
    FRAME_HEADER,
    FRAME_HEADER_BYTES,
    FRAME_SIZE_END,
    FRAMES_START,
    KIND_MARK,
    KIND_MESSAGE,
    STX,
)
from holdfast.persistence.format.file_header import DataFileHeader
from holdfast.persistence.format.framing import Frame, FrameError
from holdfast.persistence.format.report import DAMAGED, UNSYNCED_OR_DAMAGED, Damage
from holdfast.persistence.log.watermark import Watermark
from holdfast.persistence.segment.frame_scanner import FrameScanner, Gap
from holdfast.persistence.segment.frame_trailer import read_seal


@dataclass(slots=True)
class TailScan:
    """The result of the scan.

    Attributes
    ----------
    end, message_count : int
        Position behind the last frame that counts, and the messages before that in the file.
    witness : int
        Below this position everything was durable before the crash.
    recovered_count : int
        Messages that count and are above the witness.
    torn_bytes : int
        Bytes of frames behind the end that were begun and do not count.
    timestamp_ns : int
        Latest timestamp seen.
    clean : bool
        The file ends with the mark of a clean close, and with nothing behind it; or it was already sealed.
    is_sealed : bool
        Nothing may be appended to it.
    redo : int
        Pending commit records are at or behind this position.
    damage : list of Damage
        Bad bytes below the witness.
    """

    end: int
    message_count: int
    witness: int
    timestamp_ns: int
    recovered_count: int = 0
    torn_bytes: int = 0
    clean: bool = False
    is_sealed: bool = False
    redo: int = FRAMES_START
    damage: list[Damage] = field(default_factory=list)

    def is_settled(self, size: int) -> bool:
        """Whether an earlier recovery has finished, and nothing was written since."""
        return self.end == self.witness == size and not self.damage


def scan_tail(file: File, header: DataFileHeader, path: Path, mark: Watermark | None) -> TailScan:
    """Find the end of the log in its last data file.

    Parameters
    ----------
    file, header, path
        The last data file.
    mark : Watermark or None
        The contents of ``write.mark``, if it names this very file.
    """
    size = file.size()
    redo = mark.redo if mark is not None else FRAMES_START
    born_sealed = bool(header.features & COMPATIBLE_BORN_SEALED)
    seal = read_seal(file, header) if born_sealed else None
    if seal is not None:
        timestamp = max(seal.timestamp_max_ns, header.base_timestamp_ns)
        return TailScan(size, seal.message_count, size, timestamp, clean=True, is_sealed=True)
    closed = _clean_close(file, header, size)
    if closed is not None:
        redo = redo if closed.flags & FLAG_PENDING_COMMIT_RECORDS else size
        return TailScan(size, closed.index, size, closed.timestamp_ns, clean=True, redo=redo)
    scan = TailScan(FRAMES_START, 0, size if born_sealed else FRAMES_START, header.base_timestamp_ns, redo=redo)
    if mark is not None and mark.synced >= FRAMES_START:
        scan.witness = max(scan.witness, mark.synced)
        if mark.synced <= size:
            scan.end, scan.message_count = mark.synced, mark.synced_count
            scan.timestamp_ns = max(scan.timestamp_ns, mark.timestamp_ns)
    _Scan(file, header, path, size, scan, mark).run()
    return scan


def _clean_close(file: File, header: DataFileHeader, size: int) -> Frame | None:
    """Return the mark frame that ends the file, if one does."""
    if size < FRAMES_START + FRAME_HEADER_BYTES:
        return None
    try:
        frame = FrameScanner(file, header.salt, size - FRAME_HEADER_BYTES, size).next()
    except FrameError:
        return None
    return frame if frame.kind == KIND_MARK and frame.flags & FLAG_CLEAN_CLOSE else None


class _Scan:
    """The walk itself; results go into ``found``."""

    def __init__(
        self, file: File, header: DataFileHeader, path: Path, size: int, found: TailScan, mark: Watermark | None
    ) -> None:
        self._file = file
        self._header = header
        self._path = path
        self._size = size
        self._found = found
        self._mark = mark
        self._expected = found.message_count
        self._in_batch = False
        self._message_ends = array("Q")
        self._scanner = FrameScanner(file, header.salt, found.end, size)

    def run(self) -> None:
        self._walk()
        found = self._found
        below = [bisect_right(self._message_ends, position) for position in (found.witness, found.end)]
        found.recovered_count = max(0, below[1] - below[0])
        found.torn_bytes = max(0, self._scanner.position - found.end) + self._begun_bytes()

    def _begun_bytes(self) -> int:
        """Return the bytes of the frame that was being written at the end of the walk; not those of an older life."""
        position = self._scanner.position
        data = self._file.read_at(FRAME_HEADER_BYTES, position)
        if len(data) < FRAME_HEADER_BYTES:
            return len(data.rstrip(b"\0"))
        stx, size, _, _, _, _, _, index, _, timestamp = FRAME_HEADER.unpack(data)
        if stx != STX:
            return 0
        if index != self._expected or timestamp < self._header.base_timestamp_ns:
            begun = len(data.rstrip(b"\0"))
            return begun if begun < FRAME_HEADER_BYTES else 0
        return min(FRAME_SIZE_END + int(size), self._size - position)

    def _walk(self) -> None:
        looked_ahead = False
        for each in self._scanner.frames(self._expected):
            if isinstance(each, Frame):
                if not self._accept(each):
                    return
                continue
            if not looked_ahead:
                looked_ahead = True
                self._found.witness = max(self._found.witness, self._highest_mark_behind(each))
            if each.position >= self._found.witness:
                self._scanner.position = each.position
                return
            if not self._pass_damage(each):
                return

    def _accept(self, frame: Frame) -> bool:
        """Count a good frame, and those behind it that are as it is; False if it cannot belong to the log."""
        found, begins = self._found, bool(frame.flags & FLAG_FIRST)
        if frame.end > found.witness and begins == self._in_batch:
            found.witness = max(found.witness, frame.durable_mark)
            return False
        run = self._scanner.run_from(frame)
        if frame.kind == KIND_MESSAGE:
            self._expected = frame.index + len(run.ends)
            self._message_ends.extend(run.ends)
        self._in_batch = not frame.flags & FLAG_LAST
        found.timestamp_ns = max(found.timestamp_ns, run.latest)
        # The mark of a frame is below it, so none of the run raises the witness above any of the run.
        counting = bisect_right(run.ends, found.witness) if self._in_batch else len(run.ends)
        found.witness = max(found.witness, run.durable_mark)
        if counting:
            found.end, found.message_count = run.ends[counting - 1], self._expected - len(run.ends) + counting
        return True

    def _pass_damage(self, gap: Gap) -> bool:
        """Report bad bytes below the witness; False if the good frame behind them does not count."""
        found, frame, expected = self._found, gap.frame, self._expected
        resume, verdict = found.witness, DAMAGED
        if frame is not None and frame.position <= found.witness:  # no byte above the witness is bad
            resume, next_index = frame.position, frame.index
        elif self._mark is not None and found.witness == self._mark.synced:
            next_index = self._mark.synced_count
        else:  # their number below the witness is unknown; the frame behind it is an upper bound
            verdict = UNSYNCED_OR_DAMAGED
            next_index = frame.index if frame is not None else expected
        next_index = max(next_index, expected)
        first = self._header.first_offset
        lost = range(first + expected, first + next_index)
        reason = gap.reason or f"message {gap.stray_index} of the file is in the place of {expected}"
        found.damage.append(Damage(self._path, gap.position, resume - gap.position, lost, verdict, reason))
        self._expected = next_index
        self._in_batch = False
        if frame is None or frame.position > found.witness:
            found.end = min(found.witness, self._size)
            found.message_count = next_index
        return frame is None or frame.position <= found.witness

    def _highest_mark_behind(self, gap: Gap) -> int:
        """Return the highest durable mark of the good frames behind a gap."""
        scanner = FrameScanner(self._file, self._header.salt, gap.resume, self._size)
        return max((frame.durable_mark for frame in scanner.past_damage()), default=0)
