"""Reaches inside an open queue: the one place of the tests that knows where it keeps what does the work."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from holdfast import PersistentQueue
from holdfast.queue.engine import retention
from holdfast.queue.engine.queue_handle import QueueHandle
from holdfast.queue.producer.write_side import WriteSide


def handle_of(queue: PersistentQueue) -> QueueHandle:
    """Return what an open queue talks to."""
    return queue._handle


def end_commit_records(side: WriteSide) -> None:
    """End the commit records that can end, as the background does now and then."""
    side._record_ends.end_all()


def pass_over(queue: PersistentQueue) -> None:
    """Do a pass of retention, as the background does now and then."""
    idle_handles = queue._engine.idle_handles  # type: ignore[union-attr]  # it is one of a handle that owns the queue
    assert idle_handles is not None
    assert idle_handles.retention is not None
    idle_handles.retention.run()


@contextmanager
def no_passes() -> Iterator[None]:
    """Have no pass of retention begin by itself: on a fake clock a minute is over in the middle of anything."""
    with patch.object(retention, "start_thread", lambda work, name, end: None):
        yield
