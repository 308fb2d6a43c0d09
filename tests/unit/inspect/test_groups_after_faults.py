"""Making, deleting, beginning and pausing groups where the disk refuses: what is taken back, and what nobody knows."""

import errno
from collections.abc import Iterator

import pytest

from holdfast import CommitUnknownError, DiskFullError, PersistentQueue, PoisonedError, StorageError
from support.builders.clocks import FakeClock
from support.builders.transactions import cut_power, open_queue, waiting
from support.storages.refusals import refusing
from support.storages.simulated_storage import SimulatedStorage


@pytest.fixture
def queue(storage: SimulatedStorage) -> Iterator[PersistentQueue]:
    """A queue with a message, of which nobody has taken anything yet."""
    with open_queue(storage, clock=FakeClock()) as opened:
        opened.put(b"one")
        yield opened


def test_a_group_that_could_not_be_made_is_not_there_and_can_be_made(
    storage: SimulatedStorage, queue: PersistentQueue
) -> None:
    """The error says why."""
    with (
        refusing(storage, "make_directory", "late", errno.ENOSPC),
        pytest.raises(DiskFullError, match="making a group"),
    ):
        queue.groups.create("late")
    assert queue.groups.list() == []
    queue.groups.create("late")
    assert queue.groups.list() == ["late"]


def test_groups_are_made_and_deleted_by_nobody_once_making_one_could_not_be_taken_back(
    storage: SimulatedStorage, queue: PersistentQueue
) -> None:
    """Its name may be lost with the power; a new handle makes it."""
    with (
        refusing(storage, "sync_directory", "groups"),
        refusing(storage, "rename", "late"),
        pytest.raises(CommitUnknownError, match="making a group"),
    ):
        queue.groups.create("late")
    for change in (queue.groups.create, queue.groups.delete):
        with pytest.raises(PoisonedError):
            change("late")
    queue.close()
    with open_queue(storage) as again:
        again.groups.create("late")
        assert again.groups.list() == ["late"]


def test_a_group_that_could_not_be_deleted_is_there_until_it_is(
    storage: SimulatedStorage, queue: PersistentQueue
) -> None:
    """Again deletes it for good."""
    queue.groups.create("late")
    with refusing(storage, "rename", "late/group.json"), pytest.raises(StorageError, match="deleting a group"):
        queue.groups.delete("late")
    assert queue.groups.list() == ["late"]
    queue.groups.delete("late")
    with open_queue(cut_power(storage, queue), mode="read_only") as left:
        assert left.groups.list() == []


def test_a_deletion_that_could_not_be_taken_back_is_unknown(storage: SimulatedStorage, queue: PersistentQueue) -> None:
    """The group may be there again after a loss of power."""
    queue.groups.create("late")
    with refusing(storage, "sync_directory", "late"), pytest.raises(CommitUnknownError, match="deleting a group"):
        queue.groups.delete("late")
    with pytest.raises(PoisonedError):
        queue.groups.delete("late")


def test_a_first_take_that_cannot_make_the_default_group_takes_nothing(
    storage: SimulatedStorage, queue: PersistentQueue
) -> None:
    """The next one makes it."""
    with refusing(storage, "make_directory", "default"), pytest.raises(StorageError, match="beginning"):
        queue.get(timeout=0)
    assert queue.get(timeout=0) == b"one"


def test_nothing_is_taken_once_the_default_group_may_be_lost(storage: SimulatedStorage, queue: PersistentQueue) -> None:
    """What it acknowledged would come again; a new handle begins anew."""
    with (
        refusing(storage, "sync_directory", "groups"),
        refusing(storage, "rename", "default"),
        pytest.raises(CommitUnknownError, match="beginning the default group"),
    ):
        queue.get(timeout=0)
    with pytest.raises(PoisonedError):
        queue.get(timeout=0)
    queue.close()
    with open_queue(storage) as again:
        assert again.get(timeout=0) == b"one"


def test_a_pause_whose_group_may_be_lost_is_unknown(storage: SimulatedStorage, queue: PersistentQueue) -> None:
    """Nobody has taken anything yet, so the pause is the first to sync the name of the group."""
    with refusing(storage, "sync_directory", "groups"), pytest.raises(CommitUnknownError, match="pausing"):
        queue.pause()
    for change in (queue.pause, queue.resume):
        with pytest.raises(PoisonedError):
            change()


def test_a_pause_that_could_not_be_ended_goes_on_until_it_is(storage: SimulatedStorage, queue: PersistentQueue) -> None:
    """In memory and on the disk."""
    assert queue.get(timeout=0) == b"one"
    queue.pause(reason="rest")
    with refusing(storage, "sync_directory", "default", count=1), pytest.raises(StorageError, match="resuming"):
        queue.resume()
    assert queue.stats().paused == "rest"
    queue.resume()
    assert queue.stats().paused is None
    with open_queue(cut_power(storage, queue), mode="read_only") as left:
        assert left.stats().paused is None


def test_an_end_of_a_pause_that_could_not_be_taken_back_is_unknown(
    storage: SimulatedStorage, queue: PersistentQueue
) -> None:
    """It may be paused again after a loss of power."""
    assert queue.get(timeout=0) == b"one"
    queue.pause(reason="rest")
    with refusing(storage, "sync_directory", "default"), pytest.raises(CommitUnknownError, match="resuming"):
        queue.resume()
    with pytest.raises(PoisonedError):
        queue.resume()


def test_resuming_what_is_not_paused_leaves_nothing_behind_where_the_disk_refuses(
    storage: SimulatedStorage, queue: PersistentQueue
) -> None:
    """There is no pause to go back to."""
    with refusing(storage, "remove", "pause.json"), pytest.raises(StorageError, match="resuming"):
        queue.resume()
    assert queue.stats().paused is None
    assert waiting(queue) == [b"one"]
