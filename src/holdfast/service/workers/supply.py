"""The supply of a consumer's messages: from its queue, decoded here or in the worker that handles them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from holdfast.errors import ShutDown
from holdfast.queue.dispatch.delivery import Delivery
from holdfast.service.typed_queue import TypedQueue


class Supply:
    """The messages of one queue.

    Parameters
    ----------
    queue : TypedQueue
        The queue.
    is_decoded : bool
        Whether deliveries have a body; else that is for another process to make out.
    """

    def __init__(self, queue: TypedQueue[Any], *, is_decoded: bool) -> None:
        self._queue = queue
        self._is_decoded = is_decoded

    def take(self, count_max: int) -> Sequence[Delivery[Any]]:
        """Take from 1 to ``count_max`` messages without waiting; raises as :meth:`TypedQueue.receive_many`."""
        if self._is_decoded:
            return self._queue.receive_many(count_max, timeout=0)[:]
        return self._queue.failover.receive_many(count_max, timeout=0)[:]

    def wait(self, is_over: Callable[[], bool]) -> None:
        """Sleep until there may be something to take, or ``is_over()`` at a :meth:`wake`."""
        self._queue.failover.wait_for_more(None, is_over)

    def wake(self) -> None:
        """Wake waiting threads, so that they check again."""
        self._queue.failover.wake()

    def ending(self) -> ShutDown:
        """Return the error that counts the messages left if takers ended now."""
        return self._queue.raw.ending()
