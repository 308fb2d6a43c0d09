"""Frames between clients and the owner: what is encoded comes out, in pieces of any size; all else is an error."""

from __future__ import annotations

import struct
import time
import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.queue.protocol.frames import (
    FRAME_BYTES_MAX,
    HEADER,
    NOTICE,
    REPLY,
    REQUEST,
    Frame,
    FrameDecoder,
    ProtocolError,
    encode_frame,
)

FRAMES = st.builds(
    Frame,
    st.sampled_from([REQUEST, REPLY, NOTICE]),
    st.integers(0, 2**64 - 1),
    st.binary(max_size=100),
    st.lists(st.binary(max_size=50), max_size=10),
)


def encoded(*frames: Frame) -> bytes:
    """Return frames one behind the other."""
    return b"".join(buffer for frame in frames for buffer in encode_frame(*frame))


def decoded(*pieces: bytes) -> list[Frame]:
    """Return the frames in pieces that are fed one after the other."""
    decoder = FrameDecoder()
    frames = []
    for piece in pieces:
        decoder.feed(piece)
        while (frame := decoder.next()) is not None:
            frames.append(frame)
    return frames


def altered(position: int, layout: str, value: int) -> bytes:
    """Return a frame with two payloads one field of which has another value."""
    data = bytearray(encoded(Frame(REQUEST, 7, b"body", [b"one", b"two"])))
    struct.pack_into(layout, data, position, value)
    return bytes(data)


def test_the_layout_is_that_of_the_documentation() -> None:
    """Byte by byte: both ends of a connection may be different releases."""
    assert b"".join(encode_frame(REPLY, 0x0102, b"BODY", [b"one", b"", b"three"])) == (
        bytes.fromhex("30000000 01 02 0000 03000000 0201000000000000 04000000")
        + bytes.fromhex("03000000 00000000 05000000")
        + b"BODYonethree"
    )


def test_payloads_are_handed_on_and_not_copied() -> None:
    """They may be large."""
    payloads = [b"one" * 100, b"two" * 100]
    buffers = encode_frame(REQUEST, 1, b"body", payloads)
    assert [id(each) for each in buffers[1:]] == [id(each) for each in payloads]


@given(st.lists(FRAMES, max_size=5), st.data())
def test_frames_in_pieces_of_any_size_come_out_as_they_went_in(frames: list[Frame], data: st.DataObject) -> None:
    """A stream keeps no bounds of what was sent."""
    stream = encoded(*frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    pieces = [stream[start:end] for start, end in pairwise([0, *cuts, len(stream)])]
    assert decoded(*pieces) == frames


@given(st.lists(FRAMES, max_size=5))
def test_frames_that_are_fed_before_any_is_taken_come_out_too(frames: list[Frame]) -> None:
    """Also behind one of which half was there."""
    stream = encoded(*frames)
    decoder = FrameDecoder()
    for at in range(0, len(stream), 7):
        decoder.feed(stream[at : at + 7])
    assert [decoder.next() for _ in frames] == frames
    assert decoder.next() is None


@given(st.lists(FRAMES, min_size=1, max_size=3), st.integers(1, HEADER.size - 1), FRAMES)
def test_a_beginning_that_came_with_others_is_continued(before: list[Frame], cut: int, last: Frame) -> None:
    """A few bytes of a header, which were fed behind whole frames before any of these was taken."""
    data = encoded(last)
    decoder = FrameDecoder()
    for piece in (encoded(*before), data[:cut]):
        decoder.feed(piece)
    assert [decoder.next() for _ in before] == before
    assert decoder.next() is None
    decoder.feed(data[cut:])
    assert decoder.next() == last
    assert decoder.next() is None


@given(st.lists(st.integers(1_000, 20_000), min_size=1, max_size=8))
def test_a_large_frame_comes_in_pieces_of_any_size(sizes: list[int]) -> None:
    """Large ones are kept as they are, small ones are collected, in the order in which they came."""
    frames = [Frame(REPLY, number, b"body", [bytes([number]) * 30_000, b"end"]) for number in (1, 2)]
    data = encoded(*frames)
    pieces, at = [], 0
    for number in range(len(data)):
        pieces.append(data[at : at + sizes[number % len(sizes)]])
        at += len(pieces[-1])
        if at == len(data):
            break
    assert decoded(*pieces) == frames


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=3))
def test_any_bytes_are_frames_that_encode_to_them_or_an_error(data: bytes, cuts: list[int]) -> None:
    """And it is the same whatever pieces they come in."""

    def outcome(*pieces: bytes) -> tuple[list[Frame], str]:
        decoder = FrameDecoder()
        frames: list[Frame] = []
        try:
            for piece in pieces:
                decoder.feed(piece)
                while (frame := decoder.next()) is not None:
                    frames.append(frame)
        except ProtocolError as error:
            return frames, str(error)
        return frames, ""

    frames, error = outcome(data)
    assert data.startswith(encoded(*frames))
    bounds = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[start:end] for start, end in pairwise(bounds)]
    assert outcome(*pieces) == (frames, error)


@pytest.mark.parametrize(
    ("position", "layout", "value", "told"),
    [
        pytest.param(0, "<I", 2**32 - 1, "4,294,967,295 bytes: it has", id="4 GiB"),
        pytest.param(0, "<I", FRAME_BYTES_MAX + 1, "4,194,305 bytes: it has", id="one byte above the bound"),
        pytest.param(0, "<I", HEADER.size - 1, "23 bytes: it has", id="less than a header"),
        pytest.param(0, "<I", 0, "0 bytes: it has", id="nothing"),
        pytest.param(4, "<B", 2, "version 2 of the protocol", id="a later version"),
        pytest.param(5, "<B", 0, "kind 0", id="no kind"),
        pytest.param(5, "<B", NOTICE + 1, "kind 4", id="an unknown kind"),
        pytest.param(6, "<H", 1, "field 1", id="the field that is zero"),
        pytest.param(8, "<I", 2**32 - 1, "no room for 4,294,967,295 payloads", id="too many payloads"),
        pytest.param(8, "<I", 5, "no room for 5 payloads", id="payloads behind the end"),
        pytest.param(8, "<I", 0, "payloads of 0 bytes in a frame that has 14", id="bytes of no payload"),
        pytest.param(20, "<I", 2**32 - 1, "a body of 4,294,967,295", id="a body of 4 GiB"),
        pytest.param(20, "<I", 11, "a body of 11", id="a body behind the end"),
        pytest.param(20, "<I", 10, "payloads of 6 bytes in a frame that has 0", id="a body over payloads"),
        pytest.param(24, "<I", 2**32 - 1, "payloads of 4,294,967,298 bytes", id="a payload of 4 GiB"),
        pytest.param(24, "<I", 2, "payloads of 5 bytes in a frame that has 6", id="a payload that is too short"),
    ],
)
def test_each_field_is_checked(position: int, layout: str, value: int, told: str) -> None:
    """The error says which one, and what it may be."""
    decoder = FrameDecoder()
    decoder.feed(altered(position, layout, value))
    with pytest.raises(ProtocolError, match=told):
        decoder.next()


@pytest.mark.parametrize(
    ("position", "value"), [(0, 2**32 - 1), (8, 2**32 - 1), (20, 2**32 - 1), (0, 0), (4, 0x7F), (5, 0x7F)]
)
def test_a_header_is_refused_before_the_rest_has_come(position: int, value: int) -> None:
    """Otherwise a size could make the other end wait and collect for ever."""
    decoder = FrameDecoder()
    decoder.feed(altered(position, "<I" if value > 0xFF else "<B", value)[: HEADER.size])
    with pytest.raises(ProtocolError):
        decoder.next()


@pytest.mark.parametrize(("position", "value"), [(0, 2**32 - 1), (0, 2**31), (8, 2**30), (20, 2**31), (24, 2**31)])
def test_no_size_in_a_frame_takes_memory_that_did_not_come(position: int, value: int) -> None:
    """A peer holds the other end's memory only by sending as much."""
    data = altered(position, "<I", value)
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            decoded(data)
        assert tracemalloc.get_traced_memory()[1] < 64 * 2**10
    finally:
        tracemalloc.stop()


def test_a_frame_of_the_largest_size_is_sent_and_one_byte_more_is_not() -> None:
    """The bound is the same at both ends."""
    payload = bytes(FRAME_BYTES_MAX - HEADER.size - 4 - 1)
    (frame,) = decoded(b"".join(encode_frame(REQUEST, 1, b"b", [payload])))
    assert frame.payloads == [payload]
    with pytest.raises(ProtocolError, match="4,194,305 bytes; at most 4,194,304"):
        encode_frame(REQUEST, 1, b"bb", [payload])


def test_frames_before_the_error_come_out() -> None:
    """The first frame was whole and right."""
    decoder = FrameDecoder()
    decoder.feed(encoded(Frame(REQUEST, 1, b"", [])) + b"GET / HTTP/1.1\r\nHost: localhost\r\n")
    assert decoder.next() == Frame(REQUEST, 1, b"", [])
    with pytest.raises(ProtocolError):
        decoder.next()


def test_after_an_error_a_decoder_is_dead() -> None:
    """Nothing behind the error can be trusted, not even where a frame begins."""
    decoder = FrameDecoder()
    decoder.feed(bytes(HEADER.size))
    with pytest.raises(ProtocolError) as first:
        decoder.next()
    for call in (lambda: decoder.feed(encoded(Frame(REQUEST, 1, b"", []))), decoder.next):
        with pytest.raises(ProtocolError) as again:
            call()
        assert again.value is first.value


def seconds_byte_by_byte(size: int) -> float:
    """Return how long one frame of this size takes, a byte at a time, with a look after each."""
    data = encoded(Frame(REQUEST, 1, b"", [bytes(size)]))
    decoder = FrameDecoder()
    start = time.thread_time()
    for at in range(len(data)):
        assert decoder.next() is None
        decoder.feed(data[at : at + 1])
    assert decoder.next() is not None
    return time.thread_time() - start


def test_a_frame_that_comes_byte_by_byte_takes_linear_time() -> None:
    """Sixteen times the bytes: 256 times the time, if each byte copied what is there."""
    seconds_byte_by_byte(1_000)
    small = min(seconds_byte_by_byte(20_000) for _ in range(3))
    large = seconds_byte_by_byte(320_000)
    assert large < 16 * small * 5


def test_many_frames_behind_half_a_frame_take_linear_time() -> None:
    """Each would otherwise move all that is behind it."""

    def seconds(count: int) -> float:
        stream = encoded(Frame(REQUEST, 1, b"x" * 16, [])) * count
        decoder = FrameDecoder()
        start = time.thread_time()
        decoder.feed(stream[:1])
        decoder.feed(stream[1:])
        assert sum(1 for _ in iter(decoder.next, None)) == count
        return time.thread_time() - start

    seconds(100)
    small = min(seconds(2_000) for _ in range(3))
    assert seconds(64_000) < 32 * small * 5
