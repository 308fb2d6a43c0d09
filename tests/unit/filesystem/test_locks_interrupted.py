"""KeyboardInterrupt while a lock is taken or let go of: it does not stay locked in a process that lives."""

from pathlib import Path

from holdfast import PersistentQueue
from holdfast.clock import SystemClock
from holdfast.persistence.filesystem import locks
from holdfast.persistence.filesystem.layout import QueueDirectory, queue_directory
from holdfast.persistence.filesystem.locks import Guard, SideLock
from holdfast.persistence.groups.group_files import groups_locked
from support.builders.handles import handle_of
from support.processes.interruptions import Kind, guarded, interrupt, interrupted, points_of
from support.storages.simulated_storage import SimulatedStorage


def test_the_list_of_groups_is_free_wherever_somebody_who_holds_it_is_interrupted(tmp_path: Path) -> None:
    """The first receive takes it; else every later one would wait for it, and fail."""
    with PersistentQueue(tmp_path / "queue", mode="exclusive") as queue:
        storage, directory, clock = queue._storage, handle_of(queue).directory, queue._clock

        def hold() -> None:
            with groups_locked(storage, directory, clock):
                pass

        at = 1
        while interrupt(hold, at):
            with groups_locked(storage, directory, clock):
                at += 1
        assert at > 10


def test_who_handles_the_interruption_of_taking_a_lock_finds_its_guard_free() -> None:
    """While the interruption is being handled its traceback is there, and nothing goes with that."""
    clock, directory = SystemClock(), queue_directory(Path("/queue"))

    def take(storage: SimulatedStorage) -> SideLock:
        def guard() -> Guard:
            return groups_locked(storage, directory, clock)

        return locks.acquire(
            storage, directory.write_lock, clock, timeout=0, owned=locks.Owned("the write side"), guard=guard
        )

    take(_made(directory))  # paths and notes are made once
    storage = _made(directory)
    points = [point for point in points_of(lambda: take(storage)) if point.kind is not Kind.ELSEWHERE]
    assert len(points) > 50
    for point in points:
        storage = _made(directory)
        error = interrupted(lambda storage=storage: take(storage), point)  # type: ignore[misc]
        assert isinstance(error, KeyboardInterrupt), point
        with guarded(5), groups_locked(storage, directory, clock):
            del error


def _made(directory: QueueDirectory) -> SimulatedStorage:
    """Return a disk with the directories in which locks are."""
    storage = SimulatedStorage()
    for path in (directory.root, directory.groups):
        storage.make_directory(path)
    return storage
