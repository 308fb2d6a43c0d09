"""Numbers of messages, as callers give them: whole ones of any kind and size, the same with C and without."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import PersistentQueue, UsageError

TAKING: dict[str, Callable[[PersistentQueue, Any], object]] = {
    "get_many": lambda queue, count: queue.get_many(count, timeout=0),
    "receive_many": lambda queue, count: list(queue.receive_many(count, timeout=0)),
    "peek": lambda queue, count: queue.peek(count),
}


class Hundred:
    """A number as other libraries have them."""

    def __index__(self) -> int:
        return 100


@pytest.fixture
def queue(tmp_path: Path) -> Any:
    """Open a queue of 200 messages."""
    with PersistentQueue(tmp_path / "q", mode="exclusive") as opened:
        opened.put_many([b"message"] * 200)
        yield opened


@pytest.mark.parametrize("verb", TAKING)
@pytest.mark.parametrize(("count", "most"), [(5, 5), (Hundred(), 100), (2**64, 200)])
def test_a_count_is_any_whole_number(queue: PersistentQueue, verb: str, count: object, most: int) -> None:
    """One that is larger than any queue means all."""
    found = TAKING[verb](queue, count)
    assert isinstance(found, list)
    assert 0 < len(found) <= most
    assert (len(found) == most) or verb != "peek"


@pytest.mark.parametrize("verb", TAKING)
@pytest.mark.parametrize("count", [100.0, math.inf, None])
def test_what_is_no_whole_number_is_refused(queue: PersistentQueue, verb: str, count: object) -> None:
    """With one line, and nothing is taken."""
    with pytest.raises(TypeError, match="max_messages is a number from 1 on"):
        TAKING[verb](queue, count)
    assert queue.depth() == 200


def test_one_delivery_may_come_in_any_collection(queue: PersistentQueue) -> None:
    """As several may."""
    batch = queue.receive_many(3)
    one, two, three = batch
    batch.ack({one})
    batch.ack({two, three})
    assert queue.depth() == 197


@pytest.mark.parametrize("options", [{}, {"ttl": 5}])
def test_a_priority_is_a_number(queue: PersistentQueue, options: dict[str, Any]) -> None:
    """Whatever else the message asks for."""
    with pytest.raises(UsageError, match="priority is 0 to 9"):
        queue.put(b"message", priority=None, **options)  # type: ignore[arg-type]
    assert queue.depth() == 200
