"""The scanner walks frames, and finds its way past what is damaged."""

from __future__ import annotations

import random

import pytest

from holdfast.persistence.format.constants import FRAMES_START, KIND_MARK, KIND_MESSAGE
from holdfast.persistence.format.framing import Frame, FrameError
from holdfast.persistence.segment.frame_scanner import WINDOW_BYTES, FrameScanner, Gap, claimed_frames, first_message
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


def walked(parts: LogParts, frames: list[bytes], *, is_ordered: bool = True) -> list[object]:
    """Return payloads of frames, and of gaps where they start, what resumes, which frame does and why."""
    walk, _ = scanner(parts, frames)
    return [
        each.payload if isinstance(each, Frame) else (each.position, each.resume, each.reason, each.stray_index)
        for each in walk.frames(is_ordered=is_ordered)
        if isinstance(each, Frame) or each.position < each.resume or each.frame is not None
    ]


def test_a_gap_says_what_is_wrong_and_where_good_frames_begin_again(parts: LogParts) -> None:
    """A bad frame between two good ones, and garbage at the end."""
    frames = [frame(parts.header(), b"good", 0), frame(parts.header(), b"bad", 1), frame(parts.header(), b"next", 2)]
    first, second, end = (FRAMES_START + sum(map(len, frames[:count])) for count in (1, 2, 3))
    damaged = [frames[0], frames[1][:-1] + b"D", frames[2], b"\x01" * 40]
    assert walked(parts, damaged) == [
        b"good",
        (first, second, "the checksum does not match", 0),
        b"next",
        (end, end + 40, "no STX", 0),
    ]


def test_a_frame_that_comes_again_is_a_gap_and_hides_none_behind_it(parts: LogParts) -> None:
    """Its checksum is right, its index is not; the one right behind it is the next one."""
    frames = [frame(parts.header(), b"%d" % index, index) for index in (0, 1, 0, 2)]
    again, behind = (FRAMES_START + sum(map(len, frames[:count])) for count in (2, 3))
    assert walked(parts, frames) == [b"0", b"1", (again, behind, "", 0), b"2"]
    assert walked(parts, frames, is_ordered=False) == [b"0", b"1", b"0", b"2"]


def test_a_frame_of_a_later_index_comes_behind_a_gap_without_bytes(parts: LogParts) -> None:
    """What stood between is nowhere; the frame itself can be read."""
    frames = [frame(parts.header(), b"%d" % index, index) for index in (0, 5, 6)]
    later = FRAMES_START + len(frames[0])
    assert walked(parts, frames) == [b"0", (later, later, "", 5), b"5", b"6"]


def test_the_last_gap_is_the_end(parts: LogParts) -> None:
    """It has no bytes in a file that ends with a good frame."""
    walk, file = scanner(parts, [frame(parts.header(), b"only", 0)])
    *_, last = walk.frames()
    assert isinstance(last, Gap)
    assert (last.position, last.resume, last.frame) == (file.size(), file.size(), None)


def test_headers_are_followed_unverified_up_to_one_that_cannot_be(parts: LogParts) -> None:
    """A wrong checksum does not matter; a size that does not fit ends it, and so does the end of the file."""
    frames = [frame(parts.header(), b"a", 0), frame(parts.header(), b"b" * WINDOW_BYTES, 1)]
    damaged = [frames[0][:-1] + b"?", frames[1], b"\x02\xff\xff\xff\xff" + bytes(60)]
    _, file = scanner(parts, damaged)
    first, second, end = FRAMES_START + len(frames[0]), FRAMES_START + len(frames[0]) + len(frames[1]), file.size()
    found = [each[:3] + each[4:] for each in claimed_frames(file, FRAMES_START, end)]
    assert found == [(FRAMES_START, first, KIND_MESSAGE, 0), (first, second, KIND_MESSAGE, 1)]
    file.truncate(second + 10)
    assert [each[4] for each in claimed_frames(file, FRAMES_START, end)] == [0, 1]
    assert [each[4] for each in claimed_frames(file, FRAMES_START, second - 1)] == [0]


def test_the_first_message_is_found_behind_what_was_carried_and_nowhere_else(parts: LogParts) -> None:
    """A large one is read whole; too many other frames, or damage, hide it."""
    carried = frame(parts.header(), b"", 0, kind=KIND_MARK)
    large = frame(parts.header(), b"x" * 100_000, 0)
    for frames, found in [
        ([carried, large], large),
        ([carried] * 64 + [large], None),
        ([carried, large[:-1]], None),
        ([], None),
    ]:
        path, header = parts.data_file(frames)
        message = first_message(parts.storage.open(path), header)
        assert (None if message is None else len(message.payload)) == (None if found is None else 100_000)
