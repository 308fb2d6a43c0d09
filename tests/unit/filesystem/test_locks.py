"""Locks of sides: one owner, named, and gone with it."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest

from holdfast import LockTimeoutError, QueueLockedError
from holdfast.clock import SystemClock
from holdfast.persistence.filesystem import locks
from holdfast.persistence.filesystem.storage import OsStorage
from support.builders.clocks import FakeClock
from support.storages.simulated_storage import SimulatedStorage

PATH = Path("/write.lock")
CLOCK = SystemClock()


def test_a_lock_that_is_held_is_refused_at_once_and_names_its_owner() -> None:
    """Process and host, in the text and as attributes; by a clock that stands still, a wait would have no end."""
    storage = SimulatedStorage()
    held = locks.acquire(storage, PATH, CLOCK, timeout=0, owned=locks.Owned("the write side"))
    with pytest.raises(QueueLockedError, match=f"process {os.getpid()} on {socket.gethostname()}") as caught:
        locks.acquire(storage, PATH, FakeClock(), timeout=0, owned=locks.Owned("the write side"))
    assert (caught.value.pid, caught.value.host, caught.value.path) == (os.getpid(), socket.gethostname(), str(PATH))
    held.release()
    locks.acquire(storage, PATH, CLOCK, timeout=0, owned=locks.Owned("the write side")).release()


def test_waiting_for_a_lock_ends_with_its_owner() -> None:
    """A rolling deploy."""
    storage = SimulatedStorage()
    held = locks.acquire(storage, PATH, CLOCK, timeout=0, owned=locks.Owned("x"))
    timer = threading.Timer(0.05, held.release)
    timer.start()
    locks.acquire(storage, PATH, CLOCK, timeout=30, owned=locks.Owned("x")).release()
    timer.join()


def test_waiting_in_vain_says_for_how_long() -> None:
    """LockTimeoutError is a QueueLockedError with a story."""
    storage = SimulatedStorage()
    held = locks.acquire(storage, PATH, CLOCK, timeout=0, owned=locks.Owned("x"))
    with pytest.raises(LockTimeoutError, match=r"after 0\.05 s"):
        locks.acquire(storage, PATH, CLOCK, timeout=0.05, owned=locks.Owned("x"))
    held.release()


def test_the_lock_file_stays_when_the_lock_goes(tmp_path: Path) -> None:
    """Removing it would let two owners lock two files of one name."""
    path = tmp_path / "write.lock"
    locks.acquire(OsStorage(), path, CLOCK, timeout=0, owned=locks.Owned("x")).release()
    assert path.exists()
    assert locks.try_acquire(OsStorage(), path) is not None


@pytest.mark.parametrize("note", [b"", b"{", b"[]", b"\xff", b'{"pid": 1}', b'{"pid": "x", "host": 3}'])
def test_a_note_that_cannot_be_read_names_nobody(note: bytes) -> None:
    """It is for people, and decides nothing."""
    storage = SimulatedStorage()
    file = storage.open(PATH, create=True)
    file.write_at((note,), 0)
    assert locks.read_owner(storage, PATH) == locks.LockOwner()
    assert file.try_lock()
    with pytest.raises(QueueLockedError, match="another handle"):
        locks.acquire(storage, PATH, CLOCK, timeout=0, owned=locks.Owned("x"))


def test_no_lock_file_names_nobody() -> None:
    """Looking does not make one."""
    storage = SimulatedStorage()
    assert locks.read_owner(storage, PATH) == locks.LockOwner()
    assert not storage.mutation_count


def test_a_forked_child_lets_go_of_every_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its copies would keep the locks of its parent."""
    storage = SimulatedStorage()
    monkeypatch.setattr(locks, "_open_locks", set())
    for name in ("/a.lock", "/b.lock"):
        assert locks.try_acquire(storage, Path(name)) is not None
    locks._forget_all()
    for name in ("/a.lock", "/b.lock"):
        again = locks.try_acquire(storage, Path(name))
        assert again is not None
        again.release()
