"""Frames: round trip, every malformed shape, and finding the next good one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.persistence.format.checksum import crc32c
from holdfast.persistence.format.constants import (
    FLAG_FIRST,
    FLAG_LAST,
    FLAGS_SINGLE,
    FRAME_BODY_START,
    FRAME_HEADER_BYTES,
    FRAME_PREFIX,
    FRAME_SIZE_END,
    FRAMES_START,
    KIND_MARK,
    KIND_MESSAGE,
    KIND_SEAL,
    STX,
)
from holdfast.persistence.format.frame_runs import pass_messages
from holdfast.persistence.format.framing import (
    FrameError,
    decode_frame,
    encode_batch,
    encode_frame,
    resynchronise,
)

SALT = 0x5A17C0DE
TIMESTAMP = 1_700_000_000_000_000_000


def frame(payload: bytes = b"payload", *, index: int = 3, salt: int = SALT, headers: bytes = b"") -> bytes:
    """Return one frame as it stands in a file."""
    return b"".join(
        encode_frame(salt, payload, index=index, durable_mark=FRAMES_START, timestamp_ns=TIMESTAMP, headers=headers)
    )


def decode_at(data: bytes, at: int = 0) -> object:
    """Decode the frame at ``at`` of bytes that start where frames start."""
    return decode_frame(data, at, FRAMES_START + at, SALT, FRAMES_START + len(data))


@given(
    st.binary(max_size=300),
    st.binary(max_size=50),
    st.integers(0, 2**32 - 1),
    st.integers(0, FRAMES_START),
    st.integers(0, 2**64 - 1),
    st.sampled_from([KIND_MESSAGE, KIND_SEAL, KIND_MARK]),
    st.integers(0, 2**16 - 1),
    st.integers(0, 2**32 - 1),
)
def test_a_frame_comes_back(
    payload: bytes, headers: bytes, index: int, mark: int, timestamp: int, kind: int, flags: int, salt: int
) -> None:
    """Whatever it holds, and wherever it stands."""
    raw = b"".join(
        encode_frame(
            salt,
            payload,
            index=index,
            durable_mark=mark,
            timestamp_ns=timestamp,
            kind=kind,
            flags=flags,
            headers=headers,
        )
    )
    assert len(raw) == FRAME_HEADER_BYTES + len(headers) + len(payload)
    found = decode_frame(b"xyz" + raw, 3, FRAMES_START, salt, FRAMES_START + len(raw))
    assert (found.position, found.end) == (FRAMES_START, FRAMES_START + len(raw))
    assert (found.kind, found.flags, found.index, found.durable_mark) == (kind, flags, index, mark)
    assert (found.timestamp_ns, found.headers, found.payload) == (timestamp, headers, payload)
    assert found.next_index == index + (kind == KIND_MESSAGE)


def test_a_reader_that_knows_only_stx_and_size_can_walk_a_batch() -> None:
    """The seed of the format holds for every frame."""
    data = b"".join(encode_batch(SALT, [b"a", b"", b"ccc"], index=0, durable_mark=FRAMES_START, timestamp_ns=TIMESTAMP))
    at, count = 0, 0
    while at < len(data):
        assert data[at] == 0x02
        at += 5 + int.from_bytes(data[at + 1 : at + 5], "little")
        count += 1
    assert (at, count) == (len(data), 3)


def test_a_batch_is_the_run_of_its_frames() -> None:
    """Unrolled by hand, it gives what single frames give, with first and last flagged."""
    payloads = [b"one", b"", b"three"]
    flags = [FLAG_FIRST, 0, FLAG_LAST]
    singles = [
        encode_frame(SALT, payload, index=5 + number, durable_mark=9, timestamp_ns=TIMESTAMP, flags=flags[number])
        for number, payload in enumerate(payloads)
    ]
    batch = encode_batch(SALT, payloads, index=5, durable_mark=9, timestamp_ns=TIMESTAMP)
    assert b"".join(batch) == b"".join(buffer for single in singles for buffer in single)
    alone = encode_batch(SALT, [b"x"], index=0, durable_mark=0, timestamp_ns=0)
    assert b"".join(alone) == b"".join(
        encode_frame(SALT, b"x", index=0, durable_mark=0, timestamp_ns=0, flags=FLAGS_SINGLE)
    )


def test_messages_are_passed_up_to_the_first_that_is_not_whole() -> None:
    """Also where the checksum of what is there fits a size that is not."""
    frames = [b"".join(encode_frame(SALT, b"x" * n, index=n, durable_mark=0, timestamp_ns=1, flags=0)) for n in (3, 4)]
    data = b"before" + b"".join(frames)
    ends = [6, 6 + len(frames[0]), len(data)]
    for size in range(6, len(data) + 1):
        whole = sum(end <= size for end in ends) - 1
        passed: list[int] = []
        assert pass_messages(data[:size], 6, SALT, FRAMES_START, 3, 0, passed)[:2] == (ends[whole], 3 + whole)
        assert passed == [FRAMES_START - 6 + end for end in ends[1 : whole + 1]]
    body, size = frames[1][FRAME_BODY_START:], len(frames[1]) - FRAME_SIZE_END + 1
    cut = FRAME_PREFIX.pack(STX, size, crc32c(SALT ^ size, body)) + body
    assert pass_messages(frames[0] + cut, 0, SALT, FRAMES_START, 3, 0, None)[:2] == (len(frames[0]), 4)


def test_what_is_passed_tells_its_marks_and_timestamps() -> None:
    """The highest mark, and both ends of the timestamps; messages that are not alike end it."""
    frames = [
        b"".join(encode_frame(SALT, b"x", index=index, durable_mark=mark, timestamp_ns=timestamp, flags=flags))
        for index, (mark, timestamp, flags) in enumerate([(2, 5, 3), (7, 4, 3), (1, 9, 3), (8, 1, 0), (9, 11, 3)])
    ]
    data, sizes = b"".join(frames), [len(each) for each in frames]
    ends: list[int] = []
    assert pass_messages(data, 0, SALT, 100, 0, FLAGS_SINGLE, ends) == (sum(sizes[:3]), 3, 7, 4, 9)
    assert ends == [100 + sum(sizes[:count]) for count in (1, 2, 3)]
    assert pass_messages(data, sum(sizes[:3]), SALT, 400, 3, 0, ends) == (sum(sizes[:4]), 4, 8, 1, 1)
    assert pass_messages(data, 0, SALT, 100, 0, 0, ends) == (0, 0, 0, 2**64 - 1, 0)
    assert pass_messages(data, 0, SALT, 100, 0, FLAGS_SINGLE, None) == (sum(sizes[:3]), 3, 0, 2**64 - 1, 0)


def test_every_flipped_bit_of_a_frame_is_found() -> None:
    """STX and size too: the size seeds the checksum."""
    raw = frame()
    for bit in range(8 * len(raw)):
        broken = bytearray(raw)
        broken[bit // 8] ^= 1 << bit % 8
        with pytest.raises(FrameError):
            decode_at(bytes(broken) + bytes(300))


@pytest.mark.parametrize(
    ("at", "content", "reason"),
    [
        (0, b"\0", "zeros where a frame should start"),
        (0, b"\x03", "no STX"),
        (1, (0).to_bytes(4, "little"), "record size of 0"),
        (1, (26).to_bytes(4, "little"), "record size of 26"),
        (1, (2**32 - 1).to_bytes(4, "little"), "record size of 4294967295"),
        (1, (27).to_bytes(4, "little"), "checksum"),
        (5, b"\0\0\0\0", "checksum"),
        (9, b"\x77", "checksum"),
        (16, b"\x09", "checksum"),
        (32, b"P", "checksum"),
    ],
)
def test_each_malformed_shape_says_what_is_wrong(at: int, content: bytes, reason: str) -> None:
    """An operator reads the reason in the report."""
    raw = bytearray(frame())
    raw[at : at + len(content)] = content
    with pytest.raises(FrameError, match=reason):
        decode_at(bytes(raw))


@pytest.mark.parametrize("size", [0, 1, 31, 32, 38])
def test_a_frame_that_is_cut_off_is_refused(size: int) -> None:
    """Inside its header, behind it, and one byte before its end."""
    with pytest.raises(FrameError):
        decode_at(frame()[:size])


def test_a_frame_that_reaches_over_the_end_of_the_file_is_refused() -> None:
    """Though the bytes behind the end are there to be read."""
    raw = frame()
    with pytest.raises(FrameError, match="does not fit"):
        decode_frame(raw, 0, FRAMES_START, SALT, FRAMES_START + len(raw) - 1)


def test_a_frame_of_another_life_of_the_file_is_refused() -> None:
    """The salt is random for each."""
    with pytest.raises(FrameError, match="checksum"):
        decode_at(frame(salt=SALT ^ 1))


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": 0x15},
        {"kind": 0},
        {"durable_mark": FRAMES_START + 1},
    ],
)
def test_a_frame_that_this_version_does_not_write_is_refused_though_its_checksum_holds(fields: dict[str, int]) -> None:
    """An unknown kind, and a durable mark in front of which the frame itself stands."""
    options = {"index": 0, "durable_mark": 0, "timestamp_ns": 0} | fields
    raw = b"".join(encode_frame(SALT, b"x", **options))
    with pytest.raises(FrameError, match="this version does not write"):
        decode_at(raw)


def candidates(data: bytes, index_min: int, index_max: int = 100) -> list[int]:
    """Return where frames could start."""
    return list(resynchronise(data, index_min, index_max))


def test_resynchronising_finds_the_next_frame_behind_garbage() -> None:
    """However much garbage there is, and though it is full of STX."""
    garbage = b"\x02" * 50 + bytes(range(256)) + b"\x02\x00\x01"
    data = garbage + frame(index=4)
    found = [at for at in candidates(data, 4) if decodes(data, at)]
    assert found == [len(garbage)]


def decodes(data: bytes, at: int) -> bool:
    """Tell whether a frame verifies there."""
    try:
        decode_at(data, at)
    except FrameError:
        return False
    return True


def test_resynchronising_passes_over_copies_of_older_frames_put_as_payload() -> None:
    """They verify, as they are frames of this very file, but their messages are not what is missing."""
    older = frame(b"older", index=2)
    data = b"damaged" + older + b"more" + frame(b"real", index=7)
    assert decodes(data, 7), "the copy does verify"
    assert candidates(data, 5) == [len(data) - len(frame(b"real", index=7))]


def test_resynchronising_passes_over_indexes_that_cannot_be_yet() -> None:
    """No more messages can be missing than fit between here and there."""
    assert candidates(frame(index=50), 5, 10) == []


def test_a_frame_inside_the_payload_of_a_damaged_one_is_a_candidate_only() -> None:
    """With a foreign salt it does not verify, and the search continues behind it."""
    inner = frame(b"inner", index=6, salt=SALT ^ 1)
    damaged = bytearray(frame(b"<" + inner + b">", index=5))
    damaged[5] ^= 1
    data = bytes(damaged) + frame(b"next", index=6)
    places = candidates(data, 5)
    assert [at for at in places if decodes(data, at)] == [len(damaged)]
    assert places == [0, 33, len(damaged)], "the damaged one, the copy inside, the next one"
