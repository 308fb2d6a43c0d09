"""Reads batch files: the puts of one transaction, on the disk and not in the log. docs/format.md, "Batch files".

What a batch decides is found from the end of its file: the seal by its trailer, the decision before it by its own. A
crash may have left other things behind the decision; then the file is walked from its start, and the batch ends at its
decision. Messages are read only by :func:`messages` and :func:`verify_batch`, and only these find damage in them.

The functions that take a path raise a plain ``OSError`` where the file cannot be read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import CorruptionError
from holdfast.persistence.filesystem.storage import File, Storage
from holdfast.persistence.format.commit_record import CommitRecord
from holdfast.persistence.format.constants import (
    DATA_MAGIC,
    FLAG_FIRST,
    FLAG_LAST,
    FLAGS_SINGLE,
    FRAMES_START,
    HEADER_BLOCK_BYTES,
    INDEX_STRIDE_BYTES,
    KIND_DECISION,
    KIND_MESSAGE,
    KIND_SEAL,
)
from holdfast.persistence.format.file_header import DataFileHeader, block_copies, damaged_copies
from holdfast.persistence.format.framing import Frame
from holdfast.persistence.format.report import DAMAGED, UNSYNCED_OR_DAMAGED, Damage
from holdfast.persistence.format.seal import Seal
from holdfast.persistence.segment.file_walk import FileWalk
from holdfast.persistence.segment.frame_scanner import FrameScanner
from holdfast.persistence.segment.frame_trailer import frame_before, read_seal

_ENDS_TWICE = "its end speaks of another decision than the one behind its messages"


@dataclass(frozen=True, slots=True)
class BatchSummary:
    """What a batch file says of itself.

    Attributes
    ----------
    path : Path
        The file.
    header : DataFileHeader
        Its header.
    decision : CommitRecord
        What ends the batch.
    seal : Seal
        How many messages there are, and when they were put.
    decision_position, decision_end : int
        Where the decision's frame stands, and the byte behind it: message frames end at the one, the batch at the
        other.
    size_bytes : int
        Size of the file.
    is_sealed : bool
        Whether the file ends with its seal, right behind the decision. One that does not has to go through
        ``append_carried`` before it can be adopted.
    """

    path: Path
    header: DataFileHeader
    decision: CommitRecord
    seal: Seal
    decision_position: int
    decision_end: int
    size_bytes: int
    is_sealed: bool

    @property
    def message_count(self) -> int:
        """Messages in the batch."""
        return self.seal.message_count

    @property
    def frames_bytes(self) -> int:
        """Bytes of the messages with their frames."""
        return self.decision_position - FRAMES_START

    @property
    def timestamp_max_ns(self) -> int:
        """Latest timestamp of a message; 0 where there is none."""
        return self.seal.timestamp_max_ns


class BadBatchError(ValueError):
    """A file does not hold a whole batch. Attributes: ``position`` of what does not verify, ``reason``."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(reason)
        self.position = position
        self.reason = reason


def read_summary(storage: Storage, path: Path, queue_id: bytes) -> BatchSummary:
    """Return what a batch file says of itself; its messages are not looked at unless its end is damaged.

    Raises
    ------
    CorruptionError
        Nothing in it ends a batch, or it belongs to another queue.
    UnsupportedVersionError
        A Holdfast of another format version wrote it.
    """
    with storage.open(path, writable=False) as file:
        header = read_header(file, path, queue_id)
        try:
            return summarise(file, header, path)
        except BadBatchError as error:
            raise _corruption(path, error) from None


def check_batch_name(batch: BatchSummary, transaction_id: str) -> None:
    """Raise CorruptionError where a prepared file has another name than the transaction in it."""
    if batch.decision.id != transaction_id:
        raise CorruptionError(
            f"{batch.path} holds transaction {batch.decision.id}; give it the name of that one, or abort it",
            path=str(batch.path),
            position=batch.decision_position,
        )


def messages(storage: Storage, path: Path, queue_id: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield payload and encoded headers of every message in order, each checked.

    Nothing says beforehand that all of them are good: whoever must not do half of it reads all of them first.

    Raises
    ------
    CorruptionError
        At the first one that does not verify, or where the decision is not right behind the last one, or is another one
        than the end of the file speaks of.
    UnsupportedVersionError
        A Holdfast of another format version wrote the file.
    """
    with storage.open(path, writable=False) as file:
        header = read_header(file, path, queue_id)
        try:
            for frame in _batch_frames(file, header):
                if frame.kind == KIND_MESSAGE:
                    yield frame.payload, frame.headers
            ending = _from_the_end(file, header, path)
            if ending is not None and ending.decision != CommitRecord.decode(frame.payload):
                raise BadBatchError(frame.end, _ENDS_TWICE)
        except BadBatchError as error:
            raise _corruption(path, error) from None


def verify_batch(storage: Storage, path: Path, queue_id: bytes) -> list[Damage]:
    """Read all of a batch file and return what does not verify, in order; offsets are counted from 0.

    Damage that names no offsets costs no message. Where it is one copy of the header or what stands behind the
    decision, the batch still counts, and :func:`messages` reads all of it.

    Raises
    ------
    UnsupportedVersionError
        A Holdfast of another format version wrote it.
    """
    with storage.open(path, writable=False) as file:
        size = file.size()
        try:
            header = read_header(file, path, queue_id)
        except CorruptionError as error:
            return [Damage(path, error.position, size, range(0), DAMAGED, str(error))]
        copies = damaged_copies(file.read_at(FRAMES_START, 0), DATA_MAGIC, str(path))
        damage = [Damage(path, at, HEADER_BLOCK_BYTES, range(0), DAMAGED, "a copy of the header") for at in copies]
        try:
            last = _verified_decision(file, header)
        except BadBatchError as error:
            seal = read_seal(file, header)
            walk = FileWalk(file, header, path, size, None if seal is None else seal.message_count)
            walk.run()
            found = [each for each in walk.damage if each.position <= error.position]  # what is behind may be carried
            where = Damage(path, error.position, size - error.position, range(0), DAMAGED, error.reason)
            return damage + (walk.damage if found else [where, *walk.damage])
        ending = _from_the_end(file, header, path)
        if ending is None:
            reason = "no seal that fits ends the file"
            damage.append(Damage(path, last.end, size - last.end, range(0), UNSYNCED_OR_DAMAGED, reason))
        elif ending.decision != CommitRecord.decode(last.payload):
            lost = range(ending.message_count)
            damage.append(Damage(path, last.end, size - last.end, lost, DAMAGED, _ENDS_TWICE))
        return damage


def decisions_from_behind(file: File, header: DataFileHeader) -> list[CommitRecord]:
    """Return the decisions in a data file that was a batch file, in the order of the log, each with its first offset.

    Its own one ends its messages; those carried into it stand behind. They are found from the seal backwards. Only
    where that meets damage is the file read from its start, and what can be read of it is returned.
    """
    frames: list[Frame] = []
    size = file.size()
    seal = frame_before(file, header.salt, size, KIND_SEAL)
    end = size if seal is None else seal.position
    while not (frames and _ends_batch(frames[0])):
        frame = frame_before(file, header.salt, end, KIND_DECISION)
        if frame is None:
            frames = _decision_frames(file, header, size)
            break
        frames.insert(0, frame)
        end = frame.position
    return [decision for frame in frames if (decision := _placed(frame, header)) is not None]


def read_header(file: File, path: Path, queue_id: bytes) -> DataFileHeader:
    """Return the header of an open batch file; raises CorruptionError or UnsupportedVersionError."""
    header = DataFileHeader.decode(block_copies(file.read_at(FRAMES_START, 0)), str(path))
    if header.queue_id != queue_id:
        raise CorruptionError(f"{path} belongs to another queue; take it out of prepared/", path=str(path))
    return header


def summarise(file: File, header: DataFileHeader, path: Path) -> BatchSummary:
    """Return what an open batch file says of itself; raises BadBatchError."""
    return _from_the_end(file, header, path) or _from_the_start(file, header, path)


# -- Two ways to the decision ----------------------------------------------------------------------------------------


def _from_the_end(file: File, header: DataFileHeader, path: Path) -> BatchSummary | None:
    size = file.size()
    frame = frame_before(file, header.salt, size, KIND_SEAL)
    if frame is None:
        return None
    sealed_from = frame.position
    try:
        seal = Seal.decode(frame.payload)
        while (frame := frame_before(file, header.salt, frame.position, KIND_DECISION)) is not None:
            if _ends_batch(frame):
                decision = CommitRecord.decode(frame.payload)
                fits = decision.count == frame.index == seal.message_count
                return _summary(path, header, frame, decision, seal, size, sealed_from) if fits else None
    except ValueError:
        pass
    return None


def _from_the_start(file: File, header: DataFileHeader, path: Path) -> BatchSummary:
    entries: list[tuple[int, int]] = []
    earliest, latest = 2**64 - 1, 0
    for frame in _batch_frames(file, header):
        if frame.kind == KIND_MESSAGE:
            note_entry(entries, frame.index, frame.position)
            earliest, latest = min(earliest, frame.timestamp_ns), max(latest, frame.timestamp_ns)
    seal = Seal(frame.index, earliest if frame.index else 0, latest, tuple(entries))
    return _summary(path, header, frame, CommitRecord.decode(frame.payload), seal, file.size(), None)


def _summary(
    path: Path,
    header: DataFileHeader,
    frame: Frame,
    decision: CommitRecord,
    seal: Seal,
    size: int,
    sealed_from: int | None,
) -> BatchSummary:
    return BatchSummary(path, header, decision, seal, frame.position, frame.end, size, sealed_from == frame.end)


def _batch_frames(file: File, header: DataFileHeader) -> Iterator[Frame]:
    """Yield every message and then the decision; raises BadBatchError where something else stands."""
    scanner = FrameScanner(file, header.salt, FRAMES_START, file.size())
    index, kind = 0, KIND_MESSAGE
    while kind != KIND_DECISION:
        frame = _next(scanner, index)
        yield frame
        index, kind = index + 1, frame.kind


def _verified_decision(file: File, header: DataFileHeader) -> Frame:
    """Return the decision's frame: :func:`_batch_frames` for those who want nothing of the messages."""
    scanner = FrameScanner(file, header.salt, FRAMES_START, file.size())
    index = 0
    while (frame := _next(scanner, index)).kind != KIND_DECISION:
        index = scanner.pass_messages(index + 1)
    return frame


def _next(scanner: FrameScanner, index: int) -> Frame:
    """Return the next frame of a batch; raises BadBatchError where something else stands."""
    position = scanner.position
    try:
        frame = scanner.next()
        _check(frame, index)
    except ValueError as error:
        raise BadBatchError(position, str(error)) from None
    return frame


def _check(frame: Frame, index: int) -> None:
    """Raise ValueError where a frame that verifies is not the next one of a batch."""
    if frame.index != index:
        raise ValueError(f"index {frame.index} stands where {index} should")
    is_decision = frame.kind == KIND_DECISION
    flags = (0 if index else FLAG_FIRST) | (FLAG_LAST if is_decision else 0)
    if frame.kind not in (KIND_MESSAGE, KIND_DECISION) or frame.flags & FLAGS_SINGLE != flags:
        raise ValueError(f"a frame of kind {frame.kind:#x} with flags {frame.flags:#x} does not belong here")
    if is_decision and (count := CommitRecord.decode(frame.payload).count) != index:
        raise ValueError(f"the decision speaks of {count} messages, {index} are there")


def _ends_batch(frame: Frame) -> bool:
    """Tell a batch's own decision from those carried behind it."""
    return not frame.flags & FLAG_FIRST or frame.position == FRAMES_START


# -- Parts -----------------------------------------------------------------------------------------------------------


def note_entry(entries: list[tuple[int, int]], index: int, position: int) -> None:
    """Take up a message in the sparse index of a seal, where it is due; entries from this index on are replaced."""
    while entries and entries[-1][0] >= index:
        entries.pop()
    if not entries or position >= entries[-1][1] + INDEX_STRIDE_BYTES:
        entries.append((index, position))


def _decision_frames(file: File, header: DataFileHeader, size: int) -> list[Frame]:
    """Return all decision frames between the start and the end that can be read, past whatever is damaged."""
    frames = FrameScanner(file, header.salt, FRAMES_START, size).past_damage()
    return [frame for frame in frames if frame.kind == KIND_DECISION]


def _placed(frame: Frame, header: DataFileHeader) -> CommitRecord | None:
    try:
        decision = CommitRecord.decode(frame.payload)
    except ValueError:
        return None
    if decision.first_offset is not None:
        return decision
    return decision.placed(header.first_offset + frame.index - decision.count)


def _corruption(path: Path, error: BadBatchError) -> CorruptionError:
    return CorruptionError(
        f"{path} does not hold a whole batch: {error.reason} (at {error.position}); restore it or abort it",
        path=str(path),
        position=error.position,
    )
