"""Figures about a queue, for people and for metrics."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.clock import Clock
from holdfast.persistence.storage import storage_errors
from holdfast.queue.sides import Sides


@dataclass(frozen=True, slots=True)
class QueueStats:
    """What :meth:`PersistentQueue.stats` returns; gathered in constant time.

    Where another process adds or retires data files, what is said of those is up to 0.1 seconds old.

    Attributes
    ----------
    depth : int
        Messages that the group has not finished, those in flight included.
    in_flight : int
        Messages that this handle has handed out and that are not settled.
    oldest_age_seconds : float or None
        How long ago the oldest unfinished message was put; None where there is none, and where this handle cannot read.
    bytes_on_disk : int
        Size of the data files, reserved space included.
    file_count : int
        Data files.
    first_offset, next_offset : int
        Offset of the oldest message in the data files, and of the one that comes next.
    recovered : int
        Messages above the last known synced position that opening kept.
    lost : int
        Messages lost to damage.
    """

    depth: int
    in_flight: int
    oldest_age_seconds: float | None
    bytes_on_disk: int
    file_count: int
    first_offset: int
    next_offset: int
    recovered: int
    lost: int


def gather_stats(sides: Sides, clock: Clock) -> QueueStats:
    """Return the figures of an open queue."""
    files, read_side = sides.files, sides.read_side
    with storage_errors("listing data files", files.directory):
        files.glance()
    next_offset = sides.next_offset()  # before the depth: a depth of 0 then means that all below this is finished
    reader = read_side or sides.look_side
    oldest = reader.oldest_timestamp_ns() if reader is not None else None
    recovery = sides.recovery()
    return QueueStats(
        depth=sides.depth(),
        in_flight=read_side.in_flight_count if read_side is not None else 0,
        oldest_age_seconds=None if oldest is None else max(0.0, (clock.time_ns() - oldest) / 1e9),
        bytes_on_disk=files.total_bytes,
        file_count=len(files),
        first_offset=files.first_offset,
        next_offset=next_offset,
        recovered=recovery.recovered_count,
        lost=max(recovery.lost_count, read_side.progress.lost_count if read_side is not None else 0),
    )
