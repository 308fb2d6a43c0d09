"""Looks after an open queue now and then: closes file handles that it does not need, and begins passes of retention.

Idle handles are those of its readers, and that of ``write.mark``. They are opened again at the next use, which costs
microseconds. Handles that hold a lock, or on which a sync may still report an error, stay open. If the application
drops the queue without closing it, all handles are closed.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.queue.engine.queue_handle import QueueHandle
from holdfast.queue.engine.retention import RetentionPass
from holdfast.queue.threads.poller import unwatch, watch
from holdfast.threads import start_thread

REST_SECONDS = 1.0
"""What was not used from one look to the next is closed: after 1 to 2 s."""


class IdleHandles:
    """Looks after the handles of one queue while it is open.

    Parameters
    ----------
    handle : QueueHandle
        The queue, with its write side, its read side, or both.

    Attributes
    ----------
    retention : RetentionPass or None
        Removes what is not kept; None without the write side.
    """

    def __init__(self, handle: QueueHandle) -> None:
        self._handle = handle
        self._close: Callable[[], None] | None = None
        self._is_in_use: Callable[[], bool] = lambda: False
        self.retention = RetentionPass(handle) if handle.options.writes else None  # not for each group beside it
        watch(self, handle.clock)

    def close_soon(self, close: Callable[[], None], is_in_use: Callable[[], bool]) -> None:
        """Close a dropped queue, in a thread, once it is not in use any more; does not wait."""
        self._is_in_use = is_in_use
        self._close = close

    def look(self) -> float:
        """Close handles that were not used since the last poll; does not wait for busy threads."""
        if self.retention is not None:
            self._handle.require_write_side().rest()
            self.retention.look()
        if self._handle.read_side is not None:
            self._handle.read_side.rest()
        close = self._close
        if close is not None and not self._is_in_use():  # long work is not done here
            self._close = None
            if start_thread(close, "holdfast-closing", lambda: None) is None:
                self._close = close
        return REST_SECONDS

    def stop(self) -> None:
        """End the polling, and the pass that is under way."""
        unwatch(self, self._handle.clock)
        if self.retention is not None:
            self.retention.stop()
