"""The owner lock: one process owns all queues of a service directory, or of one queue alone.

The lock ends with the process. Its note tells the other processes where the owner's socket is, and the **epoch**: 16
random bytes of this one taking, a secret of this user.

What is *not* promised: if somebody removes ``.owner/`` while it is owned, a second process owns it too. Then
``write.lock`` of each queue keeps the second one out, and the tokens of openings detect it. ADR 50, "One owner".
"""

from __future__ import annotations

import os
import secrets
import socket as sockets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.persistence.filesystem import locks
from holdfast.persistence.filesystem.file_names import refuse_second_name
from holdfast.persistence.filesystem.locks import SideLock
from holdfast.persistence.filesystem.storage import MISSING, File, Storage, write_whole
from holdfast.persistence.ownership.places import make_owner_directory, owner_directory

EPOCH_BYTES = 16
NOTE_BYTES = 2048
"""Room for a host name and the longest path that a socket can have, also if JSON takes six bytes for each."""

_LOCK = "lock"
_TRIES_MAX = 100


@dataclass(frozen=True, slots=True)
class OwnerNote:
    """What the lock file says of its owner.

    Attributes
    ----------
    pid : int
        Its process id; for people.
    host : str
        Its host; for people.
    epoch : bytes
        16 random bytes of this taking.
    socket : Path or None
        Its socket; None: it has none yet.
    started : int
        When it took the lock, in nanoseconds since the epoch of the clock; for people.
    is_brief : bool
        Whether it owns for the length of a call only.
    heir : int
        The session that is to be the next owner, if it lives; 0: whichever comes first.
    """

    pid: int
    host: str
    epoch: bytes
    socket: Path | None
    started: int
    is_brief: bool = False
    heir: int = 0


class OwnerLock:
    """The lock of the owner of a directory, held. A forked child holds nothing.

    Attributes
    ----------
    root : Path
        The directory of the service, or of the queue.
    epoch : bytes
        16 random bytes of this taking.
    """

    def __init__(self, storage: Storage, root: Path, lock: SideLock) -> None:
        self._storage = storage
        self._lock = lock
        self._started = time.time_ns()
        self.root = root
        self.epoch = secrets.token_bytes(EPOCH_BYTES)

    @classmethod
    def try_take(cls, storage: Storage, root: Path, socket: Path | None = None) -> OwnerLock | None:
        """Take the lock of ``root`` if it is free, and write the note.

        Parameters
        ----------
        storage : Storage
            The file system.
        root : Path
            The directory of the service, or of the queue; it exists.
        socket : Path or None
            The owner's socket, if it is known by now.

        Returns
        -------
        OwnerLock or None
            None: another process owns it, or the lock file was removed again and again meanwhile.

        Raises
        ------
        StorageError
            The lock file has a second name, so a copy of this directory would have the same lock.
        ConfigError
            ``.owner/`` is no directory of this user.
        OSError
            The disk refuses; nothing is held.
        """
        for left in reversed(range(_TRIES_MAX)):
            try:
                lock = locks.open_lock(storage, make_owner_directory(storage, root) / _LOCK, create=True)
            except FileNotFoundError:
                if not left:  # it is root that is missing
                    raise
                continue  # .owner/ was removed meanwhile
            try:
                refuse_second_name(lock.file, lock.path)
                if not lock.file.try_lock():
                    lock.release()
                    return None
                if names(storage, lock.path, lock.file):
                    owner = cls(storage, root, lock)
                    owner.set_socket(socket)
                    return owner
            except BaseException:
                lock.release()
                raise
            lock.release()
        return None

    def set_socket(self, socket: Path | None, *, is_brief: bool = False, heir: int = 0) -> None:
        """Write the note anew, with the path of the owner's socket. Raises ``OSError``.

        The path of a socket in ``.owner/`` is noted relative to it, so it is found after the directory was moved.
        """
        directory = owner_directory(self.root)
        fields = {
            "pid": os.getpid(),
            "host": sockets.gethostname(),
            "epoch": self.epoch.hex(),
            "started": self._started,
            "socket": None if socket is None else socket.name if socket.parent == directory else str(socket),
            "brief": is_brief,
            "heir": heir,
        }
        write_whole(self._lock.file, (locks.note_bytes(fields, NOTE_BYTES),), 0)

    def is_in_place(self) -> bool:
        """Whether the name of the lock file still means the file that is locked; if not, a second owner is possible.

        Raises ``OSError``, also in a forked child.
        """
        return names(self._storage, self._lock.path, self._lock.file)

    def release(self) -> None:
        """Release the lock to the next owner; again does nothing. The file stays."""
        self._lock.release()


def is_owned(storage: Storage, root: Path) -> bool:
    """Whether a process holds the lock of ``root``: tested with a shared lock, which disturbs no other test."""
    try:
        lock = locks.open_lock(storage, owner_directory(root) / _LOCK, writable=False)
    except MISSING:
        return False
    try:
        return not lock.file.try_lock(shared=True)
    finally:
        lock.release()


def names(storage: Storage, path: Path, file: File) -> bool:
    """Whether a path names an open file. Raises ``OSError``."""
    try:
        with storage.open(path, writable=False) as named:
            return named.identity() == file.identity()
    except MISSING:
        return False


def read_owner_note(storage: Storage, root: Path) -> OwnerNote | None:
    """Return what the lock of ``root`` says of its owner, which may have ended; None if it is unreadable."""
    directory = owner_directory(root)
    note: dict[str, Any] = locks.read_note(storage, directory / _LOCK, NOTE_BYTES)
    try:
        epoch = bytes.fromhex(note["epoch"])
        socket = None if note["socket"] is None else directory / Path(note["socket"])
        found = OwnerNote(
            int(note["pid"]),
            str(note["host"]),
            epoch,
            socket,
            int(note["started"]),
            bool(note["brief"]),
            int(note["heir"]),
        )
    except (ValueError, KeyError, TypeError, OverflowError):
        return None
    return found if len(epoch) == EPOCH_BYTES else None
