"""The capacity of a queue, ``maxsize`` and ``max_bytes``: producers wait when it is used up."""

from __future__ import annotations

import time
from collections.abc import Callable

from holdfast.errors import NO_ROOM, Full, RecordTooLargeError
from holdfast.queue.threads.notifier import Notifier

_POLL_SECONDS = 0.02
"""How often to look where consumers in other processes may have made room."""


class Capacity:
    """Tells whether there is space, and waits for it.

    Parameters
    ----------
    maxsize : int
        Most messages that the slowest group may have unfinished; 0: no bound.
    max_bytes : int or None
        Most bytes that data files may take; None: no bound.
    depth : callable
        How many messages the slowest group has unfinished now.
    disk_bytes : callable
        How many bytes data files would take with so many bytes more of frames.

    Attributes
    ----------
    maxsize, max_bytes
        The bounds.
    is_bounded : bool
        Whether there is any.
    space_available : Notifier
        Notified when messages are finished.
    wanted_bytes : int
        Of the largest put that has found no space below ``max_bytes``, until a pass of retention has made some.
    """

    def __init__(
        self, maxsize: int, max_bytes: int | None, depth: Callable[[], int], disk_bytes: Callable[[int], int]
    ) -> None:
        self.maxsize = maxsize
        self.max_bytes = max_bytes
        self.is_bounded = bool(maxsize) or max_bytes is not None
        self._depth = depth
        self._disk_bytes = disk_bytes
        self.space_available = Notifier()
        self.wanted_bytes = 0

    def change(self, maxsize: int, max_bytes: int | None) -> None:
        """Set other bounds; waiting producers check again."""
        is_bounded = bool(maxsize) or max_bytes is not None  # worked out first: nothing interrupts the assignments
        self.maxsize = maxsize
        self.max_bytes = max_bytes
        self.is_bounded = is_bounded
        self.space_available.notify()

    def check_fits(self, count: int) -> None:
        """Refuse a batch that could never fit; raises RecordTooLargeError."""
        if self.maxsize and count > self.maxsize:
            raise RecordTooLargeError(
                f"a batch of {count} messages can never fit maxsize={self.maxsize}; put smaller ones",
                size_bytes=count,
                max_bytes=self.maxsize,
            )

    def has_space(self, count: int, size_bytes: int) -> bool:
        """Whether ``count`` messages of ``size_bytes`` in all may be put now."""
        if self.maxsize and count and self._depth() + count > self.maxsize:
            return False
        if self.max_bytes is None or self._disk_bytes(size_bytes) <= self.max_bytes:
            return True
        self.wanted_bytes = max(self.wanted_bytes, size_bytes)
        return False

    def wait(self, count: int, size_bytes: int, deadline: float | None, is_open: Callable[[], bool]) -> None:
        """Sleep until there may be space for these messages.

        Raises queue.Full once ``deadline`` is over; RecordTooLargeError if they can never fit a bound that was changed.
        """
        self.check_fits(count)
        pause = _POLL_SECONDS
        if deadline is not None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise Full(NO_ROOM)
            pause = min(pause, left)
        self.space_available.wait(lambda: not is_open() or self.has_space(count, size_bytes), pause)
