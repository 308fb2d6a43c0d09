"""Makes the next data file, so that every file in ``data/`` has a durable header and its space.

It is made in ``spare/`` (from an emptied file if there is one: overwriting written blocks halves the cost of a sync),
header written and synced, then renamed into ``data/``, then the directory synced. docs/format.md, "Life of a data
file".
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from holdfast.errors import ConfigError
from holdfast.persistence.filesystem.file_names import open_alone
from holdfast.persistence.filesystem.layout import DataFileName, QueueDirectory
from holdfast.persistence.filesystem.storage import MISSING, File, Storage, write_whole
from holdfast.persistence.format.file_header import DataFileHeader, block_buffers
from holdfast.persistence.log.log_files import NEXT_DATA


def prepare(
    storage: Storage, directory: QueueDirectory, header: DataFileHeader, size_bytes: int, frames: bytes
) -> File:
    """Make the next data file in ``spare/`` and return its handle; nothing of the log has changed yet.

    ``frames`` are its first ones, carried into it from the file before.

    Raises ``OSError``: a full disk fails here, not in the middle of a commit.
    """
    path = directory.spare / NEXT_DATA
    emptied = [name for name in storage.list(directory.spare) if name != NEXT_DATA]
    if emptied:
        storage.sync_directory(directory.spare)  # or a file comes back into the log under its old name, as the new one
        with suppress(*MISSING):  # removed just now, because the disk is short of space
            storage.rename(directory.spare / emptied[0], path)
    file = open_alone(storage, path)
    try:
        file.allocate(size_bytes)
        write_whole(file, (block_buffers(header.encode()), frames), 0)
        file.sync()
    except BaseException:
        file.close()
        storage.remove(path)
        raise
    return file


def publish(storage: Storage, directory: QueueDirectory, header: DataFileHeader) -> DataFileName:
    """Move the prepared file into ``data/``, durably; from here on it is part of the log."""
    name = DataFileName(header.sequence, header.first_offset)
    storage.rename(directory.spare / NEXT_DATA, directory.data_file(name))
    storage.sync_directory(directory.data)
    return name


def delete_spares(storage: Storage, directory: QueueDirectory) -> None:
    """Remove what an earlier process left in ``spare/``, or of a merge: neither survives a restart.

    It is empty most of the time, so archives leave it out: if it is missing it is made again.
    """
    with suppress(FileNotFoundError):
        storage.remove(directory.next_merged)
    storage.make_directory(directory.spare)
    for name in storage.list(directory.spare):
        path: Path = directory.spare / name
        try:
            storage.remove(path)
        except OSError:
            with suppress(OSError):
                storage.directory_status(path)
                raise ConfigError(
                    f"{path} is a directory; only emptied data files belong into spare/: move it out of the queue's "
                    "directory"
                ) from None
            raise
