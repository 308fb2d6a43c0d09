"""Frames: what a client and the owner send to each other over a stream. The layout is in docs/protocol.md.

A frame has a body, which only the messages above this module understand, and payloads, which are raw. A frame begins
with all its sizes, so a reader knows after the first bytes whether the rest can be right.

What is *not* promised: frames have no checksums. Both ends are processes on one kernel, and the log has checksums.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

VERSION = 1
"""Of the layout. Both ends refuse any other: the processes that share a queue have the same Holdfast."""

REQUEST, REPLY, NOTICE = 1, 2, 3
"""Kinds: a client asks, the owner answers with the same id, the owner tells something without being asked."""

FRAME_BYTES_MAX = 4 * 2**20
"""A whole frame. Batches above 1 MiB are staged as files, and consumers read large payloads from the log. So 4 MiB is
ample for what is left, and it is all that a peer makes the other end hold in memory for it."""

HEADER = struct.Struct("<IBBHIQI")
"""Size of the whole frame, version, kind, zero, number of payloads, id of the request, size of the body."""

LENGTH_BYTES = 4
"""What a frame has for each payload beside it."""

_PIECE_BYTES = 4096
"""Smaller pieces are collected, so that there are few of them."""


class ProtocolError(Exception):
    """Bytes that are no frame, or a frame that cannot be sent. The connection they came from has to be closed."""


class Frame(NamedTuple):
    """One message between a client and the owner.

    Attributes
    ----------
    kind : int
        ``REQUEST``, ``REPLY`` or ``NOTICE``.
    request_id : int, below 2**64
        What a reply answers. Requests of one connection count upwards.
    body : bytes
        MessagePack; opaque here.
    payloads : list of bytes
        Raw. Copies: for 100 payloads of 200 or 2,000 bytes they take less time than views, and hold no buffer.
    """

    kind: int
    request_id: int
    body: bytes
    payloads: list[bytes]


def encode_frame(kind: int, request_id: int, body: bytes, payloads: Sequence[bytes] = ()) -> list[bytes]:
    """Return the buffers of one frame, to be sent one after the other; payloads are not copied.

    Raises
    ------
    ProtocolError
        The frame would be larger than ``FRAME_BYTES_MAX``, which no peer accepts.
    """
    count = len(payloads)
    lengths = [*map(len, payloads)]
    size = HEADER.size + count * LENGTH_BYTES + len(body) + sum(lengths)
    if size > FRAME_BYTES_MAX:
        raise ProtocolError(f"a frame of {size:,} bytes; at most {FRAME_BYTES_MAX:,} can be sent")
    header = HEADER.pack(size, VERSION, kind, 0, count, request_id, len(body))
    if not count:
        return [header + body]
    return [b"".join((header, struct.pack(f"<{count}I", *lengths), body)), *payloads]


class FrameDecoder:
    """Takes bytes as they come, in pieces of any size, and gives the frames in them; linear in the bytes fed.

    It holds what was fed and not yet given, and nothing else: no size in a frame makes it allocate memory. So feed it
    only when :meth:`next` has returned None. After an error it is dead, and raises the same again.
    """

    __slots__ = ("_buffer", "_error", "_header", "_more", "_more_bytes", "_position")

    def __init__(self) -> None:
        self._buffer = b""
        self._position = 0
        self._more: list[bytes | bytearray] = []  # behind the buffer, which ends inside of a frame
        self._more_bytes = 0
        self._header: tuple[int, int, int, int, int, int, int] | None = None
        self._error: ProtocolError | None = None

    def feed(self, data: bytes) -> None:
        """Add bytes behind those fed before. Raises ProtocolError after an error."""
        if self._error is not None:
            raise self._error
        if self._position == len(self._buffer) and not self._more:  # usually: each piece has whole frames
            self._buffer, self._position = data, 0
            return
        self._more_bytes += len(data)
        if len(data) >= _PIECE_BYTES:
            self._more.append(data)
        elif self._more and isinstance(self._more[-1], bytearray):
            self._more[-1] += data
        else:
            self._more.append(bytearray(data))

    def _join(self) -> None:
        """Make one buffer of all pieces, without what was given. Each byte is joined twice at most."""
        self._buffer = b"".join((memoryview(self._buffer)[self._position :], *self._more))
        self._position, self._more, self._more_bytes = 0, [], 0

    def next(self) -> Frame | None:
        """Return the next whole frame, or None until more bytes are fed.

        Raises
        ------
        ProtocolError
            What was fed is no frame.
        """
        if self._error is not None:
            raise self._error
        if not self._more and self._position == len(self._buffer):  # behind each frame that came alone
            return None
        try:
            return self._next()
        except ProtocolError as error:
            self._error = error
            self._buffer, self._position, self._more, self._more_bytes = b"", 0, [], 0
            raise

    def _next(self) -> Frame | None:
        in_buffer = len(self._buffer) - self._position
        available = in_buffer + self._more_bytes
        if self._header is None:
            if available < HEADER.size:
                return None
            if in_buffer < HEADER.size:
                self._join()
                in_buffer = available
            header = HEADER.unpack_from(self._buffer, self._position)
            _check_header(*header)
            self._header = header
        size, _, kind, _, count, request_id, body_size = self._header
        if available < size:
            return None
        self._header = None
        if in_buffer < size:
            self._join()
        start = self._position
        self._position = start + size
        body, payloads = _contents(self._buffer, start, self._position, count, body_size)
        return Frame(kind, request_id, body, payloads)


def _check_header(size: int, version: int, kind: int, zero: int, count: int, _: int, body_size: int) -> None:
    """Raise ProtocolError unless these fields can be those of a frame."""
    if not HEADER.size <= size <= FRAME_BYTES_MAX:
        raise ProtocolError(f"a frame of {size:,} bytes: it has {HEADER.size} to {FRAME_BYTES_MAX:,}")
    if version != VERSION:
        raise ProtocolError(f"version {version} of the protocol, this is {VERSION}: update Holdfast in all processes")
    if not REQUEST <= kind <= NOTICE or zero:
        raise ProtocolError(f"kind {kind} of a frame, field {zero}: unknown")
    if HEADER.size + count * LENGTH_BYTES + body_size > size:
        raise ProtocolError(f"a frame of {size:,} bytes has no room for {count:,} payloads and a body of {body_size:,}")


def _contents(data: bytes, start: int, end: int, count: int, body_size: int) -> tuple[bytes, list[bytes]]:
    """Return body and payloads of the frame at ``start``, which is all there and whose header was checked."""
    lengths_at = start + HEADER.size
    body_at = lengths_at + count * LENGTH_BYTES
    at = body_at + body_size
    lengths = struct.unpack_from(f"<{count}I", data, lengths_at) if count else ()
    if at + sum(lengths) != end:
        raise ProtocolError(f"payloads of {sum(lengths):,} bytes in a frame that has {end - at:,} for them")
    payloads = []
    body = data[body_at:at]
    for length in lengths:
        payloads.append(data[at : at + length])
        at += length
    return body, payloads
