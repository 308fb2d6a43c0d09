"""Figures about a queue, for people and for metrics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QueueStats:
    """What :meth:`PersistentQueue.stats` returns; gathered in constant time.

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
