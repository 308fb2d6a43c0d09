"""Frames: the form of a record in a data file, and the search for the next good one after a bad one. Pure.

``<STX><record size><CRC><body><headers><payload>``; docs/format.md, "Frames". The checksum is seeded with the file's
salt XOR the record size, so neither a flipped size bit, nor a stale frame of the file's former life, nor a frame inside
a payload verifies.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from holdfast.compiled import compiled
from holdfast.persistence.format.checksum import crc32c
from holdfast.persistence.format.constants import (
    FLAG_FIRST,
    FLAG_HEADERS,
    FLAG_LAST,
    FLAGS_SINGLE,
    FRAME_BODY,
    FRAME_BODY_START,
    FRAME_HEADER,
    FRAME_HEADER_BYTES,
    FRAME_PREFIX,
    FRAME_SIZE_END,
    KIND_COMMIT_RECORD,
    KIND_MESSAGE,
    KINDS,
    RECORD_SIZE_MIN,
    STX,
)

_CANDIDATE = re.compile(
    rb"\x02.{8}[" + b"".join(re.escape(bytes((kind,))) for kind in sorted(KINDS)) + rb"].{4}\x01\x00", re.DOTALL
)
"""Where a frame could start: STX, a known kind, a record count of 1. Runs at the speed of C."""

_CRC_BYTES = FRAME_BODY_START - FRAME_SIZE_END

_INDEX_AT = 16
"""Where the index stands in a frame."""


@dataclass(slots=True)  # not frozen: recovery makes one for every frame, and frozen ones take three times as long
class Frame:
    """One verified frame: its place, and the fields of its header.

    Attributes
    ----------
    position, end : int
        Its first byte, and the byte behind its last one.
    kind, flags : int
        ``KIND_*`` and ``FLAG_*`` of ``constants.py``.
    index : int
        Messages before it in its file; a message's offset is this plus the file's first offset.
    durable_mark : int
        Position in the same file that was known to be synced when the frame was written.
    timestamp_ns : int
        As written; the file's base timestamp may be later.
    headers, payload : bytes
        As stored.
    """

    position: int
    end: int
    kind: int
    flags: int
    index: int
    durable_mark: int
    timestamp_ns: int
    headers: bytes
    payload: bytes

    @property
    def next_index(self) -> int:
        """Messages before the next frame."""
        return self.index + (self.kind == KIND_MESSAGE)


class FrameError(ValueError):
    """The bytes at a position are not a frame of this file; the error text gives the reason."""


def encode_frame(
    salt: int,
    payload: bytes,
    *,
    index: int,
    durable_mark: int,
    timestamp_ns: int,
    kind: int = KIND_MESSAGE,
    flags: int = FLAGS_SINGLE,
    headers: bytes = b"",
) -> tuple[bytes, bytes]:
    """Return a frame as two buffers: the nine bytes of its prefix, and all that the checksum covers."""
    body = FRAME_BODY.pack(kind, flags, len(headers), 1, index, durable_mark, timestamp_ns) + headers + payload
    size = _CRC_BYTES + len(body)
    return FRAME_PREFIX.pack(STX, size, crc32c(salt ^ size, body)), body


@compiled
def encode_message(
    salt: int, index: int, durable_mark: int, timestamp_ns: int, headers: bytes, payload: bytes, /
) -> tuple[bytes, bytes]:
    """Return the frame of a message that is a batch of its own: what comes before the payload, and the payload."""
    flags = FLAGS_SINGLE | FLAG_HEADERS if headers else FLAGS_SINGLE
    body = FRAME_BODY.pack(KIND_MESSAGE, flags, len(headers), 1, index, durable_mark, timestamp_ns) + headers
    size = _CRC_BYTES + len(body) + len(payload)
    return FRAME_PREFIX.pack(STX, size, crc32c(crc32c(salt ^ size, body), payload)) + body, payload


@compiled
def encode_messages(
    salt: int,
    index: int,
    durable_mark: int,
    timestamp_ns: int,
    headers: Mapping[int, bytes] | None,
    payloads: Sequence[bytes],
    starts: bool,
    ends: bool,
    /,
) -> list[bytes]:
    """Return the frames of messages of one batch, two buffers each: :func:`encode_message` unrolled by hand.

    ``index`` is that of the first. ``headers`` are the encoded headers of some messages, by number. ``starts`` and
    ``ends``: whether the first message is the first frame of the batch, and the last message the last one.
    """
    pack_body, pack_prefix, crc = FRAME_BODY.pack, FRAME_PREFIX.pack, crc32c
    buffers: list[bytes] = []
    flags = FLAG_FIRST if starts else 0
    last = len(payloads) - 1 if ends else -1
    for number, payload in enumerate(payloads):
        if number == last:
            flags |= FLAG_LAST
        if headers and (stored := headers.get(number)):
            flags |= FLAG_HEADERS
            body = pack_body(KIND_MESSAGE, flags, len(stored), 1, index + number, durable_mark, timestamp_ns) + stored
        else:
            body = pack_body(KIND_MESSAGE, flags, 0, 1, index + number, durable_mark, timestamp_ns)
        size = _CRC_BYTES + len(body) + len(payload)
        buffers.append(pack_prefix(STX, size, crc(crc(salt ^ size, body), payload)) + body)
        buffers.append(payload)
        flags = 0
    return buffers


def encode_batch(
    salt: int,
    payloads: Sequence[bytes],
    *,
    index: int,
    durable_mark: int,
    timestamp_ns: int,
    headers: Mapping[int, bytes] | None = None,
    commit_record: bytes | None = None,
) -> list[bytes]:
    """Return the frames of a whole batch, as :func:`encode_messages`; ``commit_record``, if given, ends it."""
    is_whole = commit_record is None
    buffers = encode_messages(salt, index, durable_mark, timestamp_ns, headers, payloads, True, is_whole)
    if commit_record is not None:
        flags = FLAG_LAST | (0 if payloads else FLAG_FIRST)
        buffers += encode_frame(
            salt,
            commit_record,
            index=index + len(payloads),
            durable_mark=durable_mark,
            timestamp_ns=timestamp_ns,
            kind=KIND_COMMIT_RECORD,
            flags=flags,
        )
    return buffers


def decode_frame(data: bytes, at: int, position: int, salt: int, end: int) -> Frame:
    """Return the frame that starts at ``data[at]``, which is byte ``position`` of its file.

    A size that exceeds the bytes up to ``end`` (of the file) is refused before anything is allocated.

    Raises
    ------
    FrameError
        The bytes are not a frame of this file.
    """
    if end - position < FRAME_HEADER_BYTES or len(data) - at < FRAME_HEADER_BYTES:
        raise FrameError("cut off inside the frame header")
    stx, size, crc, kind, flags, headers_size, count, index, mark, timestamp = FRAME_HEADER.unpack_from(data, at)
    if stx != STX:
        raise FrameError("no STX" if stx else "zeros where a frame should start")
    if size < RECORD_SIZE_MIN or position + FRAME_SIZE_END + size > end or at + FRAME_SIZE_END + size > len(data):
        raise FrameError(f"a record size of {size} does not fit")
    body = data[at + FRAME_BODY_START : at + FRAME_SIZE_END + size]
    if crc32c(salt ^ size, body) != crc:
        raise FrameError("the checksum does not match")
    if kind not in KINDS or count != 1 or headers_size > size - RECORD_SIZE_MIN or mark > position:
        raise FrameError(f"a frame header that this version does not write (kind {kind:#x}, count {count})")
    payload_at = FRAME_BODY.size + headers_size
    headers = body[FRAME_BODY.size : payload_at]
    return Frame(
        position, position + FRAME_SIZE_END + size, kind, flags, index, mark, timestamp, headers, body[payload_at:]
    )


def resynchronise(data: bytes, index_min: int, index_max: int) -> Iterator[int]:
    """Yield the places in ``data`` where a frame with a plausible index could start; :func:`decode_frame` decides.

    Copies of older frames, put as payloads into their own file, carry indexes below ``index_min``, the index of the
    first missing message, and are skipped.
    """
    start = 0
    while (match := _CANDIDATE.search(data, start)) is not None:
        start = match.start()
        if index_min <= int.from_bytes(data[start + _INDEX_AT : start + _INDEX_AT + 4], "little") <= index_max:
            yield start
        start += 1
