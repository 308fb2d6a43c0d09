"""Reads one planned range in a task: maybe on another machine, which has to see the queue that was planned."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from pathlib import Path

from holdfast.arrow.reading.file_range import FileRange
from holdfast.arrow.reading.file_range_reader import ConsumedMeanwhileError, FileRangeReader
from holdfast.arrow.reading.frame_walk import Walked
from holdfast.arrow.reading.snapshot import read_mark
from holdfast.errors import ConfigError, QueueNotFoundError
from holdfast.persistence.filesystem.layout import QueueDirectory, open_directory
from holdfast.persistence.filesystem.storage import OsStorage, Storage, storage_errors
from holdfast.persistence.format.report import Damage


def require_queue_here(storage: Storage, root: Path, queue_id: bytes) -> QueueDirectory:
    """Return the directory of a queue; no other queue, and no missing one, passes for one that was consumed.

    Raises
    ------
    QueueNotFoundError
        This machine does not see the directory.
    ConfigError
        It sees another queue there.
    """
    host = platform.node()
    try:
        directory, found, _ = open_directory(storage, root, create=False, writable=False)
    except QueueNotFoundError as error:
        raise QueueNotFoundError(
            f"no queue at {root} on {host}: mount the directory on each machine that runs tasks", path=str(root)
        ) from error
    if found != queue_id:
        raise ConfigError(
            f"the queue at {root} on {host} is not the one that was planned: mount the same directory on each "
            "machine that runs tasks"
        )
    return directory


def walk_range(
    root: Path, queue_id: bytes, part: FileRange, on_loss: Callable[[Damage], None], *, advice: str
) -> Iterator[Walked]:
    """Yield the messages of a planned range.

    Parameters
    ----------
    root, queue_id
        The queue that was planned.
    part, on_loss
        As for :class:`FileRangeReader`.
    advice : str
        What to do if the range was consumed.

    Raises
    ------
    QueueNotFoundError, ConfigError
        The queue is not here, or only an older copy of it.
    ConsumedMeanwhileError, StorageError
        As :meth:`FileRangeReader.walked`.
    """
    storage = OsStorage()
    path = require_queue_here(storage, root, queue_id).data_file(part.name)
    with storage_errors("reading", path):
        try:
            yield from FileRangeReader(storage, path, queue_id, part, on_loss).walked()
        except ConsumedMeanwhileError as error:
            _require_log_here(storage, root, queue_id, part)
            raise ConsumedMeanwhileError(f"{error}: {advice}", path=str(path)) from None


def _require_log_here(storage: Storage, root: Path, queue_id: bytes, part: FileRange) -> None:
    """Refuse a directory whose log never held a range: it was unmounted meanwhile, or is an older copy."""
    mark = read_mark(storage, require_queue_here(storage, root, queue_id), queue_id)
    if mark is None or mark.sequence < part.name.sequence:
        raise ConfigError(
            f"{root} on {platform.node()} is an older copy of the queue, without {part.name}: mount the directory "
            "itself on each machine that runs tasks"
        )
