"""The operating system's storage where the operating system does less than usual: short reads, no locks, macOS."""

from __future__ import annotations

import errno
import fcntl
import os
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from pathlib import Path

import portalocker
import pytest

from holdfast import DiskFullError, StorageError
from holdfast.persistence.filesystem import storage as storage_module
from holdfast.persistence.filesystem.storage import OsFile, OsStorage, is_disk_full, write_whole


@pytest.fixture
def file(tmp_path: Path) -> OsFile:
    """An open file of ten bytes."""
    (tmp_path / "file").write_bytes(b"0123456789")
    return OsStorage().open(tmp_path / "file")


def test_a_read_that_comes_in_pieces_is_put_together(file: OsFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to the size asked for, or to the end of the file."""
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, position: pread(fd, min(size, 3), position))
    assert file.read_at(8, 1) == b"12345678"
    assert file.read_at(100, 1) == b"123456789"
    assert file.read_at(3, 7) == b"789"
    file.close()


def test_without_reservations_the_file_gets_its_size_all_the_same(
    file: OsFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on macOS; what was in it stays."""
    monkeypatch.delattr(os, "posix_fallocate")
    file.allocate(20)
    assert file.read_at(30, 0) == b"0123456789" + bytes(10)
    file.allocate(5)
    assert file.size() == 20
    file.close()


def test_a_thread_gets_its_turn_beside_small_writes(file: OsFile) -> None:
    """Within milliseconds, though the writer never waits: the switch interval has no part in that here."""
    interval, has_run = sys.getswitchinterval(), threading.Event()
    waiter = threading.Timer(0.01, has_run.set)
    sys.setswitchinterval(60.0)
    try:
        waiter.start()
        deadline = time.monotonic() + 10.0
        while not has_run.is_set() and time.monotonic() < deadline:
            file.write_at([b"small"], 0)
    finally:
        sys.setswitchinterval(interval)
    assert has_run.is_set()
    waiter.join()
    file.close()


def test_without_fdatasync_everything_is_synced(tmp_path: Path, file: OsFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file as a directory is: by fsync, and where there is F_FULLFSYNC, through the cache of the drive."""
    calls: list[object] = []
    monkeypatch.delattr(os, "fdatasync")
    monkeypatch.setattr(os, "fsync", lambda fd: calls.append("fsync"))
    file.sync()
    OsStorage().sync_directory(tmp_path)
    assert calls == ["fsync", "fsync"]
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", lambda fd, command: calls.append(command))
    file.sync()
    OsStorage().sync_directory(tmp_path)
    assert calls == ["fsync", "fsync", 51, 51]
    file.close()


@pytest.mark.parametrize("fails", ["fdatasync", "fsync"])
def test_a_sync_beside_one_that_fails_is_not_believed(
    tmp_path: Path, file: OsFile, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """Of a file or of a directory. It says so once: the next sync stands for itself."""
    other = OsStorage().open(tmp_path / "other", create=True)
    sync, sync_directory = os.fdatasync, os.fsync

    def fail(fd: int) -> None:
        raise OSError(errno.EIO, "the medium is full")

    def sync_beside_a_failure(fd: int) -> None:
        sync(fd)
        with monkeypatch.context() as patch:
            patch.setattr(os, fails, fail)
            with pytest.raises(OSError, match="the medium is full"):
                other.sync() if fails == "fdatasync" else OsStorage().sync_directory(tmp_path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", sync_beside_a_failure)
        with pytest.raises(OSError, match="another file failed meanwhile") as caught:
            file.sync()
        patch.setattr(os, "fsync", sync_beside_a_failure)
        with pytest.raises(OSError, match="another file failed meanwhile"):
            OsStorage().sync_directory(tmp_path)
    assert caught.value.errno == errno.EIO
    assert (sync, sync_directory) == (os.fdatasync, os.fsync)
    file.sync()
    OsStorage().sync_directory(tmp_path)
    other.close()
    file.close()


def test_a_sync_beside_one_that_fails_on_another_file_system_is_believed(
    file: OsFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each device fails for itself."""
    fdatasync = os.fdatasync

    def sync_beside_a_failure(fd: int) -> None:
        storage_module._last_failures[-1] = object()
        fdatasync(fd)

    monkeypatch.setattr(storage_module, "_last_failures", {})
    monkeypatch.setattr(os, "fdatasync", sync_beside_a_failure)
    file.sync()
    file.close()


def test_a_sync_asks_no_status_but_the_first(file: OsFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """On Linux 6.13 or later a file whose status was asked gets an exact time at its next write, which costs a sync."""
    file.sync()
    asked: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", asked.append)
        file.write_at([b"more"], 0)
        file.sync()
    assert asked == []
    file.close()


def test_a_file_system_that_cannot_lock_says_so(file: OsFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that somebody else has the lock."""

    def lock(fd: int, flags: object) -> None:
        raise portalocker.LockException("no locks available")

    monkeypatch.setattr(portalocker, "lock", lock)
    with pytest.raises(OSError, match="cannot lock: no locks available") as caught:
        file.try_lock()
    assert caught.value.errno == errno.ENOLCK
    file.close()


class Stuck:
    """A file that takes a few bytes and then none."""

    def __init__(self) -> None:
        self.sizes = [3, 2, 0]

    def write_at(self, buffers: Sequence[bytes], position: int) -> int:
        return self.sizes.pop(0)


def test_writing_ends_where_the_file_system_takes_no_more_bytes() -> None:
    """It would go on for ever."""
    file = Stuck()
    with pytest.raises(OSError, match="wrote no bytes") as caught:
        write_whole(file, (b"0123", b"456789"), 0)  # type: ignore[arg-type]  # the one verb that is used
    assert caught.value.errno == errno.EIO
    assert file.sizes == []


def test_a_full_disk_is_told_from_others_through_what_an_error_came_from() -> None:
    """Whoever raised last may have said less."""
    unknown = StorageError("it failed", path="/q")
    assert not is_disk_full(unknown)
    unknown.__cause__ = OSError(errno.EIO, "Input/output error")
    assert not is_disk_full(unknown)
    for full in (OSError(errno.ENOSPC, "No space left on device"), DiskFullError("full", path="/q")):
        unknown.__cause__ = full
        assert is_disk_full(unknown)


def test_a_forked_child_closes_its_copies_of_open_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each that is open then; whoever uses one in the child hears that it is closed."""
    monkeypatch.setattr(storage_module, "_open_files", weakref.WeakSet())
    files = [OsStorage().open(tmp_path / name, create=True) for name in ("a", "b")]
    files[0].close()
    storage_module._close_copies()
    for file in files:
        with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
            file.sync()
