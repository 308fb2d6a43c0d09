"""The owner's socket: a name in its directory that clients connect to.

It is bound under a temporary name, listens, and is then renamed. So a client that finds the name finds an owner that
listens, or the remains of one that was killed: those refuse a connection.

An address of a socket has room for a path of about 100 bytes. A longer one is reached through a descriptor of its
directory on Linux. Elsewhere the socket is in the user's runtime directory instead, and :attr:`Endpoint.path` says so.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from holdfast.errors import ConfigError
from holdfast.queue.transport.open_sockets import made
from holdfast.queue.transport.peer import check_peer

_ADDRESS_BYTES_MAX = 107 if sys.platform == "linux" else 103
"""``sun_path`` without the zero behind the path."""

_WAITING_MAX = 4096
"""Connections that wait to be accepted; the kernel lowers it to its own bound (4,096 on Linux since 5.4)."""

_SOCKET_MODE = 0o600
_DIRECTORY_MODE = 0o700
_DESCRIPTORS = Path("/proc/self/fd")
_POLL_SECONDS = 0.002


class Endpoint:
    """A listening socket with a name. A forked child has no copy of it.

    Attributes
    ----------
    listener : socket.socket
        The socket itself, non-blocking. The loop that accepts a connection checks its peer, and may close this first.
    path : Path
        Its name; for the note in the owner lock.
    """

    def __init__(self, listener: socket.socket, path: Path, identity: tuple[int, int]) -> None:
        self.listener = listener
        self._identity = identity
        self._is_named = True
        self._pid = os.getpid()
        self.path = path

    @classmethod
    def bind(cls, directory: Path, name: str = "socket") -> Endpoint:
        """Make a socket in ``directory`` that listens, and does not block; it replaces a file of that name.

        Raises
        ------
        ConfigError
            The path is too long, and the runtime directory that it could be in is not this user's alone.
        OSError
            The system refuses; then nothing is left of it.
        """
        path = directory / name
        if len(os.fsencode(_temporary(path))) > _ADDRESS_BYTES_MAX and not _DESCRIPTORS.is_dir():
            known_by = hashlib.sha256(os.fsencode(os.path.realpath(path))).hexdigest()
            path = _runtime_directory() / known_by[:16]
        _remove_remains(path)
        temporary = _temporary(path)
        listener = made(lambda: socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        try:
            listener.setblocking(False)
            with _address(temporary) as address:
                listener.bind(address)
            os.chmod(temporary, _SOCKET_MODE)
            listener.listen(_WAITING_MAX)
            endpoint = cls(listener, path, _identity(temporary))
            os.rename(temporary, path)
        except BaseException:
            listener.close()
            with suppress(OSError):
                os.unlink(temporary)
            raise
        return endpoint

    def is_in_place(self) -> bool:
        """Whether :attr:`path` names this socket; if not, the owner binds another one. Raises ``OSError``."""
        try:
            return _identity(self.path) == self._identity
        except (FileNotFoundError, NotADirectoryError):
            return False

    def close(self) -> None:
        """Remove the name if it is that of this socket, then close it; again does nothing. A child removes no name."""
        is_named, self._is_named = self._is_named, False  # once: the next socket of the name may get the same inode
        try:
            with suppress(OSError):
                if is_named and os.getpid() == self._pid and self.is_in_place():
                    os.unlink(self.path)
        finally:
            self.listener.close()


def connect(path: Path, timeout: float) -> socket.socket:
    """Return a connection to the owner whose socket is at ``path``; a forked child has no copy of it.

    Parameters
    ----------
    path : Path
        The path in the note of the owner lock.
    timeout : float, seconds, above 0
        For this call, and for each later one on the connection.

    What is *not* promised: that the owner lives. A process that it has started may hold a copy of the socket.

    Raises
    ------
    ConfigError
        The owner is a process of another user; the connection is closed.
    FileNotFoundError, ConnectionRefusedError
        There is no socket, or its process has ended.
    TimeoutError
        The owner has not had room for a connection within ``timeout``.
    OSError
        ``path`` is no socket, or the system refuses.
    """
    deadline = time.monotonic() + timeout
    _identity(path)
    connection = made(lambda: socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    try:
        connection.settimeout(timeout)
        with _address(path) as address:
            while True:
                try:
                    connection.connect(address)
                    break
                except BlockingIOError:  # Linux: as many connections wait as there is room for
                    if time.monotonic() >= deadline:
                        raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT), str(path)) from None
                    time.sleep(_POLL_SECONDS)
        check_peer(connection)
        return connection
    except BaseException:
        connection.close()
        raise


def _temporary(path: Path) -> Path:
    """Return another name in the directory of a socket, which no process has used."""
    return path.with_name(f"{path.name}.{secrets.token_hex(4)}")


def _remove_remains(path: Path) -> None:
    """Remove the temporary names that killed processes have left of a socket. Raises ``OSError``."""
    temporary = re.compile(re.escape(path.name) + r"\.[0-9a-f]{8}")
    for name in filter(temporary.fullmatch, os.listdir(path.parent)):
        with suppress(FileNotFoundError):
            os.unlink(path.with_name(name))


@contextmanager
def _address(path: Path) -> Iterator[bytes]:
    """Yield the address of a socket at ``path``, which is valid in the block. Raises ``OSError``."""
    whole = os.fsencode(path)
    if len(whole) <= _ADDRESS_BYTES_MAX:
        yield whole
        return
    if not _DESCRIPTORS.is_dir():
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), str(path))
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield os.fsencode(_DESCRIPTORS / str(directory) / path.name)
    finally:
        os.close(directory)


def _identity(path: Path) -> tuple[int, int]:
    """Return what tells a socket from others on this machine. Raises ``OSError`` if ``path`` is no socket."""
    status = os.lstat(path)
    if not stat.S_ISSOCK(status.st_mode):
        raise OSError(errno.ENOTSOCK, os.strerror(errno.ENOTSOCK), str(path))
    return status.st_dev, status.st_ino


def _runtime_directory() -> Path:
    """Return a directory of this user alone with a short path, made if missing. Raises ConfigError or ``OSError``."""
    user = os.geteuid()
    path = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()) / f"holdfast-{user}"
    with suppress(FileExistsError):
        path.mkdir(mode=_DIRECTORY_MODE)
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != user or stat.S_IMODE(status.st_mode) & 0o077:
        raise ConfigError(
            f"{path} would hold the sockets of queues with long paths, and is not a directory of user {user} alone: "
            "remove it, or move the queue to a shorter path"
        )
    return path
