"""The group that a handle is for, when its opening fails."""

import errno
from unittest.mock import patch

import pytest

from holdfast import FencedError, PersistentQueue, StorageError
from holdfast.persistence.groups import own_group
from support.builders.clocks import FakeClock
from support.storages.faults import FaultPlan
from support.storages.simulated_storage import SimulatedStorage

DIRECTORY_SYNC = frozenset({"sync_directory"})
GROUP = "/q/groups/default"


def opened(storage: SimulatedStorage) -> PersistentQueue:
    """Open the queue."""
    return PersistentQueue("/q", mode="exclusive", storage=storage, clock=FakeClock())


def killed_before_its_name_was_synced() -> SimulatedStorage:
    """Return a disk whose default group has a document, and its directory was not synced since."""
    storage, left = SimulatedStorage(), list[SimulatedStorage]()

    def kill(verb: str, path: object) -> None:
        if verb == "sync_directory" and str(path) == GROUP and not left and f"{GROUP}/group.json" in names(storage):
            left.append(storage.crash_keeping_all())

    with opened(storage) as queue:
        queue.put(b"first")
        storage.before_verb = kill
        queue.receive(timeout=0).release()
        storage.before_verb = None
    return left[0]


def names(storage: SimulatedStorage) -> set[str]:
    """Return the paths on a disk."""
    return {str(path) for path in storage.tree()}


def fails_in_opening_the_group(storage: SimulatedStorage, error: int, *, forever: bool = False) -> FaultPlan:
    """Let the first sync of the group's directory fail."""
    plan = FaultPlan(1, error, forever=forever, verbs=DIRECTORY_SYNC)

    def strike(verb: str, path: object) -> None:
        if verb == "sync_directory" and str(path) == GROUP:
            storage.faults = plan

    storage.before_verb = strike
    return plan


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_group_whose_maker_was_killed_survives_an_opening_that_fails(error: int) -> None:
    """The failed sync may have lost its name; a second one would succeed over that, and acknowledgements would go."""
    storage = killed_before_its_name_was_synced()
    plan = fails_in_opening_the_group(storage, error)
    try:
        queue = opened(storage)  # with the space that is reserved for it, if the disk is full
    except StorageError:
        queue = opened(storage)
    storage.before_verb = None
    assert plan.fired_count == 1
    assert queue.get(timeout=0) == b"first"
    with opened(storage.crash_dropping_unsynced()) as after:
        assert after.groups.list() == ["default"]
        assert after.empty()
    queue.close()


def test_a_disk_that_refuses_everything_is_told_by_its_first_error() -> None:
    """Writing the document anew fails too, and says nothing."""
    storage = killed_before_its_name_was_synced()
    plan = fails_in_opening_the_group(storage, errno.EIO, forever=True)
    with pytest.raises(StorageError):
        opened(storage)
    assert plan.fired_count > 1


def test_an_opening_that_another_owner_overtakes_does_not_write_the_document() -> None:
    """Else it could write the life of the group again that the other owner has ended."""
    storage = killed_before_its_name_was_synced()
    with (
        patch.object(own_group, "PositionFileWriter", side_effect=FencedError("another owner")),
        patch.object(own_group, "replace_group") as written,
        pytest.raises(FencedError),
    ):
        opened(storage)
    written.assert_not_called()
