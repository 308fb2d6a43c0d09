"""The scanner walks frames, and finds its way past what is damaged."""

from __future__ import annotations

import random

import pytest

from holdfast.persistence.format.constants import FRAMES_START
from holdfast.persistence.format.framing import FrameError
from holdfast.persistence.segment.frame_scanner import WINDOW_BYTES, FrameScanner
from support.builders.log_parts import LogParts, frame
from support.storages.simulated_storage import SimulatedFile


def scanner(parts: LogParts, frames: list[bytes]) -> tuple[FrameScanner, SimulatedFile]:
    """Return a scanner over a data file of these frames."""
    path, header = parts.data_file(frames)
    file = parts.storage.open(path)
    return FrameScanner(file, header.salt, FRAMES_START, file.size()), file


def test_frames_come_in_order_until_the_end(parts: LogParts) -> None:
    """Small ones, an empty one, and one larger than a window."""
    payloads = [b"a", b"", b"x" * (WINDOW_BYTES + 10), b"last"]
    walk, _ = scanner(parts, [frame(parts.header(), payload, index) for index, payload in enumerate(payloads)])
    assert [walk.next().payload for _ in payloads] == payloads
    with pytest.raises(FrameError, match="cut off"):
        walk.next()


def test_a_bad_frame_leaves_the_position_where_it_is(parts: LogParts) -> None:
    """So that the caller can report it, and skip it."""
    frames = [frame(parts.header(), b"good", 0), frame(parts.header(), b"bad", 1), frame(parts.header(), b"next", 2)]
    walk, file = scanner(parts, frames)
    bad_at = FRAMES_START + len(frames[0])
    file.write_at((b"B",), bad_at + 32)
    walk.next()
    for _ in range(2):
        with pytest.raises(FrameError, match="checksum"):
            walk.next()
        assert walk.position == bad_at
    found = walk.skip_damage(1)
    assert found is not None
    assert (found.index, found.payload) == (2, b"next")
    assert walk.position == found.end


def test_nothing_behind_the_damage_is_none_and_leaves_the_position(parts: LogParts) -> None:
    """Zeros and garbage up to the end."""
    walk, _ = scanner(parts, [bytes(300) + random.Random(1).randbytes(3000)])
    assert walk.skip_damage(0) is None
    assert walk.position == FRAMES_START


def test_a_good_frame_is_found_wherever_windows_meet(parts: LogParts) -> None:
    """A header that straddles two windows is seen whole in one of them."""
    good = frame(parts.header(), b"found", 5)
    for distance in range(-len(good) - 2, 3):
        walk, _ = scanner(parts, [b"\x01" * (WINDOW_BYTES + distance), good])
        found = walk.skip_damage(5)
        assert found is not None, distance
        assert found.payload == b"found"


def test_reserved_space_is_passed_over_by_the_window(parts: LogParts) -> None:
    """Three windows of zeros stand between the damage and the next frame."""
    walk, _ = scanner(parts, [bytes(3 * WINDOW_BYTES + 5), frame(parts.header(), b"found", 0)])
    found = walk.skip_damage(0)
    assert found is not None
    assert found.payload == b"found"


def test_a_size_of_4_gb_reads_no_more_than_the_file(parts: LogParts) -> None:
    """It is bounded before anything is allocated."""
    walk, _ = scanner(parts, [b"\x02\xff\xff\xff\xff" + bytes(60)])
    with pytest.raises(FrameError, match="does not fit"):
        walk.next()
