"""Reaches inside an open queue: the one place of the tests that knows where it keeps what does the work."""

from holdfast import PersistentQueue
from holdfast.queue.engine.queue_handle import QueueHandle
from holdfast.queue.producer.write_side import WriteSide


def handle_of(queue: PersistentQueue) -> QueueHandle:
    """Return what an open queue talks to."""
    return queue._handle


def end_commit_records(side: WriteSide) -> None:
    """End the commit records that can end, as the background does now and then."""
    side._record_ends.end_all()
