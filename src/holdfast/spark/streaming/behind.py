"""Tells from Spark's own reports of progress how far a stream is behind its queue. docs/spark-stream.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.spark.streaming.many_offset import places_in


def behind(progress: Mapping[str, Any] | None) -> int | None:
    """Return how many messages of its queues a query has not read.

    Parameters
    ----------
    progress : StreamingQueryProgress or None
        ``query.lastProgress``, one of ``query.recentProgress``, or ``event.progress`` in a listener.

    Returns
    -------
    int or None
        Messages that were put behind the end of the last batch, at the time of the report; of all queues that the query
        reads. None until it has reported its first batch.
    """
    if progress is None:
        return None
    counts = []
    for source in progress["sources"]:
        ends, latest = (places_in(source[name] or "") for name in ("endOffset", "latestOffset"))
        log_ends = {place.queue_id: place.offset for place in latest}
        counts += [max(0, log_ends[end.queue_id] - end.offset) for end in ends if end.queue_id in log_ends]
    return sum(counts) if counts else None
