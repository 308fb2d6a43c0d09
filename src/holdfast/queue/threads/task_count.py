"""``task_done`` and ``join``, counted in memory as the standard library does, and nothing more."""

from __future__ import annotations

import threading
from collections.abc import Callable

from holdfast.queue.threads.notifier import Notifier

_LOOK_SECONDS = 1.0
"""How often who joins looks for messages that nobody will be given any more."""


class TaskCount:
    """Counts messages that were put against those reported done.

    Parameters
    ----------
    put_count : callable
        Messages that this handle has had to do with so far: the depth at opening, and messages put since; without those
        that are not delivered any more.
    look : callable
        Sees whether there are more of these; may raise what a take does.
    taken_count : callable
        Messages that this handle has taken so far. Asked behind :meth:`release` alone: of those left, none can be done.
    """

    def __init__(self, put_count: Callable[[], int], look: Callable[[], None], taken_count: Callable[[], int]) -> None:
        self._put_count = put_count
        self._look = look
        self._taken_count = taken_count
        self._done_count = 0
        self._released = False
        self._lock = threading.Lock()
        self._notifier = Notifier()

    def task_done(self) -> None:
        """Report one message as done; raises ValueError when called more often than there were messages."""
        with self._lock:
            possible_count = self._taken_count() if self._released else self._put_count()
            if self._done_count >= possible_count:
                raise ValueError("task_done() called too many times")
            self._done_count += 1
        self._notifier.notify()

    def call_off(self, count: int) -> None:
        """Count messages as reported, because they were finished unseen."""
        with self._lock:
            self._done_count += count
        self._notifier.notify()

    def join(self) -> None:
        """Wait until every message was reported done, or :meth:`release` was called."""
        while not self._is_over():
            self._notifier.wait(self._is_over, _LOOK_SECONDS)
            self._look()

    @property
    def unfinished_count(self) -> int:
        """Messages that were not reported done."""
        return 0 if self._released else max(0, self._put_count() - self._done_count)

    def look_again(self) -> None:
        """Wake all threads in ``join``, so that they check the count."""
        self._notifier.notify()

    def release(self) -> None:
        """End the wait of all threads in ``join``: what was not taken will not be."""
        self._released = True
        self._notifier.notify()

    def _is_over(self) -> bool:
        return not self.unfinished_count
