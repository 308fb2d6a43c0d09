"""The lock of a side: an advisory lock (portalocker) on a file that also names its owner.

The lock ends with the process, so a killed owner leaves no stale lock. The note inside the file is for people: pids
mean nothing across containers and are never trusted. The file is never deleted: removing a locked file would let two
owners lock two files of one name.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from holdfast import forks
from holdfast.clock import Clock
from holdfast.errors import LockTimeoutError, QueueLockedError
from holdfast.persistence.filesystem.storage import File, Storage

Result = TypeVar("Result")

_NOTE_BYTES = 512
_POLL_SECONDS = 0.01

VISIT_SECONDS_MAX = 10.0
"""How long a visitor is waited for: by far longer than the few syncs of one take."""


@dataclass(frozen=True, slots=True)
class LockOwner:
    """The owner in a lock file: process id, host, and whether it is a temporary owner."""

    pid: int | None = None
    host: str | None = None
    is_visitor: bool = False


@dataclass(frozen=True, slots=True)
class Owned:
    """What a lock guards, and the advice for a caller that finds it taken.

    Attributes
    ----------
    what : str
        The owned side and its queue, as the subject of a sentence.
    here, elsewhere : str
        What helps if this process holds the lock, and if another one does.
    """

    what: str
    here: str = "try again once that is over"
    elsewhere: str = "try again once that is over"


class SideLock:
    """The lock of one side of a queue, held or about to be."""

    def __init__(self, file: File, path: Path) -> None:
        self.file = file
        self.path = path
        _open_locks.add(self)

    def release(self) -> None:
        """Release the lock to the next owner."""
        with _gate:
            self.forget()

    def forget(self) -> None:
        """Close the handle; the caller holds the gate."""
        _open_locks.discard(self)
        self.file.close()


class Guard:
    """Holds a lock for a ``with`` block.

    An interruption at the very end of the block may come before :meth:`__exit__` has done anything. Then the lock is
    released with the traceback; a caller that cannot wait for that uses :meth:`run`, or calls :meth:`release` as well.

    Parameters
    ----------
    take : callable or None
        Takes the lock; None: there is none to hold.
    """

    def __init__(self, take: Callable[[], SideLock] | None = None) -> None:
        self._held = _hold(take)

    def __enter__(self) -> None:
        next(self._held)

    def __exit__(self, *_: object) -> None:
        next(self._held, None)

    def run(self, do: Callable[[], Result]) -> Result:
        """Do something while it is held; it is free then, also while an interruption of that is handled."""
        try:
            with self:
                return do()
        finally:
            self.release()

    def release(self) -> None:
        """Release the lock; again does nothing."""
        self._held.close()


def _hold(take: Callable[[], SideLock] | None) -> Generator[None, None, None]:
    """Hold a lock from the first step until this is closed or dropped."""
    lock = take() if take is not None else None
    try:
        yield
    finally:
        if lock is not None:
            try:
                lock.release()
            except BaseException:  # interrupted: no other code could release it
                lock.release()
                raise


# A forked child has copies of all lock handles, and a lock is free only once every copy is closed. So the child closes
# them all: also those that other threads were just taking or releasing, hence the gate.
_open_locks: set[SideLock] = set()
_gate = forks.gate()


def _forget_all() -> None:
    for lock in list(_open_locks):
        lock.forget()


forks.in_child(_forget_all)


def acquire(
    storage: Storage,
    path: Path,
    clock: Clock,
    *,
    timeout: float,
    owned: Owned,
    guard: Callable[[], Guard] = Guard,
    is_visitor: bool = False,
) -> SideLock:
    """Take the lock at ``path``. Parameters and errors: as for :func:`acquiring`."""
    lock = None
    steps = acquiring(storage, path, clock, timeout=timeout, owned=owned, guard=guard, is_visitor=is_visitor)
    try:
        lock = next(steps)
        next(steps, None)
        return lock
    except BaseException:  # no other code could release it
        steps.close()
        if lock is not None:
            lock.release()
        raise


def acquiring(
    storage: Storage,
    path: Path,
    clock: Clock,
    *,
    timeout: float,
    owned: Owned,
    guard: Callable[[], Guard] = Guard,
    is_visitor: bool = False,
) -> Generator[SideLock, None, None]:
    """Take the lock at ``path`` in two steps: yield it while the guard is held, then release the guard.

    Work between the two steps is complete before others find the lock taken. Closing this in between releases both; a
    caller does so if anything fails.

    Parameters
    ----------
    storage, path, clock, timeout
        The lock file, and how long to try.
    owned : Owned
        What it guards, for error messages.
    guard : callable
        Makes a context that is held while trying. If all use the same guard, a locked file always names its owner.
    is_visitor : bool
        As of :func:`try_acquire`.

    Raises
    ------
    QueueLockedError
        Another handle owns it and ``timeout`` is 0; names pid and host.
    LockTimeoutError
        It still does after ``timeout`` seconds.
    """
    started = clock.monotonic()
    while True:
        lock, held = None, guard()
        try:
            with held:
                lock = try_acquire(storage, path, is_visitor=is_visitor)
                if lock is not None:
                    yield lock
                    return
                owner = read_owner(storage, path)
        except BaseException:  # no other code could release it
            if lock is not None:
                lock.release()
            held.release()
            raise
        patience = max(timeout, VISIT_SECONDS_MAX) if owner.is_visitor else timeout
        if clock.monotonic() >= started + patience:
            break
        time.sleep(_POLL_SECONDS)
    is_here = _is_held_here(path, owner)
    who = "another handle" if owner.pid is None else f"process {owner.pid} on {owner.host}"
    who = f"this same {who}" if is_here else who
    kind = LockTimeoutError if timeout > 0 else QueueLockedError
    waited = f" after {timeout:g} s" if timeout > 0 else ""
    raise kind(
        f"{owned.what} is owned by {who}{waited}: {owned.here if is_here else owned.elsewhere}",
        path=str(path),
        pid=owner.pid,
        host=owner.host,
    )


def _is_held_here(path: Path, owner: LockOwner) -> bool:
    """Whether this process holds the lock at ``path``; another container may have the same process ids."""
    with _gate:
        return owner.pid == os.getpid() and any(lock.path == path for lock in _open_locks)


def open_lock(storage: Storage, path: Path, *, create: bool = False, writable: bool = True) -> SideLock:
    """Open a lock file, which is not locked by that; a forked child closes its copy. Raises ``OSError``."""
    with _gate:
        return SideLock(storage.open(path, create=create, writable=writable), path)


def try_acquire(storage: Storage, path: Path, *, is_visitor: bool = False) -> SideLock | None:
    """Take the lock at ``path`` if it is free, and write the owner into it.

    ``is_visitor``: it is taken for a moment only. :func:`acquiring` waits for a visitor to leave, with any timeout.
    """
    lock = open_lock(storage, path, create=True)
    try:
        if not lock.file.try_lock():
            lock.release()
            return None
        lock.file.write_at((_note(os.getpid(), socket.gethostname(), is_visitor),), 0)
    except BaseException:
        lock.release()
        raise
    return lock


@lru_cache(maxsize=4)
def _note(pid: int, host: str, is_visitor: bool) -> bytes:
    note: dict[str, object] = {"pid": pid, "host": host}
    if is_visitor:
        note["visitor"] = True
    return note_bytes(note, _NOTE_BYTES)


def note_bytes(fields: Mapping[str, object], size: int) -> bytes:
    """Return the note that a lock file begins with: JSON, padded with spaces to ``size`` bytes.

    A reader that comes during a write finds no JSON, or one of the two notes.
    """
    return json.dumps(fields).encode().ljust(size)


def read_note(storage: Storage, path: Path, size: int) -> dict[str, object]:
    """Return the note of a lock file; empty if there is none, or it is unreadable."""
    try:
        with storage.open(path, writable=False) as file:
            note = json.loads(file.read_at(size, 0))
    except (OSError, ValueError, RecursionError):
        return {}
    return note if isinstance(note, dict) else {}


def is_own_process(owner: LockOwner) -> bool:
    """Whether a lock file names this process."""
    return (owner.pid, owner.host) == (os.getpid(), socket.gethostname())


def read_owner(storage: Storage, path: Path) -> LockOwner:
    """Return the owner in a lock file; empty fields if it is unreadable."""
    note: dict[str, Any] = read_note(storage, path, _NOTE_BYTES)
    try:
        return LockOwner(int(note["pid"]), str(note["host"]), bool(note.get("visitor", False)))
    except (ValueError, KeyError, TypeError, OverflowError):
        return LockOwner()
