"""The real storage, which writes down every verb that it is asked for, and whether a thread is inside one."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from holdfast.persistence.filesystem.storage import DirectoryStatus, FileIdentity, OsFile, OsStorage


class Notes:
    """What was asked of a storage: verb, path, and what else counts; questions about names and sizes do not."""

    def __init__(self) -> None:
        self.verbs: list[list[str]] = []
        self._inside = threading.local()

    def is_inside(self) -> bool:
        """Whether this thread is inside a verb."""
        return getattr(self._inside, "depth", 0) > 0

    def note(self, verb: str, *fields: object) -> None:
        """Write down a verb."""
        self.verbs.append([verb, *map(str, fields)])

    @contextmanager
    def verb(self, verb: str, *fields: object) -> Iterator[None]:
        """Write down a verb, whatever comes of it, and be inside it."""
        self.note(verb, *fields)
        with self.question():
            yield

    @contextmanager
    def question(self) -> Iterator[None]:
        """Be inside a verb that need not be written down."""
        self._inside.depth = getattr(self._inside, "depth", 0) + 1
        try:
            yield
        finally:
            self._inside.depth -= 1


class NotedFile:
    """An open file that has its verbs written down."""

    def __init__(self, file: OsFile, path: Path, notes: Notes) -> None:
        self._file = file
        self._opened_as = path
        self._notes = notes

    @property
    def _path(self) -> str:
        """What it is called now, as far as the system says so: it may have been renamed since it was opened."""
        try:
            name = os.readlink(f"/proc/self/fd/{self._file._fd}")
        except OSError:
            return str(self._opened_as)
        return name.removesuffix(" (deleted)")

    def write_at(self, buffers: Sequence[bytes], position: int) -> int:
        with self._notes.verb("write", self._path, sum(map(len, buffers))):
            return self._file.write_at(buffers, position)

    def read_at(self, size: int, position: int) -> bytes:
        with self._notes.question():
            data = self._file.read_at(size, position)
        self._notes.note("read", self._path, len(data))
        return data

    def truncate(self, size: int) -> None:
        with self._notes.verb("truncate", self._path, size):
            self._file.truncate(size)

    def allocate(self, size: int) -> None:
        if size > self._file.size():
            self._notes.note("allocate", self._path, size)
        with self._notes.question():
            self._file.allocate(size)

    def sync(self) -> None:
        with self._notes.verb("sync", self._path):
            self._file.sync()

    def size(self) -> int:
        return self._file.size()

    def link_count(self) -> int:
        return self._file.link_count()

    def identity(self) -> FileIdentity:
        return self._file.identity()

    def try_lock(self, *, shared: bool = False) -> bool:
        with self._notes.verb("lock", self._path):
            return self._file.try_lock(shared=shared)

    def close(self) -> None:
        with self._notes.question():
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class NotedStorage:
    """The real storage, whose verbs are written down in ``notes``."""

    def __init__(self) -> None:
        self.notes = Notes()
        self._storage = OsStorage()

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> NotedFile:
        with self.notes.verb("open", path):
            return NotedFile(self._storage.open(path, create=create, writable=writable), path, self.notes)

    def directory_status(self, path: Path) -> DirectoryStatus:
        with self.notes.question():
            return self._storage.directory_status(path)

    def file_system(self, path: Path) -> str:
        with self.notes.verb("open", path):
            return self._storage.file_system(path)

    def make_directory(self, path: Path) -> None:
        with self.notes.verb("make directory", path):
            self._storage.make_directory(path)

    def list(self, path: Path) -> list[str]:
        with self.notes.verb("open", path):
            return self._storage.list(path)

    def rename(self, source: Path, target: Path) -> None:
        with self.notes.verb("rename", source, target):
            self._storage.rename(source, target)

    def remove(self, path: Path) -> None:
        with self.notes.verb("remove", path):
            self._storage.remove(path)

    def remove_directory(self, path: Path) -> None:
        with self.notes.verb("remove directory", path):
            self._storage.remove_directory(path)

    def sync_directory(self, path: Path) -> None:
        with self.notes.verb("open", path):
            self.notes.note("sync", path)
            self._storage.sync_directory(path)
