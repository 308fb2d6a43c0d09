"""Reads batch files: the puts of one transaction, on the disk but not in the log. docs/format.md, "Batch files".

The commit record of a batch is found from the end of its file: the seal by its trailer, the record before it by its
own. A crash may have left other bytes behind the record; then the file is walked from its start, and the batch ends at
its record. Messages are read only by :func:`messages` and :func:`verify_batch`, and only these find damage in them.

The functions that take a path raise a plain ``OSError`` if the file cannot be read.
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
    KIND_COMMIT_RECORD,
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
    """The summary of a batch file.

    Attributes
    ----------
    path : Path
        The file.
    header : DataFileHeader
        Its header.
    commit_record : CommitRecord
        The commit record that ends the batch.
    seal : Seal
        The number of messages, and the times of their puts.
    commit_record_position, commit_record_end : int
        Start and end of the commit record's frame: message frames end at its start, the batch at its end.
    size_bytes : int
        Size of the file.
    is_sealed : bool
        Whether the file ends with its seal, right behind the commit record. A file that does not has to go through
        ``append_carried`` before it can be adopted.
    """

    path: Path
    header: DataFileHeader
    commit_record: CommitRecord
    seal: Seal
    commit_record_position: int
    commit_record_end: int
    size_bytes: int
    is_sealed: bool

    @property
    def message_count(self) -> int:
        """Messages in the batch."""
        return self.seal.message_count

    @property
    def frames_bytes(self) -> int:
        """Bytes of the messages with their frames."""
        return self.commit_record_position - FRAMES_START

    @property
    def timestamp_max_ns(self) -> int:
        """Latest timestamp of a message; 0 if there is none."""
        return self.seal.timestamp_max_ns


class BadBatchError(ValueError):
    """A file does not hold a whole batch. Attributes: ``position`` of the bad bytes, ``reason``."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(reason)
        self.position = position
        self.reason = reason


def read_summary(storage: Storage, path: Path, queue_id: bytes) -> BatchSummary:
    """Return the summary of a batch file; its messages are not read unless its end is damaged.

    Raises
    ------
    CorruptionError
        It has no commit record that ends a batch, or it belongs to another queue.
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
    """Raise CorruptionError if a prepared file has another name than the transaction in it."""
    if batch.commit_record.id != transaction_id:
        raise CorruptionError(
            f"{batch.path} holds transaction {batch.commit_record.id}; give it the name of that one, or abort it",
            path=str(batch.path),
            position=batch.commit_record_position,
        )


def messages(storage: Storage, path: Path, queue_id: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield payload and encoded headers of every message in order, each checked.

    A later message may be damaged: a caller that must process all or none reads all of them first.

    Raises
    ------
    CorruptionError
        At the first one that does not verify; or the commit record is not right behind the last one, or differs from
        the record at the end of the file.
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
            if ending is not None and ending.commit_record != CommitRecord.decode(frame.payload):
                raise BadBatchError(frame.end, _ENDS_TWICE)
        except BadBatchError as error:
            raise _corruption(path, error) from None


def verify_batch(storage: Storage, path: Path, queue_id: bytes) -> list[Damage]:
    """Read all of a batch file and return its damage, in order; offsets are counted from 0.

    Damage that names no offsets costs no message. If it is in one copy of the header or behind the commit record, the
    batch still counts, and :func:`messages` reads all of it.

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
            last = _verified_commit_record(file, header)
        except BadBatchError as error:
            seal = read_seal(file, header)
            walk = FileWalk(file, header, path, size, None if seal is None else seal.message_count)
            walk.run()
            found = [each for each in walk.damage if each.position <= error.position]  # those behind may be carried
            where = Damage(path, error.position, size - error.position, range(0), DAMAGED, error.reason)
            return damage + (walk.damage if found else [where, *walk.damage])
        ending = _from_the_end(file, header, path)
        if ending is None:
            reason = "no seal that fits ends the file"
            damage.append(Damage(path, last.end, size - last.end, range(0), UNSYNCED_OR_DAMAGED, reason))
        elif ending.commit_record != CommitRecord.decode(last.payload):
            lost = range(ending.message_count)
            damage.append(Damage(path, last.end, size - last.end, lost, DAMAGED, _ENDS_TWICE))
        return damage


def commit_records_from_behind(file: File, header: DataFileHeader) -> list[CommitRecord]:
    """Return the commit records in an adopted batch file, in the order of the log, each with its first offset.

    Its own record ends its messages; records carried into it are behind that. They are found from the seal backwards.
    Only if that meets damage is the file read from its start, and the readable records are returned.
    """
    frames: list[Frame] = []
    size = file.size()
    seal = frame_before(file, header.salt, size, KIND_SEAL)
    end = size if seal is None else seal.position
    while not (frames and _ends_batch(frames[0])):
        frame = frame_before(file, header.salt, end, KIND_COMMIT_RECORD)
        if frame is None:
            frames = _commit_record_frames(file, header, size)
            break
        frames.insert(0, frame)
        end = frame.position
    return [commit_record for frame in frames if (commit_record := _placed(frame, header)) is not None]


def read_header(file: File, path: Path, queue_id: bytes) -> DataFileHeader:
    """Return the header of an open batch file; raises CorruptionError or UnsupportedVersionError."""
    header = DataFileHeader.decode(block_copies(file.read_at(FRAMES_START, 0)), str(path))
    if header.queue_id != queue_id:
        raise CorruptionError(f"{path} belongs to another queue; take it out of prepared/", path=str(path))
    return header


def summarise(file: File, header: DataFileHeader, path: Path) -> BatchSummary:
    """Return the summary of an open batch file; raises BadBatchError."""
    return _from_the_end(file, header, path) or _from_the_start(file, header, path)


# -- Two ways to the commit record -----------------------------------------------------------------------------------


def _from_the_end(file: File, header: DataFileHeader, path: Path) -> BatchSummary | None:
    size = file.size()
    frame = frame_before(file, header.salt, size, KIND_SEAL)
    if frame is None:
        return None
    sealed_from = frame.position
    try:
        seal = Seal.decode(frame.payload)
        while (frame := frame_before(file, header.salt, frame.position, KIND_COMMIT_RECORD)) is not None:
            if _ends_batch(frame):
                commit_record = CommitRecord.decode(frame.payload)
                fits = commit_record.count == frame.index == seal.message_count
                return _summary(path, header, frame, commit_record, seal, size, sealed_from) if fits else None
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
    commit_record: CommitRecord,
    seal: Seal,
    size: int,
    sealed_from: int | None,
) -> BatchSummary:
    return BatchSummary(path, header, commit_record, seal, frame.position, frame.end, size, sealed_from == frame.end)


def _batch_frames(file: File, header: DataFileHeader) -> Iterator[Frame]:
    """Yield every message and then the commit record; raises BadBatchError at any other frame."""
    scanner = FrameScanner(file, header.salt, FRAMES_START, file.size())
    index, kind = 0, KIND_MESSAGE
    while kind != KIND_COMMIT_RECORD:
        frame = _next(scanner, index)
        yield frame
        index, kind = index + 1, frame.kind


def _verified_commit_record(file: File, header: DataFileHeader) -> Frame:
    """Return the commit record's frame: :func:`_batch_frames` without the messages."""
    scanner = FrameScanner(file, header.salt, FRAMES_START, file.size())
    index = 0
    while (frame := _next(scanner, index)).kind != KIND_COMMIT_RECORD:
        index = scanner.pass_messages(index + 1)
    return frame


def _next(scanner: FrameScanner, index: int) -> Frame:
    """Return the next frame of a batch; raises BadBatchError if there is none."""
    position = scanner.position
    try:
        frame = scanner.next()
        _check(frame, index)
    except ValueError as error:
        raise BadBatchError(position, str(error)) from None
    return frame


def _check(frame: Frame, index: int) -> None:
    """Raise ValueError if a frame that verifies is not the next one of a batch."""
    if frame.index != index:
        raise ValueError(f"index {frame.index} is in the place of {index}")
    is_commit_record = frame.kind == KIND_COMMIT_RECORD
    flags = (0 if index else FLAG_FIRST) | (FLAG_LAST if is_commit_record else 0)
    if frame.kind not in (KIND_MESSAGE, KIND_COMMIT_RECORD) or frame.flags & FLAGS_SINGLE != flags:
        raise ValueError(f"a frame of kind {frame.kind:#x} with flags {frame.flags:#x} does not belong here")
    if is_commit_record and (count := CommitRecord.decode(frame.payload).count) != index:
        raise ValueError(f"the decision speaks of {count} messages, {index} are there")


def _ends_batch(frame: Frame) -> bool:
    """Tell a batch's own commit record from those carried behind it."""
    return not frame.flags & FLAG_FIRST or frame.position == FRAMES_START


# -- Parts -----------------------------------------------------------------------------------------------------------


def note_entry(entries: list[tuple[int, int]], index: int, position: int) -> None:
    """Add a message to the sparse index of a seal, if one is due; entries from this index on are replaced."""
    while entries and entries[-1][0] >= index:
        entries.pop()
    if not entries or position >= entries[-1][1] + INDEX_STRIDE_BYTES:
        entries.append((index, position))


def _commit_record_frames(file: File, header: DataFileHeader, size: int) -> list[Frame]:
    """Return all readable frames of commit records between the start and the end, skipping damage."""
    frames = FrameScanner(file, header.salt, FRAMES_START, size).past_messages()
    return [frame for frame in frames if frame.kind == KIND_COMMIT_RECORD]


def _placed(frame: Frame, header: DataFileHeader) -> CommitRecord | None:
    try:
        commit_record = CommitRecord.decode(frame.payload)
    except ValueError:
        return None
    if commit_record.first_offset is not None:
        return commit_record
    return commit_record.placed(header.first_offset + frame.index - commit_record.count)


def _corruption(path: Path, error: BadBatchError) -> CorruptionError:
    return CorruptionError(
        f"{path} does not hold a whole batch: {error.reason} (at {error.position}); restore it or abort it",
        path=str(path),
        position=error.position,
    )
