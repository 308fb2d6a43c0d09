"""Entries of the prepared log: the puts of one transaction, between a frame that begins it and its commit record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import CorruptionError
from holdfast.persistence.filesystem.storage import ReadableFile, Storage
from holdfast.persistence.format.commit_record import CommitRecord
from holdfast.persistence.format.constants import (
    ENTRY_BEGIN,
    ENTRY_ENDED,
    FLAG_FIRST,
    FLAG_LAST,
    FLAGS_SINGLE,
    FRAME_HEADER_BYTES,
    KIND_BEGIN,
    KIND_COMMIT_RECORD,
    KIND_ENDED,
    KIND_MESSAGE,
)
from holdfast.persistence.format.framing import FrameError, encode_frame, encode_messages
from holdfast.persistence.segment.frame_scanner import FrameScanner

_ENDS_BYTES_MAX = 1024
"""Of the first frame and the last one: an id, a nonce, the name of a segment, a group that has voted."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A whole entry, and where it is.

    Attributes
    ----------
    path : Path
        Its segment.
    sequence, salt : int
        Of the segment.
    position, end : int
        Its first byte, and the byte behind its last one.
    messages_start : int
        Position of its first message; that of the commit record if there is none.
    commit_record : CommitRecord
        What ends it.
    commit_record_position : int
        Position of that frame.
    """

    path: Path
    sequence: int
    salt: int
    position: int
    end: int
    messages_start: int
    commit_record: CommitRecord
    commit_record_position: int

    @property
    def id(self) -> str:
        """The id of the transaction."""
        return self.commit_record.id

    @property
    def nonce(self) -> bytes:
        """The nonce of the transaction."""
        return self.commit_record.nonce

    @property
    def timestamp_ns(self) -> int:
        """When the transaction was prepared."""
        return self.commit_record.timestamp_ns

    @property
    def message_count(self) -> int:
        """Messages of the entry."""
        return self.commit_record.count

    @property
    def frames_bytes(self) -> int:
        """Bytes of the messages with their frames."""
        return self.commit_record_position - self.messages_start


@dataclass(frozen=True, slots=True)
class UnwrittenEnd:
    """An "ended" frame that is missing: the segment of its entry, what became of that, and the time for the frame."""

    sequence: int
    outcome: int
    timestamp_ns: int


def begin_bytes(transaction_id: str) -> int:
    """Return the size of the frame that begins an entry."""
    return FRAME_HEADER_BYTES + ENTRY_BEGIN.size + len(transaction_id.encode())


def entry_room(payloads: Sequence[bytes], headers: Mapping[int, bytes]) -> int:
    """Return how many bytes an entry takes at the most."""
    messages = sum(map(len, payloads)) + sum(map(len, headers.values())) + FRAME_HEADER_BYTES * len(payloads)
    return messages + _ENDS_BYTES_MAX


def encode_entry(
    salt: int,
    durable_mark: int,
    payloads: Sequence[bytes],
    headers: Mapping[int, bytes],
    commit_record: CommitRecord,
) -> tuple[list[bytes], int]:
    """Return the buffers of an entry, and how many bytes the frame that begins it has."""
    timestamp, count = commit_record.timestamp_ns, len(payloads)
    content = encode_messages(salt, 0, durable_mark, timestamp, headers, payloads, False, False)
    content += _control(salt, durable_mark, timestamp, KIND_COMMIT_RECORD, FLAG_LAST, commit_record.encode(), count)
    first_size = begin_bytes(commit_record.id)
    size = first_size + sum(map(len, content))
    start = ENTRY_BEGIN.pack(commit_record.nonce, size) + commit_record.id.encode()
    return [*_control(salt, durable_mark, timestamp, KIND_BEGIN, FLAG_FIRST, start), *content], first_size


def encode_ended(salt: int, durable_mark: int, timestamp_ns: int, nonce: bytes, outcome: int) -> list[bytes]:
    """Return the buffers of the frame that makes an entry void."""
    return _control(salt, durable_mark, timestamp_ns, KIND_ENDED, FLAGS_SINGLE, ENTRY_ENDED.pack(nonce, outcome))


def decode_begin(payload: bytes) -> tuple[bytes, int, str]:
    """Return nonce, size of the entry, and id; raises ValueError."""
    if len(payload) <= ENTRY_BEGIN.size:
        raise ValueError("the frame that begins an entry is too short")
    nonce, size = ENTRY_BEGIN.unpack_from(payload)
    return nonce, size, payload[ENTRY_BEGIN.size :].decode()


def decode_ended(payload: bytes) -> tuple[bytes, int]:
    """Return nonce and outcome; raises ValueError."""
    if len(payload) != ENTRY_ENDED.size:
        raise ValueError("the frame that ends an entry has another size")
    nonce, outcome = ENTRY_ENDED.unpack(payload)
    return nonce, outcome


def entry_messages(storage: Storage, entry: Entry) -> Iterator[tuple[bytes, bytes]]:
    """Yield payload and encoded headers of every message in order, each checked.

    Raises
    ------
    CorruptionError
        At the first one that does not verify.
    OSError
        The segment cannot be read.
    """
    with storage.open(entry.path, writable=False) as file:
        try:
            yield from _messages(file, entry)
        except FrameError as error:
            raise CorruptionError(
                f"transaction {entry.commit_record.id} in {entry.path} is damaged ({error}): it cannot be committed; "
                "abort it, and put again what it held",
                path=str(entry.path),
                position=entry.position,
            ) from None


def _messages(file: ReadableFile, entry: Entry) -> Iterator[tuple[bytes, bytes]]:
    scanner = FrameScanner(file, entry.salt, entry.messages_start, entry.end)
    for index in range(entry.message_count):
        frame = scanner.next()
        if (frame.kind, frame.index) != (KIND_MESSAGE, index):
            raise FrameError(f"another frame is in the place of message {index}")
        yield frame.payload, frame.headers


def _control(
    salt: int, durable_mark: int, timestamp_ns: int, kind: int, flags: int, payload: bytes, index: int = 0
) -> list[bytes]:
    frame = encode_frame(
        salt, payload, index=index, durable_mark=durable_mark, timestamp_ns=timestamp_ns, kind=kind, flags=flags
    )
    return list(frame)
