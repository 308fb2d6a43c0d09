"""The making of a consumer group is killed at each of its changes: once a consumer has opened it, it is durable."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from holdfast import GroupNotFoundError, PersistentQueue
from support.storages.simulated_storage import SimulatedStorage

ROOT = Path("/queue")


def test_what_a_consumer_has_finished_in_it_stays_finished_without_power() -> None:
    """Where the group is there after the kill, a loss of power does not take it along with what was acknowledged."""
    storage = SimulatedStorage()
    with PersistentQueue(ROOT, mode="exclusive", storage=storage) as queue:
        queue.put_many([b"one", b"two"])
        before = len(storage.log)
        queue.groups.create("late")
        after = len(storage.log)
    opened = 0
    for disk in [state.crash_keeping_all() for state in storage.replay()][before + 1 : after + 1]:
        with suppress(GroupNotFoundError), PersistentQueue(ROOT, mode="exclusive", group="late", storage=disk) as queue:
            assert queue.get(timeout=0) == b"one"
            powerless = disk.crash_dropping_unsynced()
            with PersistentQueue(ROOT, mode="exclusive", group="late", storage=powerless) as again:
                assert again.get(timeout=0) == b"two"
            opened += 1
    assert opened == 2, "behind the rename of its document, and behind the sync of that"
