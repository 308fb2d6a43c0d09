"""Reaches inside an open queue: the one place of the tests that knows where it keeps what does the work."""

from holdfast import PersistentQueue
from holdfast.queue.engine.queue_handle import QueueHandle


def handle_of(queue: PersistentQueue) -> QueueHandle:
    """Return what an open queue talks to."""
    return queue._handle
