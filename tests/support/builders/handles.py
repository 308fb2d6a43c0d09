"""Reaches inside an open queue: the one place of the tests that knows where it keeps what does the work."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from holdfast import DiskFullError, PersistentQueue
from holdfast.persistence.filesystem.layout import list_segments
from holdfast.persistence.format.constants import ENTRY, ENTRY_CRC, FRAMES_START
from holdfast.persistence.groups.position_entry import decode_entry
from holdfast.persistence.prepared_log import prepared_log
from holdfast.persistence.prepared_log.prepared_log import PreparedLog
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


def move_entries(queue: PersistentQueue) -> None:
    """Move what waits in the prepared log to batch files, as the background does after a while."""
    moves = queue._engine._log_moves  # type: ignore[union-attr]  # it is one of a handle that owns the queue
    assert moves is not None
    with patch.object(prepared_log, "UNDECIDED_SECONDS", 0.0):
        moves.run()


def without_moves(queue: PersistentQueue) -> PersistentQueue:
    """Stop what moves entries in the background: they stay until :func:`move_entries`."""
    moves = queue._engine._log_moves  # type: ignore[union-attr]  # it is one of a handle that owns the queue
    assert moves is not None
    moves.stop()
    return queue


def log_of(queue: PersistentQueue) -> PreparedLog:
    """Return the prepared log of an open queue."""
    return handle_of(queue).require_batches().prepared.log


def segments(queue: PersistentQueue) -> list[int]:
    """Return the sequences of the segments of its prepared log."""
    return list_segments(handle_of(queue).storage, handle_of(queue).directory)


def without_space(queue: PersistentQueue) -> None:
    """Let the log of an open queue refuse the next batch; after that something has been given back."""
    writer = queue._handle.require_write_side()._writer
    append = writer.append_batch

    def refuse(*_: object) -> None:
        writer.append_batch = append  # type: ignore[method-assign]
        raise DiskFullError("no space", path=str(queue.path))

    writer.append_batch = refuse  # type: ignore[assignment, method-assign]


@contextmanager
def no_passes() -> Iterator[None]:
    """Have no pass of retention begin by itself: on a fake clock a minute is over in the middle of anything."""
    with patch.object(retention, "start_thread", lambda work, name, end: None):
        yield


def without_fast_lane(queue: PersistentQueue) -> PersistentQueue:
    """Have an open queue do everything in the general way, which is the oracle of the fast lane; return the queue."""
    side = queue._handle.require_read_side()
    side._dispatcher.take_one = lambda: None  # type: ignore[method-assign]
    side._finish_one = lambda delivery: None  # type: ignore[method-assign]
    return queue


def position_entries(queue: PersistentQueue) -> list[bytes]:
    """Return the entries of an open group's position file, without their checksums.

    These depend on a number that each file draws by lot; that they are right is for the reader of the file.
    """
    store = queue._handle.require_read_side().progress_store
    if store is None:
        return []
    writer = store._positions
    file = writer._file
    assert file is not None
    data = file.read_at(writer._slot * ENTRY.size, FRAMES_START)
    entries = [data[at : at + ENTRY.size] for at in range(0, len(data), ENTRY.size)]
    assert all(decode_entry(each, 0, writer._salt, number) for number, each in enumerate(entries))
    return [each[ENTRY_CRC.size :] for each in entries]
