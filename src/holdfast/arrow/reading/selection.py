"""What a read asks for: offsets and times of one queue, and whose messages."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from pathlib import Path

from holdfast.arrow.reading.frame_walk import Walked
from holdfast.queue.options.message_filter import MessageFilter

NO_END = 2**63 - 1

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def nanoseconds_of(time: dt.datetime) -> int:
    """Return nanoseconds since the epoch; UTC if the time has no zone."""
    time = time if time.tzinfo else time.replace(tzinfo=dt.UTC)
    return (time - _EPOCH) // dt.timedelta(microseconds=1) * 1000


@dataclass(frozen=True, slots=True)
class Selection:
    """Messages of a queue.

    Attributes
    ----------
    path : Path
        The queue.
    offset_start, offset_end : int
        The first offset, and the one behind the last.
    timestamp_start_ns, timestamp_end_ns : int
        The same of timestamps, in nanoseconds since the epoch.
    group : str or None
        Whose unfinished messages; None: all that are in the data files.
    filter : str or None
        An expression that they match: docs/filters.md; None: all.
    """

    path: Path
    offset_start: int = 0
    offset_end: int = NO_END
    timestamp_start_ns: int = 0
    timestamp_end_ns: int = NO_END
    group: str | None = None
    filter: str | None = None

    def in_time(self, walked: Walked) -> Walked:
        """Return those of contiguous messages whose timestamps are asked for."""
        start, end = self.timestamp_start_ns, self.timestamp_end_ns
        if start == 0 and end == NO_END:
            return walked
        times = walked.timestamps_ns
        if start <= times[0] and times[-1] < end:  # timestamps never go backwards
            return walked
        return walked.chosen([place for place, time in enumerate(times) if start <= time < end])


def matching(walked: Walked, message_filter: MessageFilter) -> Walked:
    """Return those of some messages that pass a filter."""
    passes, headers, bounds = message_filter.passes, walked.headers, walked.bounds
    places = [
        place
        for place, (offset, time_ns) in enumerate(zip(walked.offsets, walked.timestamps_ns, strict=True))
        if passes(offset, time_ns, headers.get(place, b""), bounds[2 * place + 1] - bounds[2 * place])
    ]
    return walked if len(places) == len(walked) else walked.chosen(places)
