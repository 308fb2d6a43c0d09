"""The seal of a finished data file."""

from __future__ import annotations

import pytest

from holdfast.persistence.format.constants import FRAME_HEADER_BYTES, FRAMES_START, INDEX_STRIDE_BYTES, SEAL_TRAILER
from holdfast.persistence.format.framing import encode_frame
from holdfast.persistence.format.seal import Seal, seal_room

SEAL = Seal(30, 5, 9, ((0, FRAMES_START), (12, 70_000), (25, 140_000)))


def test_a_seal_comes_back() -> None:
    """With its index, and without."""
    for seal in (SEAL, Seal(0, 0, 0, ())):
        assert Seal.decode(seal.encode()) == seal


def test_a_seal_is_found_from_the_end_of_the_file() -> None:
    """Its last four bytes are the size of its whole frame."""
    frame = b"".join(encode_frame(1, SEAL.encode(), index=30, durable_mark=0, timestamp_ns=9))
    assert int.from_bytes(frame[-SEAL_TRAILER.size :], "little") == len(frame)


@pytest.mark.parametrize("size", [0, 10, 27, 35, 51])
def test_a_payload_of_another_size_is_no_seal(size: int) -> None:
    """Too short, or not as many entries as it says."""
    with pytest.raises(ValueError, match="seal"):
        Seal.decode(SEAL.encode()[:size])


def test_an_index_answers_with_the_last_entry_at_or_before() -> None:
    """Reading starts there and passes over what is not wanted."""
    assert SEAL.position_before(0) == (0, FRAMES_START)
    assert SEAL.position_before(11) == (0, FRAMES_START)
    assert SEAL.position_before(12) == (12, 70_000)
    assert SEAL.position_before(10**6) == (25, 140_000)
    assert Seal(3, 0, 0, ((2, 5000),)).position_before(1) is None


@pytest.mark.parametrize("capacity", [16 * 2**10, 2**20, 64 * 2**20, 4 * 2**30 - 1])
def test_the_room_kept_for_a_seal_is_enough_for_its_index(capacity: int) -> None:
    """One entry every stride, and one for the first message of each opening."""
    entries = tuple((number, number) for number in range(1 + capacity // INDEX_STRIDE_BYTES))
    assert FRAME_HEADER_BYTES + len(Seal(1, 0, 0, entries).encode()) <= seal_room(capacity)
