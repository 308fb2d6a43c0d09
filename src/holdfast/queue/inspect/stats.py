"""Figures about a queue, for people and for metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from holdfast.clock import Clock
from holdfast.persistence.filesystem.storage import storage_errors
from holdfast.persistence.groups.pause_file import read_pause
from holdfast.persistence.groups.progress import GroupProgress
from holdfast.queue.engine.queue_handle import QueueHandle


@dataclass(frozen=True, slots=True)
class QueueStats:
    """The result of :meth:`PersistentQueue.stats`; gathered in constant time, except ``delayed`` in mode "read_only".

    If another process adds or retires data files, their figures are up to 0.1 seconds old.

    Attributes
    ----------
    depth : int
        Messages that the group has not finished, those in flight included.
    in_flight : int
        Messages that were delivered and are not settled, or that a prepared transaction holds. Mode "read_only" cannot
        tell whether their owner lives: once it has died, the next owner delivers them again.
    leased : int
        Those of them that were delivered.
    oldest_age_seconds : float or None
        How long ago the oldest unfinished message was put; None if there is none, or if this handle cannot read. Never
        less than the time for which this handle has known the message, even if the wall clock is set.
    clock_back_seconds : float
        How far the wall clock was set back behind the time at which that message was put; 0.0: it was not. Until it has
        caught up the age is only how long this handle has known of the message.
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
    delayed : int
        Messages that wait for their time or their order key, as far as this handle has read the log. Mode "read_only"
        reads 50,000 more messages each time, as long as it knows of fewer with options.
    dead : int
        Dead letters; the depth is without them.
    dropped : int
        Messages that the handle that owns the queue has dropped since it was opened, because they had expired.
    filtered : int
        Messages that the same handle has finished for the group because they do not match its filter.
    filter_failed : int
        Messages that it has passed on because that filter could not be evaluated for them.
    paused : str or None
        The reason of the pause, which may be empty; None: it is not paused.
    dedup_forgotten : int
        Deduplication ids that the same handle forgot before their time, because there were more than ``dedup_max``.
    skipped : int
        Messages that the group has skipped since it was made, because it was further behind than its ``max_lag_age`` or
        ``max_lag_bytes`` allows.
    oldest_prepared_seconds : float or None
        How long the oldest prepared transaction has been holding messages of the group; None if there is none.
    """

    depth: int
    in_flight: int
    leased: int
    oldest_age_seconds: float | None
    clock_back_seconds: float
    bytes_on_disk: int
    file_count: int
    first_offset: int
    next_offset: int
    recovered: int
    lost: int
    delayed: int
    dead: int
    dropped: int
    filtered: int
    filter_failed: int
    paused: str | None
    dedup_forgotten: int
    skipped: int
    oldest_prepared_seconds: float | None


class Counts(NamedTuple):
    """What an owner counts, in memory: figures that are in no file. As in :class:`QueueStats`."""

    dropped: int = 0
    filtered: int = 0
    filter_failed: int = 0
    dedup_forgotten: int = 0


def gather_stats(handle: QueueHandle, clock: Clock, counts: Counts) -> QueueStats:
    """Return the figures of an open queue."""
    files, read_side = handle.files, handle.read_side
    with storage_errors("listing data files", files.directory):
        files.glance()
    next_offset = handle.next_offset()  # before the depth: a depth of 0 then means that all below this is finished
    reader = read_side or handle.look_side
    in_flight = reader.in_flight_count if reader is not None else 0  # before the depth: ends expired leases
    age, back = _age_of_oldest(handle, clock, next_offset)
    recovery = handle.recovery()
    return QueueStats(
        depth=handle.depth(),
        in_flight=in_flight,
        leased=max(0, in_flight - reader.progress.held_count) if reader is not None else 0,
        oldest_age_seconds=age,
        clock_back_seconds=back,
        bytes_on_disk=files.total_bytes,
        file_count=len(files),
        first_offset=files.first_offset,
        next_offset=next_offset,
        recovered=recovery.recovered_count,
        delayed=reader.waiting_count if reader is not None else 0,
        dead=len(reader.progress.dead) if reader is not None else 0,
        dropped=counts.dropped,
        filtered=counts.filtered,
        filter_failed=counts.filter_failed,
        paused=_pause_reason(handle),
        dedup_forgotten=counts.dedup_forgotten,
        skipped=reader.progress.skipped_count if reader is not None else 0,
        oldest_prepared_seconds=_age_of_oldest_vote(reader.progress, clock) if reader is not None else None,
        lost=max(recovery.lost_count, reader.progress.lost_count if reader is not None else 0),
    )


def _age_of_oldest(handle: QueueHandle, clock: Clock, next_offset: int) -> tuple[float | None, float]:
    """Return the age of the oldest unfinished message, in seconds, and how far it lies ahead of the wall clock."""
    reader = handle.read_side or handle.look_side
    oldest = reader.oldest() if reader is not None else None
    known = handle.known_since.look(next_offset, None if oldest is None else oldest[1])
    if oldest is None:
        return None, 0.0
    age = (clock.time_ns() - oldest[0]) / 1e9
    return max(age, known), max(0.0, -age)


def _age_of_oldest_vote(progress: GroupProgress, clock: Clock) -> float | None:
    prepared = [vote.timestamp_ns for vote in list(progress.votes.values())]
    return max(0.0, (clock.time_ns() - min(prepared)) / 1e9) if prepared else None


def _pause_reason(handle: QueueHandle) -> str | None:
    if handle.read_side is not None:
        pause = handle.read_side.pausing.current
    else:
        with storage_errors("looking for a pause", handle.directory.groups):
            pause = read_pause(handle.storage, handle.directory.group(handle.options.group))
        if pause is not None and pause.is_over(handle.clock.time_ns()):
            pause = None
    return None if pause is None else pause.reason
