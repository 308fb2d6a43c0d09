"""Draining after a shutdown: the wait of takers, and the messages left. docs/work-queue.md, "Shutting down"."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import NamedTuple

from holdfast.clock import Clock
from holdfast.errors import ShutDown

logger = logging.getLogger("holdfast")

DRAIN_SECONDS = 20.0
"""Longer than all back-offs of a message by the defaults, 15 s; shorter than a lease, 30 s: what a thread holds while
it waits for more is not taken from it."""

_REASONS = {
    "not_taken": "not taken",
    "in_hand": "in hand",
    "backing_off": "waiting after a failure",
    "delayed": "delayed",
    "order_key": "waiting for their order key",
    "prepared": "held by prepared transactions",
    "paused": "paused",
}


class Left(NamedTuple):
    """The messages left in a group, and when more may be ready.

    Attributes
    ----------
    counts : dict of str to int
        How many there are, by reason.
    due_ns : int or None
        When the next one is ready that waits for its time, in nanoseconds since the epoch.
    is_paused : bool
        Whether the group hands nothing out.
    """

    counts: dict[str, int]
    due_ns: int | None = None
    is_paused: bool = False


class Draining:
    """The messages that a consumer group waits for after a shutdown.

    Parameters
    ----------
    clock : Clock
        Its monotonic seconds are those of the bound, its wall clock that of delays.

    Attributes
    ----------
    is_on : bool
        Whether the group was shut down.
    """

    def __init__(self, clock: Clock) -> None:
        self._monotonic = clock.monotonic
        self._time_ns = clock.time_ns
        self.is_on = False
        self._until = 0.0

    def begin(self, seconds: float | None) -> None:
        """Wait for so long from now; None: without a bound. Later calls replace the bound."""
        self._until = math.inf if seconds is None else self._monotonic() + seconds
        self.is_on = True

    def seconds_left(self) -> float | None:
        """Return how long a taker may still wait; None: it is not on, or has no bound."""
        return max(0.0, self._until - self._monotonic()) if self.is_on and self._until < math.inf else None

    def is_over(self, in_hand_count: int, due_ns: int | None) -> bool:
        """Whether a taker of a queue that was shut down, which has found nothing, has nothing to wait for.

        Parameters
        ----------
        in_hand_count : int
            Messages that may be given back.
        due_ns : int or None
            When the next message is ready that waits for its time, in nanoseconds since the epoch.
        """
        left = self._until - self._monotonic()
        if left <= 0:
            return True
        return not in_hand_count and (due_ns is None or due_ns - self._time_ns() > left * 1e9)


def shut_down_with(left: Mapping[str, int]) -> ShutDown:
    """Return the error for a taker, which counts the messages left, by reason."""
    some = {reason: count for reason, count in left.items() if count > 0}
    if not some:
        return ShutDown("the queue was shut down, and nothing is left in it")
    count = sum(some.values())
    reasons = ", ".join(f"{each} {_REASONS[reason]}" for reason, each in some.items())
    return ShutDown(
        f"the queue was shut down with {count} message{'s' if count > 1 else ''} left: {reasons}; "
        "they stay, open the queue again to take them",
        some,
    )


def log_left(name: object, error: ShutDown) -> None:
    """Log the messages that a loop leaves when it ends by :class:`ShutDown`; nothing if that is nothing."""
    if error.left:
        logger.warning("%s: %s", name, error)
