"""Makes a batch wait until it is worth its cost, but not for ever."""

from __future__ import annotations

import time


class Minimum:
    """The least of one batch.

    Parameters
    ----------
    message_count : int
        A batch waits for so many messages.
    max_delay : float, seconds
        But no longer than that, from when the first of them was seen.

    Notes
    -----
    The delay is measured by this process: a clock that jumps does not count; a restarted stream waits anew.
    """

    def __init__(self, message_count: int, max_delay: float) -> None:
        self._message_count = message_count
        self._max_delay = max_delay
        self._seen: tuple[int, float] | None = None

    def is_reached(self, start: int, end: int) -> bool:
        """Whether the messages from ``start`` to ``end``, one at least, are a batch by now."""
        if end - start >= self._message_count:
            return True
        now = time.monotonic()
        if self._seen is None or self._seen[0] != start:
            self._seen = start, now
        return now - self._seen[1] >= self._max_delay
