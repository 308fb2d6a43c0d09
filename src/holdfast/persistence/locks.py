"""Who owns a side of a queue: an advisory lock (portalocker) on a file that also names its owner.

The lock goes with the process, however it dies, so a killed owner leaves no stale lock. The note inside the file is for
people: pids mean nothing across containers and are never trusted. The file is never deleted: removing a locked file
would let two owners lock two files of one name.
"""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from holdfast.clock import Clock
from holdfast.errors import LockTimeoutError, QueueLockedError
from holdfast.persistence.storage import File, Storage

_NOTE_BYTES = 512
_POLL_SECONDS = 0.01
_PURPOSE_OWN = "own"
_PURPOSE_RECOVER = "recover"


@dataclass(frozen=True, slots=True)
class LockOwner:
    """What a lock file says of its owner: process id, host, and what it holds the lock for."""

    pid: int | None = None
    host: str | None = None
    purpose: str = _PURPOSE_OWN


class SideLock:
    """The held lock of one side of a queue."""

    def __init__(self, file: File, path: Path) -> None:
        self._file = file
        self.path = path

    def release(self) -> None:
        """Let the next owner in."""
        self._file.close()


def acquire(
    storage: Storage, path: Path, clock: Clock, *, timeout: float, what: str, purpose: str = _PURPOSE_OWN
) -> SideLock:
    """Take the lock at ``path``; a holder that only recovers the log is waited for, as it is done soon.

    Raises
    ------
    QueueLockedError
        Another handle owns it and ``timeout`` is 0; names pid and host.
    LockTimeoutError
        It still does after ``timeout`` seconds.
    """
    deadline = clock.monotonic() + timeout
    while True:
        lock = try_acquire(storage, path, purpose=purpose)
        if lock is not None:
            return lock
        owner = read_owner(storage, path)
        if owner.purpose != _PURPOSE_RECOVER and clock.monotonic() >= deadline:
            break
        time.sleep(_POLL_SECONDS)
    who = "another handle" if owner.pid is None else f"process {owner.pid} on {owner.host}"
    kind = LockTimeoutError if timeout > 0 else QueueLockedError
    waited = f" after {timeout:g} s" if timeout > 0 else ""
    raise kind(
        f"{what} of {path.parent} is owned by {who}{waited}; close it there, or pass a larger lock_timeout",
        path=str(path),
        pid=owner.pid,
        host=owner.host,
    )


def try_acquire(storage: Storage, path: Path, *, purpose: str = _PURPOSE_OWN) -> SideLock | None:
    """Take the lock at ``path`` if it is free, and write who has it."""
    file = storage.open(path, create=True)
    try:
        if not file.try_lock():
            file.close()
            return None
        note = {"pid": os.getpid(), "host": socket.gethostname(), "purpose": purpose}
        file.write_at((json.dumps(note).encode().ljust(_NOTE_BYTES),), 0)
    except BaseException:
        file.close()
        raise
    return SideLock(file, path)


def try_acquire_for_recovery(storage: Storage, path: Path) -> SideLock | None:
    """Take the lock at ``path`` if it is free, for as long as recovery takes; owners-to-be wait for it."""
    return try_acquire(storage, path, purpose=_PURPOSE_RECOVER)


def read_owner(storage: Storage, path: Path) -> LockOwner:
    """Return what the lock file says; empty fields where it says nothing readable."""
    try:
        file = storage.open(path, writable=False)
    except OSError:
        return LockOwner()
    try:
        note = json.loads(file.read_at(_NOTE_BYTES, 0))
        return LockOwner(int(note["pid"]), str(note["host"]), str(note["purpose"]))
    except (OSError, ValueError, KeyError, TypeError):
        return LockOwner()
    finally:
        file.close()
