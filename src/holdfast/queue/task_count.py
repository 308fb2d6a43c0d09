"""``task_done`` and ``join``, counted in memory as the standard library does, and nothing more."""

from __future__ import annotations

import threading
from collections.abc import Callable


class TaskCount:
    """Counts what was put against what was reported done.

    Parameters
    ----------
    put_count : callable
        Messages that this handle has had to do with so far: the depth at opening, and what has been put since.
    """

    def __init__(self, put_count: Callable[[], int]) -> None:
        self._put_count = put_count
        self._done_count = 0
        self._released = False
        self._condition = threading.Condition()

    def task_done(self) -> None:
        """Report one message as done; raises ValueError when called more often than there were messages."""
        with self._condition:
            if self._done_count >= self._put_count():
                raise ValueError("task_done() called too many times")
            self._done_count += 1
            self._condition.notify_all()

    def join(self) -> None:
        """Wait until every message was reported done, or :meth:`release` was called."""
        with self._condition:
            self._condition.wait_for(lambda: self._released or self._done_count >= self._put_count())

    def release(self) -> None:
        """Let everybody who joins go."""
        with self._condition:
            self._released = True
            self._condition.notify_all()
