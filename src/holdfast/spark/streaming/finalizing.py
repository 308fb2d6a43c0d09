"""Finishes the last batches of a stream, which Spark has not confirmed. docs/spark-stream.md.

Spark tells a source that a batch is committed when it plans the next one; so the last batches of an ended stream stay
in the queue until its checkpoint is read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from holdfast.errors import ConfigError
from holdfast.persistence.filesystem.storage import OsStorage, Storage, storage_errors
from holdfast.persistence.groups.group_files import require_group
from holdfast.spark.checkpoint import sync_files, sync_plan
from holdfast.spark.reading.options import local_path
from holdfast.spark.streaming.group import finish_below
from holdfast.spark.streaming.log import StreamLog
from holdfast.spark.streaming.many_offset import places_in
from holdfast.spark.streaming.offset import StreamOffset
from holdfast.spark.streaming.options import own_group


def finalize(
    queue: str | os.PathLike[str], checkpoint: str | os.PathLike[str], *, group: str, retain_batches: int = 0
) -> int:
    """Finish the messages of all batches that a stream has committed; at its end, or at any time.

    Parameters
    ----------
    queue : str or path-like
        The queue.
    checkpoint : str or path-like
        The stream's ``checkpointLocation``, on a file system of this machine.
    group : str
        The stream's consumer group.
    retain_batches : int
        Committed batches whose messages stay.

    Returns
    -------
    int
        Messages below this offset are finished; 0 for none.

    Raises
    ------
    ConfigError
        There is no checkpoint, it is of another queue, or a consumer uses this group.
    QueueNotFoundError, GroupNotFoundError
        There is none of that name.
    QueueLockedError
        A process reads for the group just now.

    Notes
    -----
    Spark syncs nothing of its checkpoint; this syncs what Spark needs to know that the last batch is
    committed, before the messages go. It does not sync the stream's output, nor the state of its operators.
    """
    own_group(group)
    storage = OsStorage()
    root = Path(os.path.abspath(queue))
    with storage_errors("finalizing a stream", root):
        log = StreamLog.look(storage, root)
        require_group(storage, log.directory, group)
        found = local_path(os.fspath(checkpoint))
        if found is None:
            raise ConfigError(f"{checkpoint} is not on a file system of this machine: copy it, and name the copy")
        place = _last_committed(storage, found, log.queue_id.hex())
        offset = None if place is None else place.finished_below(retain_batches)
        if offset is None:
            return 0
        finish_below(log, group, offset)
        return offset


def _last_committed(storage: Storage, checkpoint: Path, queue_id: str) -> StreamOffset | None:
    """Return where the last committed batch ends, made durable; None if no batch was committed."""
    commits, offsets = checkpoint / "commits", checkpoint / "offsets"
    if not commits.is_dir():
        if not offsets.is_dir():
            raise ConfigError(f"{checkpoint} is no checkpoint of a stream: name its checkpointLocation")
        return None
    batches = [int(entry.name) for entry in commits.iterdir() if entry.name.isdecimal()]
    if not batches:
        return None
    batch = max(batches)
    path = offsets / str(batch)
    places = [place for place in _places(path) if place.queue_id == queue_id]
    if not places:
        raise ConfigError(f"{path} does not name queue {queue_id}: it is the checkpoint of another stream")
    for each in range(max(0, batch - 1), batch + 1):  # and the one before it: Spark reads where the last one began
        sync_plan(storage, checkpoint, each)
    sync_files(storage, [commits / path.name])  # behind the rest: without it Spark runs the batch again
    return min(places, key=lambda place: place.offset)  # a query may read one queue several times


def _places(path: Path) -> Iterator[StreamOffset]:
    """Yield the places of our streams in one file of offsets: one line for each source, behind others."""
    for line in path.read_text(encoding="utf-8").splitlines():
        yield from places_in(line)
