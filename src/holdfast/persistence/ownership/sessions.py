"""Session files: a session lives as long as its file has both name and lock. ADR 50, "Sessions".

A process makes ``<16 digits>.making``, locks it, and says the name to the owner. The owner renames it to
``<8 digits>.lock``: the session's **number**. Only the owner gives numbers and removes files, so no two processes race
for one. A test takes the lock shared: two tests do not disturb one another, and no test is taken for a session.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import UsageError
from holdfast.persistence.filesystem import locks
from holdfast.persistence.filesystem.locks import SideLock
from holdfast.persistence.filesystem.storage import DISK_FULL_ERRNOS, MISSING, Storage
from holdfast.persistence.ownership.owner_lock import names
from holdfast.persistence.ownership.places import make_sessions_directory, sessions_directory

NO_NUMBER = 0
"""The number of no session."""

NOTE_BYTES = 512
_NUMBER_BITS = 32
_MAKING_BYTES = 8
_TRIES_MAX = 100
_DEAD_MAX = 10_000
_MAKING = re.compile(r"[0-9a-f]{16}\.making")
_NUMBERED = re.compile(r"([0-9a-f]{8})\.lock")
_NO_FILE_ERRNOS = DISK_FULL_ERRNOS | {errno.EROFS}
_NO_PLAIN_FILE_ERRNOS = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EINVAL})


class SessionFile:
    """The file of this process's session, locked; see :meth:`begin`. A forked child holds nothing.

    Attributes
    ----------
    making : str
        The name to say to the owner; empty: there is no file.
    number : int
        What the owner has named it; 0 until then.
    """

    def __init__(self, lock: SideLock | None) -> None:
        self._lock = lock
        self.making = "" if lock is None else lock.path.name
        self.number = NO_NUMBER

    @classmethod
    def begin(cls, storage: Storage, root: Path) -> SessionFile:
        """Make a session file in ``root`` and lock it; without a file if the disk is full or read-only.

        Raises
        ------
        ConfigError
            ``.owner/`` is no directory of this user.
        OSError
            The disk refuses. What was made is left without a lock, and the owner removes it.
        """
        try:
            lock = _make(storage, root)
        except OSError as error:
            if error.errno not in _NO_FILE_ERRNOS:
                raise
            return cls.without_file()
        try:
            return cls(lock)
        except BaseException:  # interrupted: no other code could release it
            lock.release()
            raise

    @classmethod
    def without_file(cls) -> SessionFile:
        """Return a session without a file: no successor finds its number, its deliveries end with its connection."""
        return cls(None)

    def named(self, number: int) -> None:
        """Note the number that the owner has given to the session."""
        self.number = number

    def end(self) -> None:
        """Unlock the file, which the owner removes; again does nothing."""
        if self._lock is not None:
            self._lock.release()


def _make(storage: Storage, root: Path) -> SideLock:
    """Return a new session file, locked."""
    for left in reversed(range(_TRIES_MAX)):
        try:
            directory = make_sessions_directory(storage, root)
            path = directory / f"{secrets.token_hex(_MAKING_BYTES)}.making"
            lock = locks.open_lock(storage, path, create=True)
        except FileNotFoundError:
            if not left:  # it is root that is missing
                raise
            continue  # .owner/ was removed meanwhile
        try:
            if lock.file.try_lock() and names(storage, path, lock.file):
                _leave_note(lock)
                return lock
        except BaseException:
            lock.release()
            raise
        lock.release()  # an owner has found the file before it was locked, and removes it
    raise OSError(errno.EAGAIN, "session files are removed as soon as they are made", str(path))


def _leave_note(lock: SideLock) -> None:
    """Write who the session is, for people; a full disk has no space for that."""
    fields = {"pid": os.getpid(), "host": socket.gethostname(), "started": time.time_ns()}
    with suppress(OSError):
        lock.file.write_at((locks.note_bytes(fields, NOTE_BYTES),), 0)


@dataclass(frozen=True, slots=True)
class SessionNote:
    """Who a session is, for people; None what its note does not say.

    Attributes
    ----------
    pid, host
        Its process.
    started : int or None
        When it began, in nanoseconds since the epoch of the clock.
    """

    pid: int | None = None
    host: str | None = None
    started: int | None = None


class Sessions:
    """The sessions of a directory, as its owner sees them. Threads may share it.

    Dead is final: a number that was found dead is dead for this object, whatever file has its name then. It remembers
    the last 10,000 of them. Of those before, it knows that they have no file, and no more than an owner that has begun.
    """

    def __init__(self, storage: Storage, root: Path) -> None:
        self._storage = storage
        self._directory = sessions_directory(root)
        self._lock = threading.RLock()
        self._alive: set[int] = set()
        self._without_file: set[int] = set()
        self._dead = {NO_NUMBER: None}
        self._unreported: set[int] = set()

    def admit(self, making: str) -> int:
        """Give a number to the session that has made and locked a file; return the number.

        ``making`` is empty for a session without a file. It lives until :meth:`remove`, and for no later owner.

        Raises
        ------
        UsageError
            ``making`` is no name of a session file, or the file is missing, no plain file of one name, or not locked.
        OSError
            The disk refuses.
        """
        with self._lock:
            if making == "":
                number = self._draw()
                self._without_file.add(number)
                return number
            if not isinstance(making, str) or not _MAKING.fullmatch(making):
                raise UsageError(f"{making!r} is no name of a session file")
            path = self._directory / making
            if not self._is_held(path, links_max=1):
                raise UsageError(f"{path} is no session file, or no process has locked it: begin another session")
            number = self._draw()
            self._storage.rename(path, self._path(number))
            self._alive.add(number)
            return number

    def _draw(self) -> int:
        """Return a number that no session has or has had, as far as this knows."""
        taken = self._dead.keys() | self._alive | self._without_file | self._numbers()
        number = NO_NUMBER
        while number in taken:
            number = secrets.randbits(_NUMBER_BITS)
        return number

    def is_alive(self, number: int) -> bool:
        """Whether the session's file has name and lock. Raises ``OSError`` if that cannot be told."""
        with self._lock:
            if number in self._dead:
                return False
            if number in self._without_file:
                return True
            is_held = self._is_held(self._path(number))
            if is_held:
                self._alive.add(number)
            else:
                self._alive.discard(number)
                self._forget(number)
                self._unreported.add(number)
            return is_held

    def _forget(self, number: int) -> None:
        """Note that a number is dead, and of those found dead long before only that they have no file."""
        self._dead[number] = None
        if len(self._dead) > _DEAD_MAX:
            del self._dead[next(each for each in self._dead if each != NO_NUMBER)]

    def living(self) -> set[int]:
        """Return the numbers of all sessions that live. Raises ``OSError``."""
        with self._lock:
            return self._without_file | {number for number in self._numbers() if self.is_alive(number)}

    def note(self, number: int) -> SessionNote:
        """Return who a session is, as its file says."""
        note = locks.read_note(self._storage, self._path(number), NOTE_BYTES)
        pid, host, started = note.get("pid"), note.get("host"), note.get("started")
        return SessionNote(
            pid if isinstance(pid, int) else None,
            host if isinstance(host, str) else None,
            started if isinstance(started, int) else None,
        )

    def remove(self, number: int) -> None:
        """Remove the file of a session that has ended; it is dead, and no sweep names it. Raises ``OSError``."""
        with self._lock:
            self._alive.discard(number)
            self._forget(number)
            self._unreported.discard(number)
            if number in self._without_file:
                self._without_file.remove(number)
                return
        with suppress(*MISSING):
            self._storage.remove(self._path(number))

    def sweep(self) -> list[int]:
        """Test all sessions; return the numbers that were found dead since the last sweep, sorted.

        The files of dead sessions are removed, and those of beginnings that no process has locked. A file that cannot
        be removed is tried again by the next sweep. Raises ``OSError`` if a test fails; then nothing is forgotten.
        """
        with self._lock:
            numbered = self._numbers()
            for number in sorted(self._alive | numbered):
                self.is_alive(number)
            for number in numbered & self._dead.keys():
                with suppress(OSError):
                    self._storage.remove(self._path(number))
            for name in self._names():
                if _MAKING.fullmatch(name):
                    self._remove_if_free(self._directory / name)
            found, self._unreported = sorted(self._unreported), set()
            return found

    def _names(self) -> list[str]:
        try:
            return self._storage.list(self._directory)
        except MISSING:
            return []

    def _numbers(self) -> set[int]:
        """Return the numbers that files have."""
        return {int(match[1], 16) for match in map(_NUMBERED.fullmatch, self._names()) if match}

    def _path(self, number: int) -> Path:
        return self._directory / f"{number:08x}.lock"

    def _is_held(self, path: Path, links_max: int | None = None) -> bool:
        """Whether there is a plain file with no more names than allowed, and a process holds its lock."""
        try:
            lock = locks.open_lock(self._storage, path, writable=False)
        except OSError as error:
            if error.errno not in _NO_PLAIN_FILE_ERRNOS:
                raise
            return False
        try:
            return not lock.file.try_lock(shared=True) and (links_max is None or lock.file.link_count() <= links_max)
        finally:
            lock.release()

    def _remove_if_free(self, path: Path) -> None:
        """Remove the file of a beginning if it is free; its maker can lock it only behind that, without a name."""
        try:
            lock = locks.open_lock(self._storage, path, writable=False)
        except OSError:
            return
        try:
            if lock.file.try_lock(shared=True):
                with suppress(OSError):
                    self._storage.remove(path)
        finally:
            lock.release()
