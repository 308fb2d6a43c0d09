"""What comes from another process: frames of the protocol, in pieces of any size."""

from __future__ import annotations

from itertools import islice

from holdfast.queue.protocol.frames import (
    FRAME_BYTES_MAX,
    HEADER,
    NOTICE,
    VERSION,
    Frame,
    FrameDecoder,
    ProtocolError,
    encode_frame,
)

IS_RIGHT = 1
"""Bit of the first byte: headers have their version, a kind and a size that reaches the end. Its rest divided by two is
the size of the pieces."""


def wire(data: bytes) -> None:
    """Decode a stream: frames that encode to it, and then an error, the same in pieces and as a whole."""
    if not data:
        return
    stream = _righted(data[1:]) if data[0] & IS_RIGHT else data[1:]
    frames, error = _decoded([stream])
    size = data[0] // 2 or len(stream) or 1
    pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
    assert _decoded(pieces) == (frames, error), "other pieces, another outcome"
    again = b"".join(buffer for frame in frames for buffer in encode_frame(*frame))
    assert stream.startswith(again), "what was decoded encodes to something else"


def _righted(stream: bytes) -> bytes:
    """Return a stream whose first header passes the first checks, so that a fuzzer comes to those behind."""
    if len(stream) < HEADER.size:
        return stream
    _, _, kind, _, *rest = HEADER.unpack_from(stream)
    return HEADER.pack(len(stream), VERSION, kind % NOTICE + 1, 0, *rest) + stream[HEADER.size :]


def _decoded(pieces: list[bytes]) -> tuple[list[Frame], str]:
    """Return the frames before the end, or before the error, and that."""
    decoder = FrameDecoder()
    frames: list[Frame] = []
    try:
        for piece in pieces:
            decoder.feed(piece)
            frames += iter(decoder.next, None)
    except ProtocolError as error:
        _is_dead(decoder, error)
        return _checked(frames), str(error)
    return _checked(frames), ""


def _checked(frames: list[Frame]) -> list[Frame]:
    for frame in islice(frames, 3):
        assert len(frame.body) + sum(map(len, frame.payloads)) <= FRAME_BYTES_MAX
        assert type(frame.body) is bytes
        assert all(type(payload) is bytes for payload in frame.payloads)
    return frames


def _is_dead(decoder: FrameDecoder, error: ProtocolError) -> None:
    raised: list[ProtocolError] = []
    for call in (lambda: decoder.feed(b"x"), decoder.next):
        try:
            call()
        except ProtocolError as again:
            raised.append(again)
    assert [each is error for each in raised] == [True, True], "a decoder lives on behind an error"
