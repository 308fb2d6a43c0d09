"""What the fault loop has found, each case by itself: behind a failed storage call a second try said "done"."""

import errno
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from holdfast import (
    CommitUnknownError,
    DiskFullError,
    FlushPolicy,
    HoldfastError,
    PersistentQueue,
    PoisonedError,
    StorageError,
)
from proof.faults.deciding import TRANSACTIONS
from proof.faults.in_operation import build_disk
from proof.faults.working import TAKES
from proof.faults.world import MAIN, World
from support.storages.faults import FaultPlan
from support.storages.simulated_storage import SimulatedStorage

DIRECTORY_SYNC = frozenset({"sync_directory"})
SYNCS = DIRECTORY_SYNC | {"sync"}


@pytest.fixture
def world() -> Iterator[World]:
    """A queue with a message, on a disk that can fail, in which all happens in one thread."""
    world = new_world()
    yield world
    world.storage.faults = None
    world.close()


def without_power(world: World) -> PersistentQueue:
    """Open what is left where the power fails now."""
    return PersistentQueue(MAIN, mode="read_only", storage=world.storage.crash_dropping_unsynced(), clock=world.clock)


def test_whatever_fails_in_deleting_a_group_is_an_error_of_ours(world: World) -> None:
    """Looking for the group and taking its lock too."""
    at, struck = 0, True
    while struck:
        at += 1
        world.queue.groups.create("late")
        plan = world.storage.faults = FaultPlan(at)
        with suppress(StorageError):
            world.queue.groups.delete("late")
        struck = plan.fired_count > 0
        world.storage.faults = None
    assert at > 15


def test_deleting_a_group_again_after_its_sync_has_failed_deletes_it_for_good(world: World) -> None:
    """It is there until then: a second sync could succeed over a removal that was lost."""
    world.queue.groups.create("late")
    world.storage.faults = FaultPlan(1, verbs=DIRECTORY_SYNC)
    with pytest.raises(StorageError):
        world.queue.groups.delete("late")
    world.storage.faults = None
    assert "late" in world.queue.groups.list()
    world.queue.groups.delete("late")
    with without_power(world) as left:
        assert "late" not in left.groups.list()


def test_resuming_again_after_its_sync_has_failed_resumes_for_good(world: World) -> None:
    """It stays paused until then, in memory and on the disk."""
    world.queue.receive(timeout=0).release()
    world.queue.pause(reason="rest")
    world.storage.faults = FaultPlan(1, verbs=DIRECTORY_SYNC)
    with pytest.raises(StorageError):
        world.queue.resume()
    world.storage.faults = None
    assert world.queue.stats().paused == "rest"
    world.queue.resume()
    with without_power(world) as left:
        assert left.stats().paused is None


def new_world() -> World:
    """Return a queue with a message, on a disk that can fail, in which all happens in one thread."""
    world = World(SimulatedStorage(), FlushPolicy.every_commit())
    world.open().put(b"one")
    world.queue.flush()
    return world


def test_an_abort_whose_sync_failed_is_unknown(world: World) -> None:
    """The memory of decided transactions takes nothing more, so a caller has to reopen the queue and check."""
    transaction = world.queue.begin()
    transaction.put(b"two")
    transaction.prepare("one")
    world.storage.faults = FaultPlan(1, verbs=frozenset({"sync"}))
    with pytest.raises(CommitUnknownError, match="syncing decided transactions"):
        world.queue.abort_prepared("one")


def test_whatever_fails_in_beginning_a_position_file_is_an_error_of_ours() -> None:
    """And the acknowledgement goes through once the disk works again."""
    begin = next(operation for operation in TAKES if operation.name == "ack, next generation")
    disk = build_disk(begin, FlushPolicy.every_commit())
    at, struck = 0, True
    while struck:
        at += 1
        world = World(disk.crash_keeping_all(), FlushPolicy.every_commit())
        ack = begin.ready(world)
        plan = world.storage.faults = FaultPlan(at)
        error: HoldfastError | None = None
        try:
            ack()
        except StorageError as raised:
            error = raised
        struck = plan.fired_count > 0
        world.storage.faults = None
        if error is not None and not isinstance(error, CommitUnknownError):
            ack()
        world.close()
    assert at > 10


def fails_and_refuses(world: World, call: Callable[[], object], plan: FaultPlan) -> None:
    """Nobody knows what became of a call; a second one refuses, though the disk works again."""
    world.storage.faults = plan
    with pytest.raises(CommitUnknownError, match="reopen"):
        call()
    world.storage.faults = None
    with pytest.raises(PoisonedError, match="Reopen"):
        call()


def test_making_a_group_refuses_once_it_has_failed_and_could_not_be_taken_back(world: World) -> None:
    """The group is there, and nobody knows whether it is still after a loss of power; a new handle can make it."""
    fails_and_refuses(
        world, lambda: world.queue.groups.create("late"), FaultPlan(1, forever=True, verbs=DIRECTORY_SYNC | {"rename"})
    )
    with pytest.raises(PoisonedError):
        world.queue.groups.delete("default")
    world.close()
    world.open().groups.create("late")
    assert "late" in world.queue.groups.list()


def test_deleting_a_group_refuses_once_it_has_failed_and_could_not_be_taken_back(world: World) -> None:
    """The group is gone, and nobody knows whether it is there again after a loss of power."""
    world.queue.groups.create("late")
    plan = FaultPlan(1, forever=True, verbs=DIRECTORY_SYNC)
    fails_and_refuses(world, lambda: world.queue.groups.delete("late"), plan)


def test_resuming_refuses_once_it_has_failed_and_could_not_be_taken_back(world: World) -> None:
    """The pause is gone, and nobody knows whether it is there again after a loss of power."""
    world.queue.receive(timeout=0).release()
    world.queue.pause(reason="rest")
    fails_and_refuses(world, world.queue.resume, FaultPlan(1, forever=True, verbs=DIRECTORY_SYNC))


def test_pausing_refuses_once_the_name_of_the_group_may_be_lost(world: World) -> None:
    """Nobody has taken anything yet, so the pause is the first to sync that name."""
    fails_and_refuses(world, world.queue.pause, FaultPlan(2, verbs=DIRECTORY_SYNC))


def test_aborting_jointly_refuses_once_the_removal_of_a_part_may_be_lost(world: World) -> None:
    """The part is gone, and nobody knows whether it is there again after a loss of power."""
    transaction = world.queue.begin()
    transaction.put(b"part")
    transaction.prepare("a", part_of=("app", 1))
    fails_and_refuses(world, lambda: world.queue.joint_commits.abort("app", 1), FaultPlan(1, verbs=DIRECTORY_SYNC))
    with pytest.raises(PoisonedError):
        world.queue.joint_commits.collect(0)


def test_a_transaction_over_queues_says_so_where_the_disk_of_another_one_is_full() -> None:
    """Also where that comes out in a sync: whoever makes room and tries again knows why."""
    over_two = next(operation for operation in TRANSACTIONS if operation.name == "commit, two queues")
    policy = FlushPolicy.every_commit()
    disk = build_disk(over_two, policy)
    at, struck, told_count = 0, True, 0
    while struck:
        at += 1
        world = World(disk.crash_keeping_all(), policy, over_two.paths)
        commit = over_two.ready(world)
        plan = world.storage.faults = FaultPlan(at, errno.ENOSPC, verbs=SYNCS)
        error: HoldfastError | None = None
        try:
            commit()
        except StorageError as raised:
            error = raised
        struck = plan.fired_count > 0
        world.storage.faults = None
        world.close()
        assert error is None or isinstance(error, DiskFullError | CommitUnknownError | PoisonedError), error
        told_count += isinstance(error, DiskFullError) and "aborted everywhere" in str(error)
    assert told_count
