"""Messages that came while a thread only waited."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

from holdfast.queue.client.taken_ahead import TakenAhead
from holdfast.queue.dispatch.delivery import Delivery


def delivery(offset: int) -> Delivery:
    """Return a delivery of no queue."""
    return Delivery(None, (offset, 0, b"", b"", 0, 0), 1)  # type: ignore[arg-type]


def test_the_first_one_that_is_still_in_hand_is_claimed() -> None:
    """One whose lease has ended, or that a shutdown gave back, is another taker's by now."""
    ahead, (first, second) = TakenAhead(), (delivery(0), delivery(1))
    assert (bool(ahead), ahead.due()) == (False, math.inf)
    ahead.add(first)
    ahead.add(second)
    first.is_settled = True
    assert ahead
    assert ahead.claim(None, None, _refuse) == [second]
    assert ahead.claim(None, None, _refuse) == []


def test_a_thread_that_is_slower_than_another_one_claims_nothing() -> None:
    """Both have seen that there is one."""

    class Emptied(deque[Any]):
        def popleft(self) -> Any:
            raise IndexError

    ahead = TakenAhead()
    ahead._waiting = Emptied([(delivery(0), 0.0)])
    assert ahead.claim(None, None, _refuse) == []


def _refuse(*_: object) -> None:
    raise AssertionError("it asks for no lease")
