"""The empty file ``priorities`` in a queue's directory: some message of the queue has a priority, or had one once.

It is there, durably, before the first such message can be committed, and stays for ever. So a queue without it never
scans ahead for prioritized messages. docs/format.md, "Priorities".
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import suppress

from holdfast.persistence.filesystem.layout import QueueDirectory
from holdfast.persistence.filesystem.storage import MISSING, Storage, storage_errors
from holdfast.persistence.format.message_options import has_priority


class Priorities:
    """One handle's knowledge of that file. Threads may share it.

    Parameters
    ----------
    storage, directory
        The queue. Its directory is read once; raises ``OSError`` if that fails.

    Attributes
    ----------
    is_used : bool
        Whether the file was there at the last check.
    """

    def __init__(self, storage: Storage, directory: QueueDirectory) -> None:
        self._storage = storage
        self._path = directory.priorities
        self._lock = threading.Lock()
        self._is_durable = False
        self.is_used = False
        self.look()

    def look(self) -> bool:
        """Return whether the file is there: another process may have made it. Raises ``OSError``.

        Costs one system call as long as the file is missing.
        """
        if not self.is_used:
            with suppress(*MISSING):
                self._storage.open(self._path, writable=False).close()
                self.is_used = True
        return self.is_used

    def note(self) -> None:
        """Return once the file is there, durably; only the first time costs anything.

        A file that another process made is synced too: that process may have been killed before its sync, or the sync
        failed.

        Raises
        ------
        DiskFullError, StorageError
            It cannot be made; nothing with a priority may be committed.
        """
        if self._is_durable:
            return
        with self._lock, storage_errors("noting that there are priorities", self._path):
            if not self._is_durable:
                self._name()
                self._storage.sync_directory(self._path.parent)
                self.is_used = self._is_durable = True

    def note_for(self, headers: Iterable[bytes]) -> None:
        """Call :meth:`note` if one of these encoded headers holds a priority."""
        if any(map(has_priority, headers)):
            self.note()

    def _name(self) -> None:
        """Give the file its name, as a new change for the next sync: a failed sync may have lost an earlier change.

        Another process may do the same at the same time, and be faster.
        """
        new = self._path.with_name(self._path.name + ".new")
        while True:
            self._storage.open(new, create=True).close()
            with suppress(*MISSING):
                self._storage.rename(new, self._path)
                return
