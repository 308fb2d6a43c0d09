"""The data files of one queue as this process knows them: their names, their ends, and their total size.

One instance is shared by the write side, which adds files, and the read side, which retires them.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from holdfast.errors import CorruptionError
from holdfast.persistence.filesystem.file_names import name_again
from holdfast.persistence.filesystem.layout import (
    DataFileName,
    QueueDirectory,
    check_header,
    data_file_name,
    list_data_files,
    list_replaced_files,
    open_if_there,
    read_data_file_header,
)
from holdfast.persistence.filesystem.storage import MISSING, File, Storage, storage_errors
from holdfast.persistence.segment.file_walk import FileWalk
from holdfast.threads import start_thread

_GLANCE_SECONDS = 0.1

NEXT_DATA = "next.data"
"""In ``spare/``: the next data file while it is made."""

WITHDRAWN = ".damaged"
"""Behind the name of a withdrawn merged file: it does not count any more."""

SPARES_MAX = 2
"""Emptied files kept for reuse: one to be rolled into next, one behind it for a consumer that runs ahead."""


class LogFiles:
    """An ordered catalogue of data files. Threads may share it.

    Parameters
    ----------
    storage, directory
        Where the files are.
    queue_id : bytes
        Whose they must be.

    Attributes
    ----------
    storage, queue_id
        As above: a reader of the log needs nothing else.
    """

    def __init__(self, storage: Storage, directory: QueueDirectory, queue_id: bytes) -> None:
        self.storage = storage
        self.queue_id = queue_id
        self._directory = directory
        self._lock = threading.Lock()
        self._names: dict[int, DataFileName] = {}
        self._sizes: dict[int, int] = {}  # in bytes, by sequence: of those that were requested
        self._total_bytes: int | None = None  # until one of them changes
        self._looked_at = 0.0
        self._withdrawn = {name.sequence for name in _withdrawn_files(storage, directory)}
        self.refresh()

    @property
    def directory(self) -> Path:
        """Where the data files are."""
        return self._directory.data

    @property
    def total_bytes(self) -> int:
        """Bytes that the known data files take. Raises StorageError if the disk refuses."""
        return self.total_bytes_with(0)

    def total_bytes_with(self, end: int) -> int:
        """Return the same once the newest file is written up to ``end``; raises as :attr:`total_bytes`."""
        with self._lock, storage_errors("measuring data files", self.directory):
            if self._total_bytes is None:
                self._total_bytes = sum(self._size_of(name) for name in self._names.values())
            newest = next(reversed(self._names.values()), None)
            return self._total_bytes + (0 if newest is None else max(0, end - self._size_of(newest)))

    @property
    def first_offset(self) -> int:
        """Offset of the oldest message that is still there; 0 while there is no file."""
        with self._lock:
            return next((name.first_offset for name in self._names.values()), 0)

    def __len__(self) -> int:
        return len(self._names)

    def names(self) -> list[DataFileName]:
        """Return the known files in log order."""
        with self._lock:
            return list(self._names.values())

    def path(self, name: DataFileName) -> Path:
        """Return the path of a file."""
        return self._directory.data_file(name)

    def named(self, sequence: int) -> DataFileName | None:
        """Return the name of a file; lists the directory again if the file is not known yet."""
        if sequence not in self._names:
            self.refresh()
        return self._names.get(sequence)

    def next_after(self, sequence: int) -> DataFileName | None:
        """Return the first known file behind ``sequence``: its name gives the end of that file's offsets."""
        with self._lock:
            following = self._names.get(sequence + 1)
            if following is not None:
                return following
            return min((name for number, name in self._names.items() if number > sequence), default=None)

    def replacing(self, sequence: int) -> DataFileName | None:
        """Return the merged file that has the place of a file now, as far as known."""
        with self._lock:
            merged = (name for name in self._names.values() if name.is_merged)
            return next((name for name in merged if name.first_sequence <= sequence <= name.sequence), None)

    def containing(self, offset: int) -> DataFileName | None:
        """Return the last file that starts at or before ``offset``, or the oldest one."""
        names = self.names()
        return max((name for name in names if name.first_offset <= offset), default=names[0] if names else None)

    def size_of(self, name: DataFileName) -> int:
        """Return how many bytes a known file takes; 0 if it is gone. Raises ``OSError``."""
        with self._lock:
            return self._size_of(name)

    def refresh(self) -> None:
        """List the directory again; other processes add files and retire them."""
        with self._lock:
            self._looked_at = time.monotonic()
            known = self._names
            self._names = {name.sequence: name for name in list_data_files(self.storage, self._directory)}
            newest = max(known, default=0)  # was being written when it was measured, and may be sealed by now
            stay = {number for number in self._sizes if number != newest and self._names.get(number) == known[number]}
            self._sizes = {number: self._sizes[number] for number in stay}
            self._total_bytes = None

    def glance(self) -> None:
        """List the directory again, at most ten times a second: the cost of a listing grows with the files."""
        if time.monotonic() - self._looked_at >= _GLANCE_SECONDS:
            self.refresh()

    def add(self, name: DataFileName, size_bytes: int) -> None:
        """Add a file that the writer has just made."""
        with self._lock:
            self._names[name.sequence] = name
            self._sizes[name.sequence] = size_bytes
            self._total_bytes = None

    def resize(self, sequence: int, size_bytes: int) -> None:
        """Forget a file's size, which has changed."""
        with self._lock:
            if sequence in self._names:
                self._sizes[sequence] = size_bytes
                self._total_bytes = None

    def retire(self, name: DataFileName, *, is_spare: bool = True) -> None:
        """Take a file out of the log: keep it as a spare if that is wanted and it can be used again, else remove it.

        The caller has made sure, durably, that every group has finished it, and holds the groups lock.
        """
        if name.is_merged:  # else what it has replaced would count again
            self._remove({merged: rest for merged, rest in self._replaced().items() if merged == name})
        spare = self._directory.spare / f"{name.sequence:010d}.data"
        self._take_away(self.path(name), spare if is_spare and not name.is_merged else None)
        self.storage.sync_directory(self._directory.data)
        with self._lock:
            self._names.pop(name.sequence, None)
            self._sizes.pop(name.sequence, None)
            self._total_bytes = None

    def remove_spares(self) -> None:
        """Give the space of spares back to the file system; not that of the file that is being made. The same lock."""
        for entry in self.storage.list(self._directory.spare):
            if entry != NEXT_DATA:
                with suppress(*MISSING):  # the writer has just taken it
                    self.storage.remove(self._directory.spare / entry)

    def remove_replaced(self) -> None:
        """Remove all that merged files have replaced, durably. None becomes a spare: it may be read at this moment.

        The process that made the merged one may have been killed before its name was durable, or the sync has failed:
        so that gets its name anew. The caller holds the groups lock. Raises ``OSError``.
        """
        self._remove(self._replaced())

    def remove_rests(self) -> None:
        """Remove what is left of replaced files; where all are there, an opening decides which of them count.

        The caller holds the groups lock. Raises ``OSError``.
        """
        self._remove({name: rest for name, rest in self._replaced().items() if not _is_whole(name, rest)})

    def finish_merges(self) -> dict[DataFileName, str]:
        """Remove the rest of merges whose process died; return the merged files that do not verify, and why.

        What those have replaced is all there, and stays: it has every message that they should have. The caller holds
        the groups lock. Raises ``OSError``.
        """
        replaced = self._replaced()
        whole = [name for name, rest in replaced.items() if _is_whole(name, rest)]
        damaged = {name: reason for name in whole if (reason := self._reason_against(name))}
        self._remove({name: rest for name, rest in replaced.items() if name not in damaged})
        return damaged

    def withdraw(self, damaged: Iterable[DataFileName]) -> None:
        """Give merged files a name that does not count, durably, so that what they have replaced counts again.

        The caller holds the groups lock. Raises ``OSError``.
        """
        for name in damaged:
            self.storage.rename(self.path(name), withdrawn_path(self.path(name)))
            self._withdrawn.add(name.sequence)
        self.storage.sync_directory(self._directory.data)
        self.refresh()

    def has_positions(self, sequence: int) -> bool:
        """Whether a position in the data file of this sequence, as somebody remembers it, is one of the file now.

        It may be of a merged file that was withdrawn: the file that counts again has the same sequence.
        """
        return sequence not in self._withdrawn

    def _replaced(self) -> dict[DataFileName, list[DataFileName]]:
        """Return the merged files beside which is what they have replaced, and that in log order."""
        is_any_merged = any(name.is_merged for name in self.names())  # else the directory need not be listed
        names = list_replaced_files(self.storage, self._directory) if is_any_merged else []
        found: dict[DataFileName, list[DataFileName]] = {}
        pairs = [(merged, name) for name in names if (merged := self.replacing(name.sequence)) is not None]
        for merged, name in pairs:  # one without is of a merge since the last look
            found.setdefault(merged, []).append(name)
        return found

    def _remove(self, replaced: dict[DataFileName, list[DataFileName]]) -> None:
        """Remove replaced files, the first one of each merge durably before the others: while it is there, all are."""
        if not replaced:
            return
        for name in replaced:
            name_again(self.storage, self.path(name))
        self.storage.sync_directory(self._directory.data)
        first = [rest[0] for rest in replaced.values()]
        others = [name for rest in replaced.values() for name in rest[1:]]
        for names in filter(None, (first, others)):
            for name in names:
                self._take_away(self.path(name), None)
            self.storage.sync_directory(self._directory.data)

    def _reason_against(self, name: DataFileName) -> str:
        """Return why a merged file is not as it was made; empty if it is. Reads all of it."""
        path, following = self.path(name), self.next_after(name.sequence)
        try:
            header = read_data_file_header(self.storage, path)
            check_header(header, name, self.queue_id, path)
            with self.storage.open(path, writable=False) as file:
                is_near = following is not None and name.is_before(following)
                count = following.first_offset - name.first_offset if following is not None and is_near else None
                walk = FileWalk(file, header, path, file.size(), count)
                walk.run()
        except CorruptionError as error:
            return str(error)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return str(error)
        if walk.damage:
            return walk.damage[0].reason
        missing = header.merged_count - walk.message_count
        return f"{missing} messages are missing" if missing else ""

    def _take_away(self, path: Path, spare: Path | None) -> None:
        """Move a file to ``spare``, or remove it; a second name is a user's backup, which is never overwritten."""
        file = open_if_there(self.storage, path)
        if file is None:
            return
        try:
            if (
                spare is not None
                and file.link_count() == 1
                and len(self.storage.list(self._directory.spare)) < SPARES_MAX
            ):
                self.storage.rename(path, spare)
                try:
                    self.storage.sync_directory(spare.parent)  # else its old name may come back with new content
                except OSError:  # a second sync could succeed over the lost name, so nothing is made of the file
                    with suppress(OSError):
                        self.storage.remove(spare)
                    raise
            else:
                self.storage.remove(path)
        finally:
            close_in_background(file)

    def _size_of(self, name: DataFileName) -> int:
        """Return the size of a file, 0 if it is gone; a known one is measured once."""
        if self._names.get(name.sequence) != name:  # retired or replaced since the caller has listed it
            return self._measure(name)
        size = self._sizes.get(name.sequence)
        if size is None:
            size = self._sizes[name.sequence] = self._measure(name)
        return size

    def _measure(self, name: DataFileName) -> int:
        file = open_if_there(self.storage, self.path(name))
        if file is None:  # another process has retired it
            return 0
        with file:
            return file.size()


def withdrawn_path(path: Path) -> Path:
    """Return the path that a merged file has once it was withdrawn."""
    return path.with_name(f"{path.name}{WITHDRAWN}")


def _withdrawn_files(storage: Storage, directory: QueueDirectory) -> list[DataFileName]:
    """Return the former names of the merged files that were withdrawn."""
    entries = storage.list(directory.data)
    found = [data_file_name(each.removesuffix(WITHDRAWN)) for each in entries if each.endswith(WITHDRAWN)]
    return [name for name in found if name is not None]


def _is_whole(merged: DataFileName, rest: list[DataFileName]) -> bool:
    """Whether all that a merged file has replaced is there: the first one is removed before the others."""
    return rest[0].first_sequence == merged.first_sequence


def close_in_background(file: File) -> None:
    """Close a file in a thread: closing the last handle frees the blocks of a large file, which takes milliseconds."""
    if start_thread(file.close, "holdfast-reclaim") is None:
        file.close()
