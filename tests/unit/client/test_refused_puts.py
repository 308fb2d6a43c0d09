"""Puts of clients that their owner refuses: for space, for its disk, or at the end of the handle."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from holdfast import ClosedError, CommitUnknownError, DiskFullError, Full, PersistentQueue, RecordTooLargeError
from holdfast.persistence.filesystem.storage import OsFile, OsStorage
from holdfast.queue.client.shared_engine import SharedEngine
from holdfast.queue.owner.machine import Machine
from support.builders.transactions import waiting
from support.processes.threads import Threads, wait_until


class FullDisk(OsStorage):
    """Takes no more into data files while ``is_full``."""

    is_full = False

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> OsFile:
        file = super().open(path, create=create, writable=writable)
        if path.suffix != ".data":
            return file
        fd, file._fd = file._fd, -1
        return FullFile(self, fd)


class FullFile(OsFile):
    """A file on such a disk."""

    __slots__ = ("_disk",)

    def __init__(self, disk: FullDisk, fd: int) -> None:
        super().__init__(fd)
        self._disk = disk

    def write_at(self, buffers: Sequence[bytes], position: int) -> int:
        if self._disk.is_full:
            raise OSError(errno.ENOSPC, "no room")
        return super().write_at(buffers, position)


@pytest.fixture
def disk() -> FullDisk:
    """The disk of the owner."""
    return FullDisk()


@pytest.fixture
def owner(tmp_path: Path, disk: FullDisk) -> Iterator[PersistentQueue]:
    """A handle that owns a queue with space for two messages."""
    with PersistentQueue(tmp_path / "q", mode="shared", maxsize=2, storage=disk) as queue:
        yield queue


@pytest.fixture
def client(owner: PersistentQueue) -> Iterator[PersistentQueue]:
    """Another handle, which never owns."""
    with PersistentQueue(owner.path, mode="shared", can_own=False) as queue:
        yield queue


def test_a_bounded_queue_takes_a_put_of_a_client_once_there_is_space(
    owner: PersistentQueue, client: PersistentQueue, threads: Threads
) -> None:
    """A batch that never fits is refused at once."""
    client.put_many([b"a", b"b"])
    for put in (lambda: client.put(b"x", timeout=0.05), lambda: client.put_nowait(b"x")):
        with pytest.raises(Full):
            put()
    with pytest.raises(RecordTooLargeError) as too_large:
        client.put_many([b"x"] * 3)
    assert too_large.value.max_bytes == 2
    threads.start(partial(client.put, b"c"))
    assert owner.get(timeout=5) == b"a"
    threads.join()
    assert waiting(owner) == [b"b", b"c"]


def test_a_full_disk_of_the_owner_is_told_and_nothing_was_put(
    owner: PersistentQueue, client: PersistentQueue, disk: FullDisk
) -> None:
    """With its path; the next put may succeed."""
    client.put(b"a")
    disk.is_full = True
    with pytest.raises(DiskFullError) as full:
        client.put(b"x")
    assert "data" in full.value.path
    disk.is_full = False
    client.put(b"b")
    assert waiting(owner) == [b"a", b"b"]


def test_closing_a_client_ends_its_puts_that_wait(
    owner: PersistentQueue, client: PersistentQueue, threads: Threads
) -> None:
    """They were sent, so the client does not know of them; none of them is put later, when there is space."""
    client.put_many([b"a", b"b"])
    ended: list[Exception] = []

    def put() -> None:
        with pytest.raises(CommitUnknownError) as caught:
            client.put(b"x")
        ended.append(caught.value)

    threads.start(put)
    wait_until(lambda: bool(_parked(owner)))
    client.close()
    threads.join()
    assert len(ended) == 1
    with pytest.raises(ClosedError):
        client.put(b"x")
    assert [owner.get(timeout=5) for _ in range(2)] == [b"a", b"b"]
    assert owner.put(b"c") == 2
    assert waiting(owner) == [b"c"]


def _parked(owner: PersistentQueue) -> int:
    """Return how many requests wait in the owner's machine."""
    assert isinstance(owner._engine, SharedEngine)
    found = owner._engine._finder.owner
    assert found is not None
    machine = found._loop._handler
    assert isinstance(machine, Machine)
    return len(machine._parked)
