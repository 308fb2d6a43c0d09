"""Reads one planned range in a task: maybe on another machine, which sees the queue that was planned, or asks one."""

from __future__ import annotations

import logging
import platform
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from holdfast.arrow.reading.file_range import FileRange, clipped
from holdfast.arrow.reading.file_range_reader import ConsumedMeanwhileError, FileRangeReader, Opener
from holdfast.arrow.reading.frame_walk import Walked
from holdfast.arrow.reading.snapshot import read_mark, settled_files
from holdfast.errors import ConfigError, HoldfastError, QueueNotFoundError
from holdfast.persistence.filesystem.layout import DataFileName, QueueDirectory, open_directory, queue_directory
from holdfast.persistence.filesystem.storage import OsStorage, ReadableFile, Storage, storage_errors
from holdfast.persistence.format.report import Damage

logger = logging.getLogger("holdfast")


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
            f"no queue at {root} on {host}: mount the directory on each machine that runs tasks, or have its bytes "
            "served (option serveAddress)",
            path=str(root),
        ) from error
    if found != queue_id:
        raise ConfigError(
            f"the queue at {root} on {host} is not the one that was planned: mount the same directory on each "
            "machine that runs tasks"
        )
    return directory


def require_log_here(
    storage: Storage, root: Path, queue_id: bytes, name: DataFileName, log_end: tuple[int, int] = (0, 0)
) -> QueueDirectory:
    """Return the directory of a queue whose log once held a file; else it was unmounted, or is an older copy.

    ``log_end`` as of :class:`FileRange`. Raises as :func:`require_queue_here`, and StorageError if ``write.mark`` does
    not verify.
    """
    directory = require_queue_here(storage, root, queue_id)
    mark = read_mark(storage, directory, queue_id)
    if mark is None or (mark.sequence, mark.visible[0]) < max((name.sequence, 0), log_end):
        raise ConfigError(
            f"{root} on {platform.node()} is an older copy of the queue, without all of {name} or of what follows it: "
            "mount the directory itself on each machine that runs tasks"
        )
    return directory


class QueueFiles(Opener, Protocol):
    """Where the bytes of a queue are: on this machine, or on one that is asked for them."""

    def require_log(self, part: FileRange) -> None:
        """Make sure that the queue is there, and that its log once held a part. Raises HoldfastError."""

    def replacing(self, name: DataFileName) -> DataFileName | None:
        """Return the merged file that has taken the place of a file; None if there is none. Raises HoldfastError."""


Elsewhere = Callable[[HoldfastError], QueueFiles]
"""Takes why this machine does not see the queue, and returns what does, or raises."""


def replacing_file(storage: Storage, directory: QueueDirectory, name: DataFileName) -> DataFileName | None:
    """Return the merged file that has taken the place of a file; None if there is none."""
    with storage_errors("looking for a merged file", directory.data):
        names = settled_files(storage, directory)
    later = (each for each in names if each.is_merged and each.generation > name.generation)
    return next((each for each in later if each.first_sequence <= name.sequence <= each.sequence), None)


class LocalFiles:
    """The files of a queue that this machine sees.

    Parameters
    ----------
    root, queue_id
        The queue.
    """

    def __init__(self, root: Path, queue_id: bytes) -> None:
        self._storage = OsStorage()
        self._root = root
        self._queue_id = queue_id

    def open(self, path: Path, *, writable: bool) -> ReadableFile:
        """Open a file."""
        return self._storage.open(path, writable=writable)

    def require_log(self, part: FileRange) -> None:
        """Make sure that this is no older copy. Raises as :func:`require_log_here`."""
        require_log_here(self._storage, self._root, self._queue_id, part.name, part.log_end)

    def replacing(self, name: DataFileName) -> DataFileName | None:
        """Return the merged file that has taken the place of a file; None if there is none."""
        return replacing_file(self._storage, queue_directory(self._root), name)


def queue_files(root: Path, queue_id: bytes, part: FileRange, elsewhere: Elsewhere | None) -> QueueFiles:
    """Return where to read a part: here, if this machine sees the queue and no older copy of it.

    Raises
    ------
    HoldfastError
        This machine does not see it, and there is nothing else, or that cannot be asked.
    """
    files = LocalFiles(root, queue_id)
    try:
        files.require_log(part)
    except HoldfastError as error:  # another user's directory too
        if elsewhere is None:
            raise
        return elsewhere(error)
    return files


def walk_range(
    root: Path,
    queue_id: bytes,
    part: FileRange,
    on_loss: Callable[[Damage], None],
    *,
    advice: str,
    elsewhere: Elsewhere | None = None,
    follows_merges: bool = False,
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
    elsewhere : callable or None
        Where to read if this machine does not see the queue.
    follows_merges : bool
        Whether a file that was merged with others is no error: then the merged one has what lives of the range.

    Raises
    ------
    QueueNotFoundError, ConfigError
        The queue is not here, or only an older copy of it.
    ConsumedMeanwhileError, StorageError
        As :meth:`FileRangeReader.walked`.
    """
    files = queue_files(root, queue_id, part, elsewhere)
    while True:
        path, reached = queue_directory(root).data_file(part.name), part.start
        with storage_errors("reading", path):
            try:
                for walked in FileRangeReader(files, path, queue_id, part, on_loss).walked():
                    yield walked
                    reached = walked.offsets[-1] + 1
            except ConsumedMeanwhileError as error:
                files.require_log(part)
                merged = files.replacing(part.name) if follows_merges else None
                if merged is None:
                    raise ConsumedMeanwhileError(f"{error}: {advice}", path=str(path)) from None
            else:
                return
        logger.warning(
            "%s was merged after this read was planned: it continues in %s, without what is gone", path, merged
        )
        part = replace(
            part, name=merged, wanted=clipped(part.wanted, reached, part.end), limit=0, file_id=b"", position=0
        )
