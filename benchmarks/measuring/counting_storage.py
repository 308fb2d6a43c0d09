"""The storage port of the operating system, with every sync counted and timed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

from holdfast.persistence.filesystem.storage import File, FileIdentity, OsFile, OsStorage


class Syncs(NamedTuple):
    """Syncs, of files and of directories, and how long they took."""

    number: int
    seconds: float


class CountingStorage(OsStorage):
    """Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._syncs = Syncs(0, 0.0)

    def take(self) -> Syncs:
        """Return what was synced since the last call."""
        with self._lock:
            syncs, self._syncs = self._syncs, Syncs(0, 0.0)
            return syncs

    def count(self, sync: Callable[[], None]) -> None:
        """Run one sync and count it."""
        started = perf_counter()
        sync()
        seconds = perf_counter() - started
        with self._lock:
            self._syncs = Syncs(self._syncs.number + 1, self._syncs.seconds + seconds)

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> OsFile:
        return _CountingFile(super().open(path, create=create, writable=writable), self)

    def sync_directory(self, path: Path) -> None:
        self.count(partial(super().sync_directory, path))


class _CountingFile(OsFile):
    """Hands everything on."""

    __slots__ = ("_file", "_storage")

    def __init__(self, file: File, storage: CountingStorage) -> None:
        super().__init__(-1)
        self._file = file
        self._storage = storage

    def write_at(self, buffers: Sequence[bytes], position: int) -> int:
        return self._file.write_at(buffers, position)

    def read_at(self, size: int, position: int) -> bytes:
        return self._file.read_at(size, position)

    def truncate(self, size: int) -> None:
        self._file.truncate(size)

    def allocate(self, size: int) -> None:
        self._file.allocate(size)

    def sync(self) -> None:
        self._storage.count(self._file.sync)

    def size(self) -> int:
        return self._file.size()

    def link_count(self) -> int:
        return self._file.link_count()

    def identity(self) -> FileIdentity:
        return self._file.identity()

    def try_lock(self, *, shared: bool = False) -> bool:
        return self._file.try_lock(shared=shared)

    def close(self) -> None:
        self._file.close()
