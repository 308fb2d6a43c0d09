"""A file of the storage port as pyarrow writes to it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from holdfast.persistence.filesystem.storage import Storage, storage_errors, write_whole


class StorageFile(io.RawIOBase):
    """A new file that is written from the beginning to the end.

    Parameters
    ----------
    storage, path
        Where it is made.

    Raises
    ------
    DiskFullError, StorageError
        It cannot be made, written or synced.
    """

    def __init__(self, storage: Storage, path: Path) -> None:
        self._path = path
        self._position = 0
        with storage_errors("writing", path):
            self._file = storage.open(path, create=True)

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        if size:
            with storage_errors("writing", self._path):
                write_whole(self._file, (data,), self._position)
            self._position += size
        return size

    def sync(self) -> None:
        """Make what was written durable; the name of the file is not."""
        with storage_errors("syncing", self._path):
            self._file.sync()

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()
