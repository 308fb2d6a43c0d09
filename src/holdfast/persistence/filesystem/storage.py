"""The storage port: the only module that touches the operating system's files.

Everything above speaks to the :class:`Storage` and :class:`File` protocols, about a dozen verbs. That makes crashes
testable: tests pass a recording or a failing storage instead (``tests/support/``). The verbs raise plain ``OSError``;
the code that uses a verb turns it into the caller's error (:func:`storage_error`).

What is *not* promised: ``write_at`` makes nothing durable, and ``sync`` does not persist the file's name. A name lasts
once ``sync_directory`` of its directory has returned.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import stat
import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol, Self

import portalocker

from holdfast import forks
from holdfast.compiled import compiled_form
from holdfast.errors import CorruptionError, DiskFullError, StorageError

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700
BUFFERS_MAX = 1000
"""Buffers of one ``write_at``: Linux and macOS take 1,024 (IOV_MAX)."""

MISSING = (FileNotFoundError, NotADirectoryError)
"""Errors of a name that does not exist."""

DISK_FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class DirectoryStatus(NamedTuple):
    """The owner and the permissions of a directory."""

    owner: int
    """Id of the user."""

    mode: int
    """Permission bits."""


class FileIdentity(NamedTuple):
    """The identity of a file on this machine; no other file has it while a handle of this one is open."""

    device: int
    inode: int


class ReadableFile(Protocol):
    """An open file, as far as those need it who read it: it may be on another machine."""

    def read_at(self, size: int, position: int) -> bytes:
        """Return up to ``size`` bytes from ``position``; fewer only at the end of the file."""

    def size(self) -> int:
        """Return the size of the file."""

    def close(self) -> None:
        """Close the handle. Closing twice does nothing."""


class File(ReadableFile, Protocol):
    """An open file; positions and sizes in bytes."""

    def write_at(self, buffers: Sequence[bytes], position: int) -> int:
        """Write ``buffers`` one after the other from ``position``; return how many bytes went in (may be fewer)."""

    def truncate(self, size: int) -> None:
        """Cut or extend the file to ``size``; new bytes read as zeros."""

    def allocate(self, size: int) -> None:
        """Reserve space so that the file has at least ``size`` bytes and writing them cannot fill the disk."""

    def sync(self) -> None:
        """Return once data and size are on the disk. After a failure, never try again: the state is unknown."""

    def link_count(self) -> int:
        """Return how many names the file has."""

    def identity(self) -> FileIdentity:
        """Return what is equal for two handles if, and only if, they are of one file."""

    def try_lock(self, *, shared: bool = False) -> bool:
        """Take the advisory lock if no other handle excludes it; it is released when its last copy is closed.

        An exclusive lock excludes all others, a ``shared`` one only exclusive ones. A handle takes one kind: what
        becomes of the one it holds when it tries for the other is not promised.
        """

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...


class Storage(Protocol):
    """The file system, as far as a queue needs it."""

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> File:
        """Open a regular file without following a link; ``create`` makes a missing one, mode 0600."""

    def directory_status(self, path: Path) -> DirectoryStatus:
        """Return a directory's owner and permissions; a file is ENOTDIR, a symbolic link ELOOP."""

    def file_system(self, path: Path) -> str:
        """Return the kind of file system that holds a path, as the system calls it; empty if unknown."""

    def make_directory(self, path: Path) -> None:
        """Make one directory, mode 0700; does nothing if it exists."""

    def list(self, path: Path) -> list[str]:
        """Return the names in a directory, sorted."""

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name, replacing a file of that name."""

    def remove(self, path: Path) -> None:
        """Remove a file's name."""

    def remove_directory(self, path: Path) -> None:
        """Remove an empty directory."""

    def sync_directory(self, path: Path) -> None:
        """Return once the names in a directory are on the disk."""


_write: Callable[[int, Sequence[bytes], int], int] = compiled_form("write", os.pwritev)
"""The compiled form keeps the GIL during most writes of up to 4 KiB: a thread that it is handed to often waits for a
lock that the writer holds."""


class OsFile:
    """An open file of the operating system. A forked child closes its copy: the parent's stay open."""

    __slots__ = ("__weakref__", "_device", "_fd")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._device: int | None = None
        _open_files.add(self)

    def write_at(self, buffers: Sequence[bytes], position: int) -> int:
        if _left:
            forks.forget_left()
        return _write(self._fd, buffers, position)

    def read_at(self, size: int, position: int) -> bytes:
        data = os.pread(self._fd, size, position)
        if len(data) == size or not data:
            return data
        parts = [data]  # a short read that is not the end of the file: rare, but allowed
        got = len(data)
        while got < size and (data := os.pread(self._fd, size - got, position + got)):
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def allocate(self, size: int) -> None:
        if size <= self.size():
            return
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(self._fd, 0, size)
        else:  # macOS: no reservation, only the size
            os.ftruncate(self._fd, size)

    def sync(self) -> None:
        self._check_open()
        if self._device is None:  # once: since Linux 6.13, a status before each sync makes durable puts a third slower
            self._device = os.fstat(self._fd).st_dev
        _believed(os.fdatasync if hasattr(os, "fdatasync") else _sync_fully, self._fd, self._device)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def link_count(self) -> int:
        return os.fstat(self._fd).st_nlink

    def identity(self) -> FileIdentity:
        status = os.fstat(self._fd)
        return FileIdentity(status.st_dev, status.st_ino)

    def try_lock(self, *, shared: bool = False) -> bool:
        self._check_open()
        kind = portalocker.LockFlags.SHARED if shared else portalocker.LockFlags.EXCLUSIVE
        try:
            portalocker.lock(self._fd, kind | portalocker.LockFlags.NON_BLOCKING)
        except portalocker.AlreadyLocked:
            return False
        except portalocker.LockException as error:
            raise OSError(errno.ENOLCK, f"the file system cannot lock: {error}") from error
        return True

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _check_open(self) -> None:
        """Python turns a handle of -1 into a ValueError in some calls; everywhere it is EBADF."""
        if _left:
            forks.forget_left()
        if self._fd < 0:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))


_open_files: weakref.WeakSet[OsFile] = weakref.WeakSet()
_left = forks.left


def _close_copies() -> None:
    for file in list(_open_files):
        file.close()


forks.in_child(_close_copies)

_NO_FILE = "not a regular file"


class OsStorage:
    """The file system of the operating system."""

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> OsFile:
        flags = (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if create else 0)
        fd = os.open(path, flags | os.O_NONBLOCK, FILE_MODE)  # non-blocking: a FIFO must not block
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(errno.EINVAL, _NO_FILE, str(path))
        return OsFile(fd)

    def directory_status(self, path: Path) -> DirectoryStatus:
        status = os.lstat(path)
        if stat.S_ISLNK(status.st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        if not stat.S_ISDIR(status.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
        return DirectoryStatus(status.st_uid, stat.S_IMODE(status.st_mode))

    def file_system(self, path: Path) -> str:
        if not sys.platform.startswith("linux"):
            return ""
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            fields = dict(line.split(":", 1) for line in Path(f"/proc/self/fdinfo/{fd}").read_text().splitlines())
            mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        except OSError:  # there is no /proc: it is unknown
            return ""
        finally:
            os.close(fd)
        mount = fields.get("mnt_id", "").strip() + " "
        return next((line.partition(" - ")[2].split(" ")[0] for line in mounts if line.startswith(mount)), "")

    def make_directory(self, path: Path) -> None:
        try:
            path.mkdir(mode=DIRECTORY_MODE)
        except FileExistsError:
            if path.is_symlink() or not path.is_dir():
                raise

    def list(self, path: Path) -> list[str]:
        return sorted(os.listdir(path))

    def rename(self, source: Path, target: Path) -> None:
        os.rename(source, target)

    def remove(self, path: Path) -> None:
        os.unlink(path)

    def remove_directory(self, path: Path) -> None:
        os.rmdir(path)

    def sync_directory(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            _believed(_sync_fully, fd, os.fstat(fd).st_dev)
        finally:
            os.close(fd)


def _believed(sync: Callable[[int], object], fd: int, device: int) -> None:
    """Sync, and believe it only if no other sync of this process has failed on the same file system meanwhile.

    When Linux gives up an ext4 file system because one sync fails, another one that is under way may report success for
    data that is lost. docs/durability.md, "A failed sync".
    """
    failure = _last_failures.get(device)
    try:
        sync(fd)
    except OSError:
        _last_failures[device] = object()  # not a count: of two threads that add one at once, one could be lost
        raise
    if _last_failures.get(device) is not failure:
        raise OSError(errno.EIO, "a sync of another file failed meanwhile, so this one proves nothing")


_last_failures: dict[int, object] = {}
"""A mark of the last sync that has failed in this process, by device."""


def _sync_fully(fd: int) -> None:
    """Sync data and all metadata; on macOS, where fsync alone leaves the bytes in the drive's cache, ask for more."""
    if hasattr(fcntl, "F_FULLFSYNC"):
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
    else:
        os.fsync(fd)


def storage_error(error: OSError, what: str, path: Path) -> StorageError:
    """Return the error a caller sees for a failed verb: full disks are told apart from broken ones."""
    reason = error.strerror or str(error)
    if error.errno in DISK_FULL_ERRNOS:
        return DiskFullError(
            f"disk full while {what}: {path} ({reason}); nothing of it was kept. "
            "Drain the queue or free disk space, then try again",
            path=str(path),
        )
    if error.errno == errno.EMFILE:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        advice = f"this process may have {limit} files open: raise the limit (ulimit -n), or have fewer queues open"
    elif error.errno == errno.ENFILE:
        advice = "the system has too many files open: raise its limit, or find the program that has them open"
    elif error.errno == errno.ELOOP:
        advice = "replace the symbolic link with the file that it points to"
    elif error.errno == errno.ENOENT:
        advice = "the queue was deleted or moved meanwhile: open it again, or restore what is missing"
    elif reason == _NO_FILE:
        advice = "remove it, and restore the file that belongs there"
    else:
        advice = "check the disk and its permissions"
    where = error.filename or path  # the file that the system names
    return StorageError(f"{what} failed: {where} ({reason}); {advice}", path=str(path))


def is_disk_full(error: BaseException | None) -> bool:
    """Whether an error, or its cause, is that of a full disk."""
    while error is not None:
        if isinstance(error, DiskFullError) or (isinstance(error, OSError) and error.errno in DISK_FULL_ERRNOS):
            return True
        error = error.__cause__
    return False


class storage_errors:  # noqa: N801 - a block that reads like contextlib.suppress
    """Turns an ``OSError`` inside a ``with`` block into the error a caller sees; not for hot paths.

    Parameters
    ----------
    what, path
        As for :func:`storage_error`.
    """

    __slots__ = ("_path", "_what")

    def __init__(self, what: str, path: Path) -> None:
        self._what = what
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, OSError):
            raise storage_error(error, self._what, self._path) from error


class Stamp(NamedTuple):
    """A stamp of a file: it changes when the file is replaced or written."""

    inode: int
    size_bytes: int
    changed_ns: int


def stamp_of(path: Path | str) -> Stamp | None:
    """Return the stamp of a file or directory, or None if it does not exist; a link is not followed."""
    try:
        status = os.stat(path, follow_symlinks=False)
    except MISSING:
        return None
    return Stamp(status.st_ino, status.st_size, status.st_mtime_ns)


def real_path(path: Path) -> Path:
    """Return a path without links in it."""
    return Path(os.path.realpath(path))


def free_bytes(path: Path) -> int | None:
    """Return the free space of the file system that holds a directory, for this user; None if it cannot be told."""
    try:
        status = os.statvfs(path)
    except OSError:
        return None
    return status.f_bavail * status.f_frsize


def replace_text(path: Path, lines: Iterable[str]) -> int:
    """Write lines into a file outside a queue, durably and as a whole; return how many there were."""
    new = path.with_name(path.name + ".new")
    count = 0
    try:
        with new.open("w", encoding="utf-8") as file:
            for line in lines:
                file.write(line + "\n")
                count += 1
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
        OsStorage().sync_directory(path.parent)
    except BaseException:
        with suppress(OSError):
            new.unlink()
        raise
    return count


def read_whole(storage: Storage, path: Path, bytes_max: int) -> bytes:
    """Return the content of a small file, with its size checked against the maximum of its kind first.

    Raises
    ------
    CorruptionError
        It is larger. Nothing was read.
    OSError
        It cannot be read.
    """
    with storage.open(path, writable=False) as file:
        size = file.size()
        if size > bytes_max:
            raise CorruptionError(
                f"{path} has {size} bytes, more than the {bytes_max} that such a file may have; restore it",
                path=str(path),
            )
        return file.read_at(size, 0)


def write_whole(file: File, buffers: Sequence[bytes], position: int) -> None:
    """Write all of ``buffers`` at ``position``, continuing after short writes; raises the ``OSError`` that stops it."""
    if len(buffers) > BUFFERS_MAX:
        buffers = (b"".join(buffers),)
    size = len(buffers[0]) if len(buffers) == 1 else sum(map(len, buffers))
    done = file.write_at(buffers, position)
    if done == size:
        return
    rest = memoryview(b"".join(buffers))
    while done < size:
        step = file.write_at((bytes(rest[done:]),), position + done)
        if step <= 0:
            raise OSError(errno.EIO, "the file system wrote no bytes")
        done += step
