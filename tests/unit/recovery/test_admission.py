"""What is looked at before a queue is opened for writing."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from holdfast import PersistentQueue, StorageError
from support.storages.faults import FaultPlan
from support.storages.simulated_storage import SimulatedStorage

ROOT = Path("/queue")


def test_a_file_that_cannot_be_looked_at_refuses_the_opening_and_nothing_was_changed() -> None:
    """Any failure to read on the way there is an error of the disk, and the next attempt may succeed."""
    storage = SimulatedStorage()
    with PersistentQueue(ROOT, mode="exclusive", storage=storage) as queue:
        queue.put_many([b"one", b"two"])
        assert queue.get() == b"one"
    failed_count = 0
    for number in range(1, 9):
        storage.faults = FaultPlan(number, errno.EIO, verbs=frozenset({"open"}))
        with pytest.raises(StorageError):
            PersistentQueue(ROOT, mode="exclusive", storage=storage)
        failed_count += storage.faults.fired_count
    storage.faults = None
    assert failed_count == 8
    with PersistentQueue(ROOT, mode="exclusive", storage=storage) as queue:
        assert queue.get() == b"two"
