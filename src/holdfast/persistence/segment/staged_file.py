"""Batch files that are being written: ``<nonce>.staging`` in ``prepared/``. docs/format.md, "Batch files".

The process that makes one has it locked until it has the answer, so an owner that opens the queue meanwhile lets it be.
Without a lock it is a leftover, and goes.

The functions raise a plain ``OSError`` if the disk refuses, except :func:`stage`.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from holdfast.errors import StorageError
from holdfast.persistence.filesystem.layout import QueueDirectory
from holdfast.persistence.filesystem.storage import MISSING, Storage, storage_errors
from holdfast.persistence.segment.batch_file import BatchFileWriter

_ENDING = ".staging"

_ATTEMPTS_MAX = 10
"""An owner that opens the queue may remove a file before it is locked; so many in a row do not."""


def make_prepared(storage: Storage, directory: QueueDirectory) -> None:
    """Make ``prepared/``, durably, if it is not there yet."""
    storage.make_directory(directory.prepared)
    try:
        storage.sync_directory(directory.root)
    except OSError:  # a second sync could succeed over a lost name: the next attempt makes a new one
        with suppress(OSError):
            storage.remove_directory(directory.prepared)
        raise


def staged_path(directory: QueueDirectory, nonce: bytes) -> Path:
    """Return the path of the batch that is written under a nonce."""
    return directory.prepared / (nonce.hex() + _ENDING)


def stage(storage: Storage, directory: QueueDirectory, nonce: bytes, queue_id: bytes) -> BatchFileWriter:
    """Begin a batch file, locked until it is closed; ``prepared/`` exists. Raises DiskFullError or StorageError."""
    path = staged_path(directory, nonce)
    for _ in range(_ATTEMPTS_MAX):
        writer = BatchFileWriter(storage, path, queue_id)
        try:
            with storage_errors("locking a batch", path):
                if writer.file.try_lock() and writer.file.link_count():
                    return writer
        except BaseException:
            writer.discard()
            raise
        writer.close()
    raise StorageError(f"{path} cannot be locked: another process takes it for a leftover", path=str(path))


def remove_abandoned(storage: Storage, directory: QueueDirectory) -> None:
    """Remove the files of processes that have ended."""
    if directory.prepared.name not in storage.list(directory.root):
        return
    for name in storage.list(directory.prepared):
        if name.endswith(_ENDING):
            path = directory.prepared / name
            with suppress(*MISSING), storage.open(path) as file:
                if file.try_lock():
                    storage.remove(path)
