"""Runs of frames, as the implementation reads them that serves."""

from __future__ import annotations

import pytest

from holdfast.persistence.format.frame_runs import find_messages
from holdfast.persistence.format.framing import encode_messages

SALT = 7


def frames(index: int, payloads: list[bytes]) -> bytes:
    """Return a batch whose first message has this index."""
    return b"".join(encode_messages(SALT, index, 0, 0, None, payloads, True, True))


def found(data: bytes, index: int, index_end: int, gaps: list[int] | None) -> tuple[list[bytes], tuple[int, bool]]:
    """Return the payloads that are found, the index behind them, and whether all was good."""
    bounds: list[int] = []
    _, behind, is_good, _ = find_messages(data, 0, SALT, 0, index, index_end, bounds, [], {}, gaps)
    return [data[start:end] for start, end in zip(bounds[::2], bounds[1::2], strict=True)], (behind, is_good)


def test_a_message_behind_a_gap_is_found_only_where_gaps_may_be() -> None:
    """Merged files have some; in any other file a message that is missing is damage."""
    data, gaps = frames(0, [b"a"]) + frames(5, [b"b"]), list[int]()
    assert found(data, 0, 9, gaps) == ([b"a", b"b"], (6, True))
    assert gaps == [1, 5]
    assert found(data, 0, 9, None) == ([b"a"], (1, False))


@pytest.mark.parametrize("index_end", [3, 5])
def test_a_gap_that_reaches_to_the_end_ends_the_run(index_end: int) -> None:
    """What is behind it was not asked for."""
    gaps: list[int] = []
    assert found(frames(0, [b"a"]) + frames(5, [b"b"]), 0, index_end, gaps) == ([b"a"], (5, True))
    assert gaps == [1, 5]
