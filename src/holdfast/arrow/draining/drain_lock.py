"""One drain at a time for a group: two would run the same batch, and write it into one place.

The lock is the drain's own, so consumers may take for the group meanwhile. It ends with its process.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.clock import SystemClock
from holdfast.persistence.filesystem import locks
from holdfast.persistence.filesystem.layout import QueueDirectory
from holdfast.persistence.filesystem.locks import Guard, Owned
from holdfast.persistence.filesystem.storage import OsStorage, storage_errors


@contextmanager
def locked_drain(path: Path, group: str, timeout: float) -> Iterator[None]:
    """Hold the lock of the drains of a group; it is waited for ``timeout`` seconds.

    Raises
    ------
    QueueLockedError, LockTimeoutError
        Another drain runs; names its process.
    DiskFullError, StorageError
        The lock cannot be made.
    """
    storage, directory = OsStorage(), QueueDirectory(path).group(group)
    owned = Owned(
        f"the drain of group {group!r} of {path}",
        here="let it end first",
        elsewhere="let it end, which lock_timeout= waits for, or drain for another group=",
    )

    def take() -> locks.SideLock:
        with storage_errors("locking a drain", directory):
            storage.make_directory(directory)  # the default group may not have begun
            return locks.acquire(storage, directory / "drain.lock", SystemClock(), timeout=timeout, owned=owned)

    with Guard(take):
        yield
