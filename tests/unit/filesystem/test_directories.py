"""Directories above a queue: made durably, or not at all."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from holdfast.persistence.filesystem.directories import make_parents
from support.storages.faults import FaultPlan
from support.storages.simulated_storage import SimulatedStorage

SRV = Path("/srv")
NEW = SRV / "data" / "orders"


def with_srv(error: int) -> SimulatedStorage:
    """Return a disk with a directory, on which the next sync of one fails."""
    storage = SimulatedStorage()
    storage.make_directory(SRV)
    storage.faults = FaultPlan(1, error, verbs=frozenset({"sync_directory"}))
    return storage


@pytest.mark.parametrize("error", [errno.EACCES, errno.EPERM, errno.EINVAL, errno.ENOTSUP])
def test_a_directory_whose_own_name_cannot_be_synced_is_another_ones(error: int) -> None:
    """Another user's, or of a file system that syncs no directory: no process of ours has made it."""
    storage = with_srv(error)
    make_parents(storage, NEW)
    assert storage.faults is not None
    assert storage.faults.fired_count == 1
    assert storage.list(SRV) == ["data"]


def test_nothing_is_made_below_a_name_that_a_disk_has_lost() -> None:
    """All that is below it would go with it."""
    storage = with_srv(errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        make_parents(storage, NEW)
    assert storage.list(SRV) == []


def test_the_root_of_a_disk_has_no_name() -> None:
    """So nothing has to be synced below it."""
    storage = SimulatedStorage()
    storage.faults = FaultPlan(1, verbs=frozenset({"sync_directory"}))
    make_parents(storage, SRV)
    assert storage.faults.fired_count == 0
