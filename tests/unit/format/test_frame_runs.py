"""Runs of frames, as the implementation reads them that serves."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.persistence.format.constants import KIND_MARK
from holdfast.persistence.format.frame_runs import find_messages, read_messages
from holdfast.persistence.format.framing import encode_frame, encode_messages

SALT = 7

Found = tuple[list[bytes], tuple[int, bool]]
"""The payloads that are found, the index behind them, and whether all was good."""

Reading = Callable[[bytes, int, int, "list[int] | None"], Found]


def frames(index: int, payloads: list[bytes], headers: dict[int, bytes] | None = None, timestamp_ns: int = 0) -> bytes:
    """Return a batch whose first message has this index."""
    return b"".join(encode_messages(SALT, index, 0, timestamp_ns, headers, payloads, True, True))


def mark(index: int) -> bytes:
    """Return a frame that is no message."""
    return b"".join(encode_frame(SALT, b"", index=index, durable_mark=0, timestamp_ns=0, kind=KIND_MARK))


def found(data: bytes, index: int, index_end: int, gaps: list[int] | None) -> Found:
    """Look where the payloads are."""
    bounds: list[int] = []
    _, behind, is_good, _ = find_messages(data, 0, SALT, 0, index, index_end, bounds, [], {}, gaps)
    return [data[start:end] for start, end in zip(bounds[::2], bounds[1::2], strict=True)], (behind, is_good)


def read(data: bytes, index: int, index_end: int, gaps: list[int] | None) -> Found:
    """Copy the payloads."""
    records: list[tuple[int, int, bytes, bytes, int, int]] = []
    _, behind, is_good, _ = read_messages(data, 0, len(data), SALT, 0, 0, index, index_end, 0, 0, records, gaps)
    return [record[3] for record in records], (behind, is_good)


both_ways = pytest.mark.parametrize("reading", [found, read])


@both_ways
def test_a_message_behind_a_gap_is_found_only_where_gaps_may_be(reading: Reading) -> None:
    """Merged files have some; in any other file a message that is missing is damage."""
    data, gaps = frames(0, [b"a"]) + frames(5, [b"b"]), list[int]()
    assert reading(data, 0, 9, gaps) == ([b"a", b"b"], (6, True))
    assert gaps == [1, 5]
    assert reading(data, 0, 9, None) == ([b"a"], (1, False))


@both_ways
@pytest.mark.parametrize("index_end", [3, 5])
def test_a_gap_that_reaches_to_the_end_ends_the_run(reading: Reading, index_end: int) -> None:
    """What is behind it was not asked for."""
    gaps: list[int] = []
    assert reading(frames(0, [b"a"]) + frames(5, [b"b"]), 0, index_end, gaps) == ([b"a"], (5, True))
    assert gaps == [1, 5]


@both_ways
def test_a_gap_in_front_of_what_is_no_message_is_a_gap_too(reading: Reading) -> None:
    """The index that it names is that of the next message."""
    gaps: list[int] = []
    assert reading(frames(0, [b"a"]) + mark(5) + frames(5, [b"b"]), 0, 9, gaps) == ([b"a", b"b"], (6, True))
    assert gaps == [1, 5]


@both_ways
def test_what_is_no_message_is_passed_over(reading: Reading) -> None:
    """Messages behind it are found."""
    assert reading(frames(0, [b"a"]) + mark(1) + frames(1, [b"b"]), 0, 9, None) == ([b"a", b"b"], (2, True))


@both_ways
def test_a_frame_that_is_not_whole_ends_the_run_and_a_bad_one_is_not_good(reading: Reading) -> None:
    """More of the file may be read behind the one; the other is damage."""
    data = frames(0, [b"a"]) + frames(1, [b"bbb"])
    assert reading(data[:-1], 0, 9, None) == ([b"a"], (1, True))
    assert reading(data[:-1] + b"x", 0, 9, None) == ([b"a"], (1, False))


@both_ways
def test_what_was_not_asked_for_is_left(reading: Reading) -> None:
    """The run ends in front of it."""
    assert reading(frames(0, [b"a", b"b"]), 0, 1, None) == ([b"a"], (1, True))


@pytest.mark.parametrize(("timestamp_ns", "shown"), [(8, 20), (30, 30)])
def test_headers_come_apart_from_payloads_and_times_are_those_of_the_file_at_the_least(
    timestamp_ns: int, shown: int
) -> None:
    """Of each message; one of a file with an earlier clock is not older than the file."""
    data, base = frames(0, [b"a", b"b"], {1: b"headers"}, timestamp_ns), 20
    records: list[tuple[int, int, bytes, bytes, int, int]] = []
    end, _, _, has_headers = read_messages(data, 0, len(data), SALT, base, 100, 0, 9, 1000, 3, records, None)
    assert has_headers
    middle = len(frames(0, [b"a"]))
    assert records == [(100, shown, b"", b"a", 1000 + middle, 3), (101, shown, b"headers", b"b", 1000 + end, 3)]
    bounds: list[int] = []
    times: list[int] = []
    headers: dict[int, bytes] = {}
    _, _, _, has_others = find_messages(data, 0, SALT, base, 0, 9, bounds, times, headers, None)
    assert (times, headers, has_others) == ([shown, shown], {1: b"headers"}, False)
    assert [data[start:stop] for start, stop in zip(bounds[::2], bounds[1::2], strict=True)] == [b"a", b"b"]
