"""Reads a segment of the prepared log: its entries, what ended, and its damage. docs/format.md, "Prepared log".

The **witness** is the position below which everything was on the disk once. A bad frame above it is a torn tail, one
below it is damage.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.errors import CorruptionError
from holdfast.persistence.filesystem.storage import MISSING, ReadableFile, Storage
from holdfast.persistence.format.checksum import crc32c
from holdfast.persistence.format.commit_record import CommitRecord
from holdfast.persistence.format.constants import (
    FLAG_FIRST,
    FLAG_LAST,
    FLAGS_SINGLE,
    FRAMES_START,
    KIND_BEGIN,
    KIND_COMMIT_RECORD,
    KIND_ENDED,
    KIND_MESSAGE,
    SYNCED_END,
    SYNCED_END_POSITION,
)
from holdfast.persistence.format.file_header import SegmentHeader, block_copies
from holdfast.persistence.format.framing import Frame, FrameError
from holdfast.persistence.format.report import DAMAGED, Damage
from holdfast.persistence.prepared_log.entry import Entry, begin_bytes, decode_begin, decode_ended
from holdfast.persistence.segment.frame_scanner import WINDOW_BYTES, FrameScanner


@dataclass(frozen=True, slots=True)
class DamagedEntry:
    """An entry that was durable once and does not verify: it can be aborted, not committed.

    ``whole``: it verifies, and damage beside it may hide that it was decided; an operator may commit it all the same.
    """

    id: str
    nonce: bytes
    timestamp_ns: int
    sequence: int
    damage: Damage
    whole: Entry | None = None


@dataclass(slots=True)
class SegmentContent:
    """What a segment says.

    Attributes
    ----------
    path : Path
        The segment.
    header : SegmentHeader
        Its header.
    entries : list of Entry
        The whole ones, in order; they are undecided unless something says otherwise.
    damaged_entries : list of DamagedEntry
        Those whose first or last frame verifies, and that were durable.
    ended : dict of bytes to int
        What became of entries, of this segment or of earlier ones, by nonce.
    lost : list of Damage
        Bad bytes below the witness that belong to no entry known: entries may be missing.
    witness : int
        Everything below it was on the disk once.
    end : int
        Behind the last byte that counts.
    tail : int
        Where the bytes begin that are above the witness and do not count; 0 if there are none.
    """

    path: Path
    header: SegmentHeader
    entries: list[Entry] = field(default_factory=list)
    damaged_entries: list[DamagedEntry] = field(default_factory=list)
    ended: dict[bytes, int] = field(default_factory=dict)
    lost: list[Damage] = field(default_factory=list)
    witness: int = FRAMES_START
    end: int = FRAMES_START
    tail: int = 0

    def all_entries(self) -> list[Entry | DamagedEntry]:
        """Return the whole entries, and then those that are damaged."""
        return [*self.entries, *self.damaged_entries]


@dataclass(frozen=True, slots=True)
class _Ended:
    """An "ended" frame."""

    end: int
    nonce: bytes
    outcome: int


@dataclass(frozen=True, slots=True)
class _Bad:
    """Bytes that are no entry: whose they are, if a frame says so, and whether of that one only."""

    position: int
    resume: int
    reason: str
    id: str = ""
    nonce: bytes = b""
    timestamp_ns: int = 0
    hides_more: bool = False


_Part = Entry | _Ended | _Bad


def read_segment(storage: Storage, path: Path, queue_id: bytes) -> SegmentContent:
    """Return what a segment says.

    Raises
    ------
    CorruptionError
        Its header cannot be read, or it belongs to another queue or in another place.
    UnsupportedVersionError
        A Holdfast of another format version wrote it.
    OSError
        It cannot be read.
    """
    with storage.open(path, writable=False) as file:
        start = file.read_at(FRAMES_START, 0)
        header = SegmentHeader.decode(block_copies(start), str(path))
        if header.queue_id != queue_id:
            raise CorruptionError(f"{path} belongs to another queue; take it out of prepared/", path=str(path))
        own_name = f"{header.sequence:010d}.log"
        if path.name != own_name:
            raise CorruptionError(f"{path} is named {own_name} by its header; give it that name back", path=str(path))
        walk = _Walk(file, header, path)
        parts = list(walk.parts())
    content = SegmentContent(path, header, witness=max(walk.mark, synced_end(start, header.salt)))
    for part in parts:
        if isinstance(part, _Bad):
            if part.position >= content.witness:
                content.tail = part.position
                break  # a torn tail: nothing behind it counts
            _note_damage(content, part)
            content.end = min(part.resume, content.witness)
        elif isinstance(part, Entry):
            content.entries.append(part)
            content.end = part.end
        else:
            content.ended[part.nonce] = part.outcome
            content.end = part.end
    return content


def torn_bytes(storage: Storage, content: SegmentContent) -> int:
    """Return how many bytes a torn tail has: what is written behind the end of a segment. Raises ``OSError``."""
    found = 0
    if content.tail:
        with suppress(*MISSING), storage.open(content.path, writable=False) as file:
            for position in range(content.tail, file.size(), WINDOW_BYTES):
                written = len(file.read_at(WINDOW_BYTES, position).rstrip(b"\0"))
                found = position + written - content.tail if written else found
    return found


def synced_end(start: bytes, salt: int) -> int:
    """Return the synced end that the first bytes of a segment hold; ``FRAMES_START`` if it does not verify."""
    position, checksum = SYNCED_END.unpack_from(start, SYNCED_END_POSITION)
    is_good = checksum == _synced_end_checksum(position, salt)
    return max(FRAMES_START, position) if is_good else FRAMES_START


def encode_synced_end(position: int, salt: int) -> bytes:
    """Return the bytes that say so: at ``SYNCED_END_POSITION``."""
    return SYNCED_END.pack(position, _synced_end_checksum(position, salt))


def _synced_end_checksum(position: int, salt: int) -> int:
    return crc32c(salt, position.to_bytes(8, "little"))


def _note_damage(content: SegmentContent, bad: _Bad) -> None:
    damage = Damage(content.path, bad.position, bad.resume - bad.position, range(0), DAMAGED, bad.reason)
    if bad.nonce:
        found = DamagedEntry(bad.id, bad.nonce, bad.timestamp_ns, content.header.sequence, damage)
        content.damaged_entries.append(found)
    if not bad.nonce or bad.hides_more:
        content.lost.append(damage)


class _Walk:
    """Walks the frames of a segment, and puts them together."""

    def __init__(self, file: ReadableFile, header: SegmentHeader, path: Path) -> None:
        self._header = header
        self._path = path
        self._end = file.size()
        self._scanner = FrameScanner(file, header.salt, FRAMES_START, self._end)
        self.mark = FRAMES_START

    def parts(self) -> Iterator[_Part]:
        """Yield what the segment is made of, in order; the last part is bad bytes, up to the end of the file."""
        while True:
            position = self._scanner.position
            try:
                frame = self._next()
                part = self._entry(frame) if frame.kind == KIND_BEGIN else self._ended(frame)
            except ValueError as error:
                bad = self._bad(position, str(error))
                yield bad
                if bad.resume >= self._end:
                    return
                self._scanner.position = bad.resume
            else:
                yield part

    def _next(self) -> Frame:
        frame = self._scanner.next()
        self.mark = max(self.mark, frame.durable_mark)
        return frame

    def _ended(self, frame: Frame) -> _Ended:
        if frame.kind != KIND_ENDED or frame.flags & FLAGS_SINGLE != FLAGS_SINGLE:
            raise FrameError(f"a frame of kind {frame.kind:#x} does not belong here")
        nonce, outcome = decode_ended(frame.payload)
        return _Ended(frame.end, nonce, outcome)

    def _entry(self, begin: Frame) -> Entry | _Bad:
        """Return the entry that a frame begins; its bytes if it is not whole."""
        nonce, size, transaction_id = decode_begin(begin.payload)
        if begin.flags & FLAGS_SINGLE != FLAG_FIRST or not begin.end < begin.position + size <= self._end:
            raise FrameError("an entry that does not fit")
        start, end = begin.end, begin.position + size
        try:
            commit = self._commit_frame()
            record = CommitRecord.decode(commit.payload)
            if (record.id, record.nonce, record.count, commit.end) != (transaction_id, nonce, commit.index, end):
                raise FrameError("the commit record is one of another entry")
        except ValueError as error:
            bad = _Bad(begin.position, end, str(error), transaction_id, nonce, begin.timestamp_ns)
            self._scanner.position = end
            return bad
        sequence, salt = self._header.sequence, self._header.salt
        return Entry(self._path, sequence, salt, begin.position, end, start, record, commit.position)

    def _commit_frame(self) -> Frame:
        """Return the frame behind the messages of an entry; raises FrameError."""
        index = self._scanner.pass_messages(0)
        while (frame := self._next()).kind != KIND_COMMIT_RECORD:
            if frame.kind != KIND_MESSAGE or frame.index != index:
                raise FrameError(f"a frame of kind {frame.kind:#x} and index {frame.index} does not belong here")
            index = self._scanner.pass_messages(index + 1)
        if frame.flags & FLAGS_SINGLE != FLAG_LAST or frame.index != index:
            raise FrameError("the commit record speaks of other messages")
        return frame

    def _bad(self, position: int, reason: str) -> _Bad:
        """Return bad bytes, up to the next frame that begins a part, or to the end of the entry that they belong to."""
        self._scanner.position = position
        frame, start, end = self._skip(), 0, 0
        while frame is not None:
            if frame.kind in (KIND_BEGIN, KIND_ENDED):
                return _Bad(position, frame.position, reason)
            if frame.index == 0:
                start = frame.position  # of the first message; of the commit record if there is none
            elif frame.position != end:
                start = 0
            end = frame.end
            record = CommitRecord.decode_any(frame.payload) if frame.kind == KIND_COMMIT_RECORD else None
            if record is not None:
                begins_here = start - begin_bytes(record.id) == position
                named = (record.id, record.nonce, record.timestamp_ns)
                return _Bad(position, end, reason, *named, hides_more=not begins_here)
            frame = self._following()
        return _Bad(position, self._end, reason)

    def _following(self) -> Frame | None:
        """Return the next frame that verifies; None if there is none."""
        try:
            return self._next()
        except FrameError:
            return self._skip()

    def _skip(self) -> Frame | None:
        """Return the next frame behind the one that should be here; None if there is none."""
        frame = self._scanner.skip_damage(0)
        if frame is not None:
            self.mark = max(self.mark, frame.durable_mark)
        return frame
