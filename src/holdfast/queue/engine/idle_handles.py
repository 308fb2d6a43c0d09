"""Lets go of handles that an idle queue does not need: those of its readers, and that of ``write.mark``.

They are opened again at the next use, which costs microseconds. What holds a lock, and what a sync may still have to
report an error on, stays open. Until the application has let go of the queue without closing it: then all of it goes.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.queue.engine.queue_handle import QueueHandle
from holdfast.queue.threads.poller import unwatch, watch
from holdfast.threads import start_thread

REST_SECONDS = 1.0
"""What was not used from one look to the next is closed: after 1 to 2 s."""


class IdleHandles:
    """Looks after the handles of one queue while it is open.

    Parameters
    ----------
    sides : QueueHandle
        The queue, with its write side, its read side, or both.
    """

    def __init__(self, sides: QueueHandle) -> None:
        self._sides = sides
        self._close: Callable[[], None] | None = None
        self._is_in_use: Callable[[], bool] = lambda: False
        watch(self, sides.clock)

    def close_soon(self, close: Callable[[], None], is_in_use: Callable[[], bool]) -> None:
        """Close a queue that was dropped, in a thread, once nothing of it is in use any more; waits for nobody."""
        self._is_in_use = is_in_use
        self._close = close

    def look(self) -> float:
        """Close what was not used since the last look; waits for nobody who is at work."""
        if self._sides.write_side is not None:
            self._sides.write_side.rest()
        if self._sides.read_side is not None:
            self._sides.read_side.rest()
        close = self._close
        if close is not None and not self._is_in_use():  # what takes long is not done here
            self._close = None
            if start_thread(close, "holdfast-closing", lambda: None) is None:
                self._close = close
        return REST_SECONDS

    def stop(self) -> None:
        """Look no more."""
        unwatch(self, self._sides.clock)
