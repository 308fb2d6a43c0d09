"""One entry of one message, as the fast lane appends it: what goes wrong on the way is undone or counted."""

from __future__ import annotations

import errno

import pytest

from holdfast import DiskFullError, PoisonedError, StorageError
from holdfast.persistence.format.constants import ENTRY_DELIVERED, ENTRY_DONE
from holdfast.persistence.groups.progress import GroupProgress
from holdfast.persistence.log.log_reader import Record
from support.storages.faults import FaultPlan
from support.storages.refusals import refusing
from unit.groups.test_position_file_writer import SLOTS, new_storage, read, state, writer


def record(offset: int) -> Record:
    """Return a record of the first data file."""
    return offset, 0, b"", b"work", 5000 + offset, 1


def test_one_by_one_fills_files_as_runs_do() -> None:
    """Generations included; what is read is what the memory has."""
    storage, progress = new_storage(), GroupProgress()
    positions = writer(storage, progress)
    for offset in range(3 * SLOTS):
        positions.append_one(ENTRY_DELIVERED, record(offset), 1, 7 << 32)
        assert positions.append_one(ENTRY_DONE, record(offset)) == 2 * offset + 2
        assert state(read(storage).progress) == state(progress)
    assert progress.hint == (1, 5000 + 3 * SLOTS - 1)


def test_a_short_write_is_continued() -> None:
    """The entry counts whole."""
    storage, progress = new_storage(), GroupProgress()
    positions = writer(storage, progress)
    storage.faults = FaultPlan(1, short_write=True)
    positions.append_one(ENTRY_DONE, record(0))
    assert progress.floor == read(storage).progress.floor == 1


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_one_that_fails_does_not_count_and_the_next_one_takes_its_place(number: int) -> None:
    """Neither in memory nor on the disk."""
    storage, progress = new_storage(), GroupProgress()
    positions = writer(storage, progress)
    storage.faults = FaultPlan(1, error=number, verbs=frozenset({"write_at"}))
    with pytest.raises(DiskFullError if number == errno.ENOSPC else StorageError):
        positions.append_one(ENTRY_DONE, record(0))
    storage.faults = None
    assert progress.floor == read(storage).progress.floor == 0
    positions.append_one(ENTRY_DONE, record(1))
    assert state(read(storage).progress) == state(progress)
    assert not progress.is_finished(0)


def test_one_that_is_interrupted_behind_the_write_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the disk it does, so in memory too."""
    storage, progress = new_storage(), GroupProgress()
    positions = writer(storage, progress)
    deliver, calls = GroupProgress.deliver, 0

    def interrupted(of: GroupProgress, first: int, count: int, delivery_count: int, number: int = 0) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise KeyboardInterrupt
        deliver(of, first, count, delivery_count, number)

    monkeypatch.setattr(GroupProgress, "deliver", interrupted)
    with pytest.raises(KeyboardInterrupt):
        positions.append_one(ENTRY_DELIVERED, record(0), 1)
    assert progress.deliveries == {0: 1}
    positions.append_one(ENTRY_DONE, record(0))
    assert state(read(storage).progress) == state(progress)


def test_a_poisoned_read_side_refuses_one() -> None:
    """As it refuses a run."""
    storage = new_storage()
    positions = writer(storage)
    positions.append_one(ENTRY_DONE, record(0))
    with refusing(storage, "sync", error=KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
        positions.sync()
    with pytest.raises(PoisonedError):
        positions.append_one(ENTRY_DONE, record(1))
