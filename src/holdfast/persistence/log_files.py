"""The data files of one queue as this process knows them: what is there, how large it is, where each one ends.

One instance is shared by the write side, which adds files, and the read side, which retires them.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.persistence.layout import DataFileName, QueueDirectory, is_missing, list_data_files
from holdfast.persistence.storage import File, Storage

_GLANCE_SECONDS = 0.1

SPARES_MAX = 2
"""Emptied files kept for reuse: one to be rolled into next, one behind it for a consumer that runs ahead."""


@dataclass(frozen=True, slots=True)
class LogFile:
    """One data file: its name and its size on the disk in bytes."""

    name: DataFileName
    size_bytes: int


class LogFiles:
    """An ordered catalogue of data files. Threads may share it.

    Parameters
    ----------
    storage, directory
        Where the files are.
    """

    def __init__(self, storage: Storage, directory: QueueDirectory) -> None:
        self._storage = storage
        self._directory = directory
        self._lock = threading.Lock()
        self._files: dict[int, LogFile] = {}
        self._total_bytes = 0
        self._looked_at = 0.0
        self.refresh()

    @property
    def directory(self) -> Path:
        """Where the data files are."""
        return self._directory.data

    @property
    def total_bytes(self) -> int:
        """Bytes that the known data files take."""
        return self._total_bytes

    @property
    def first_offset(self) -> int:
        """Offset of the oldest message that is still there; 0 while there is no file."""
        with self._lock:
            return next((file.name.first_offset for file in self._files.values()), 0)

    def __len__(self) -> int:
        return len(self._files)

    def names(self) -> list[DataFileName]:
        """Return the known files in log order."""
        with self._lock:
            return [file.name for file in self._files.values()]

    def path(self, name: DataFileName) -> Path:
        """Return where a file is."""
        return self._directory.data_file(name)

    def named(self, sequence: int) -> DataFileName | None:
        """Return the name of a file; looks at the directory again where it is not known yet."""
        if sequence not in self._files:
            self.refresh()
        file = self._files.get(sequence)
        return file.name if file else None

    def next_after(self, sequence: int) -> DataFileName | None:
        """Return the first known file behind ``sequence``: the one that says where that file's offsets end."""
        with self._lock:
            following = self._files.get(sequence + 1)
            if following is not None:
                return following.name
            return min((file.name for number, file in self._files.items() if number > sequence), default=None)

    def containing(self, offset: int) -> DataFileName | None:
        """Return the last file that starts at or before ``offset``, or the oldest one."""
        names = self.names()
        return max((name for name in names if name.first_offset <= offset), default=names[0] if names else None)

    def refresh(self) -> None:
        """Look at the directory again; other processes add files and retire them."""
        with self._lock:
            self._looked_at = time.monotonic()
            known = self._files
            self._files = {}
            newest = max(known, default=0)  # was being written when it was measured, and may be sealed by now
            for name in list_data_files(self._storage, self._directory):
                file = known.get(name.sequence)
                if file is None or file.name != name or name.sequence == newest:
                    size = self._size_of(name)
                    if size is None:
                        continue
                    file = LogFile(name, size)
                self._files[name.sequence] = file
            self._total_bytes = sum(file.size_bytes for file in self._files.values())

    def glance(self) -> None:
        """Look at the directory again, ten times a second at the most: a listing costs as much as there are files."""
        if time.monotonic() - self._looked_at >= _GLANCE_SECONDS:
            self.refresh()

    def add(self, name: DataFileName, size_bytes: int) -> None:
        """Take up a file that the writer has just made."""
        with self._lock:
            known = self._files.get(name.sequence)  # somebody may have looked at the directory just before
            self._files[name.sequence] = LogFile(name, size_bytes)
            self._total_bytes += size_bytes - (known.size_bytes if known is not None else 0)

    def resize(self, sequence: int, size_bytes: int) -> None:
        """Note that a file's size has changed."""
        with self._lock:
            file = self._files.get(sequence)
            if file is not None:
                self._files[sequence] = replace(file, size_bytes=size_bytes)
                self._total_bytes += size_bytes - file.size_bytes

    def retire(self, name: DataFileName) -> None:
        """Take a file out of the log: keep it as a spare where it can be used again, else remove it.

        The caller has made sure, durably, that every group has finished it, and holds the groups lock.
        """
        path = self.path(name)
        try:
            file = self._storage.open(path, writable=False)
        except OSError as error:
            if not is_missing(error):
                raise
        else:
            self._take_away(path, file, self._directory.spare / f"{name.sequence:010d}.data")
        self._storage.sync_directory(self._directory.data)
        with self._lock:
            known = self._files.pop(name.sequence, None)
            self._total_bytes -= known.size_bytes if known else 0

    def _take_away(self, path: Path, file: File, spare: Path) -> None:
        """Move a file to ``spare``, or remove it; a second name is somebody's backup, and is never written into."""
        try:
            if file.link_count() == 1 and len(self._storage.list(self._directory.spare)) < SPARES_MAX:
                self._storage.rename(path, spare)
                self._storage.sync_directory(spare.parent)  # else its old name may come back with new content
            else:
                self._storage.remove(path)
        finally:
            close_aside(file)

    def _size_of(self, name: DataFileName) -> int | None:
        try:
            file = self._storage.open(self.path(name), writable=False)
        except OSError as error:
            if is_missing(error):
                return None
            raise
        try:
            return file.size()
        finally:
            file.close()


def close_aside(file: File) -> None:
    """Close a file in a thread: with the last handle the blocks of a large one are given back, for milliseconds."""
    threading.Thread(target=file.close, name="holdfast-reclaim", daemon=True).start()
