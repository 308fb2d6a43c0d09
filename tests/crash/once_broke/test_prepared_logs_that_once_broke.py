"""Faults and damage that once lost or brought back a transaction of the prepared log, each as the shortest run."""

import errno
import logging
from pathlib import Path

import pytest

from holdfast import CommitUnknownError, PersistentQueue, PoisonedError
from support.builders.handles import move_entries
from support.builders.transactions import prepared_ids, waiting
from support.storages.faults import FaultPlan
from support.storages.refusals import refusing
from support.storages.simulated_storage import SimulatedStorage

FULL = bytes(1900)
"""Two of them fill a segment."""


@pytest.fixture(autouse=True)
def _silence(caplog: pytest.LogCaptureFixture) -> None:
    """What fails here is logged."""
    caplog.set_level(logging.CRITICAL, "holdfast")


@pytest.fixture
def storage() -> SimulatedStorage:
    """A queue with a message."""
    storage = SimulatedStorage()
    with open_queue(storage) as queue:
        queue.put(b"before")
    return storage


def open_queue(storage: SimulatedStorage) -> PersistentQueue:
    """Open the queue, with the smallest files."""
    return PersistentQueue(Path("/q"), mode="exclusive", data_file_bytes=16 * 2**10, storage=storage)


def prepare(queue: PersistentQueue, name: str, *payloads: bytes) -> None:
    """Prepare puts under an id."""
    tx = queue.begin()
    tx.put_many(payloads)
    tx.prepare(name)


def segments(storage: SimulatedStorage) -> list[str]:
    """Return the names of the segments that there are."""
    return [name for name in storage.list(Path("/q/prepared")) if name.endswith(".log")]


def test_a_commit_on_a_full_disk_leaves_what_is_behind_it_in_its_segment(storage: SimulatedStorage) -> None:
    """Giving space back cut the segment behind the entry that was committed, and took the next one."""
    with open_queue(storage) as queue:
        prepare(queue, "first", b"one")
        prepare(queue, "second", b"two")
        prepare(queue, "third", FULL, FULL)
        assert segments(storage) == ["0000000001.log", "0000000002.log"]
        with refusing(storage, "write_at", ".data", errno.ENOSPC, count=1):
            assert len(queue.commit_prepared("first")) == 1
        assert len(queue.commit_prepared("second")) == 1
        assert waiting(queue) == [b"before", b"one", b"two"]
        assert prepared_ids(queue) == ["third"]


def test_a_full_disk_that_opening_finds_loses_nothing_either(storage: SimulatedStorage) -> None:
    """The segments stay, and their entries are decided where they are."""
    with open_queue(storage) as queue:
        prepare(queue, "first", b"one")
        prepare(queue, "second", b"two")
    with refusing(storage, "write_at", ".staging", errno.ENOSPC):
        queue = open_queue(storage)
    assert segments(storage) == ["0000000001.log"]
    with queue, refusing(storage, "write_at", ".data", errno.ENOSPC, count=1):
        assert len(queue.commit_prepared("first")) == 1
    with open_queue(storage) as queue:
        assert len(queue.commit_prepared("second")) == 1
        assert waiting(queue) == [b"before", b"one", b"two"]
    assert segments(storage) == []


def test_a_commit_whose_end_cannot_be_noted_is_a_commit(storage: SimulatedStorage) -> None:
    """Nor can the bytes be taken back. The error of the disk came out of ``commit``."""
    with open_queue(storage) as queue:
        prepare(queue, "t", b"one")
        with refusing(storage, "write_at", ".log"):
            assert len(queue.commit_prepared("t")) == 1
        assert waiting(queue) == [b"before", b"one"]
        with pytest.raises(PoisonedError):
            prepare(queue, "later", b"two")
    with open_queue(storage) as queue:
        assert (waiting(queue), prepared_ids(queue)) == ([b"before", b"one"], [])


def test_an_entry_that_cannot_be_taken_back_is_unknown(storage: SimulatedStorage) -> None:
    """It may be there as a whole."""
    with open_queue(storage) as queue:
        prepare(queue, "t", b"one")
        with refusing(storage, "write_at", ".log"), pytest.raises(CommitUnknownError):
            prepare(queue, "later", b"two")
        assert prepared_ids(queue) == ["t"]


def test_an_entry_is_prepared_if_only_the_note_of_its_sync_fails(storage: SimulatedStorage) -> None:
    """``prepare`` said that it is not, and it waited."""
    with open_queue(storage) as queue:
        prepare(queue, "t", b"one")
        storage.faults = FaultPlan(2, verbs=frozenset({"write_at"}))  # the first one is that of the entry
        prepare(queue, "later", b"two")
        assert storage.faults.fired_count == 1
        storage.faults = None
    with open_queue(storage.crash_dropping_unsynced()) as queue:
        assert prepared_ids(queue) == ["t", "later"]


@pytest.mark.parametrize("keeps", [False, True])
def test_what_is_aborted_behind_a_move_that_failed_does_not_come_back(storage: SimulatedStorage, keeps: bool) -> None:
    """Its file stayed, and the next opening found it in doubt."""
    queue = open_queue(storage)
    prepare(queue, "t", b"one")
    with refusing(storage, "sync_directory", "prepared"), pytest.raises(CommitUnknownError):
        move_entries(queue)
    queue.abort_prepared("t")
    crashed = storage.crash_keeping_all() if keeps else storage.crash_dropping_unsynced()
    with open_queue(crashed) as again:
        assert (waiting(again), prepared_ids(again)) == ([b"before"], [])
    queue.close()
