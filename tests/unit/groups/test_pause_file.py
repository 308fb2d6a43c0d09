"""``pause.json``: there or not after any crash, and a damaged one pauses until somebody resumes."""

import json
from pathlib import Path

import pytest

from holdfast.persistence.groups.pause_file import Pause, read_pause, remove_pause, write_pause
from support.storages.refusals import refusing
from support.storages.simulated_storage import SimulatedStorage

GROUP = Path("/groups/default")
PAUSES = [Pause(None), Pause(None, "why, größe"), Pause(0), Pause(2**63 - 1, "x" * 5000)]


@pytest.fixture
def storage() -> SimulatedStorage:
    """A disk with the directory of a group, which nobody has synced."""
    storage = SimulatedStorage()
    storage.make_directory(GROUP.parent)
    storage.sync_directory(Path("/"))
    storage.make_directory(GROUP)
    return storage


@pytest.mark.parametrize("pause", PAUSES, ids=str)
def test_a_pause_is_durable_when_it_is_written_and_its_end_when_it_is_removed(
    storage: SimulatedStorage, pause: Pause
) -> None:
    """Also in a group whose directory is new."""
    assert read_pause(storage, GROUP) is None
    write_pause(storage, GROUP, pause)
    assert read_pause(storage.crash_dropping_unsynced(), GROUP) == pause
    remove_pause(storage, GROUP)
    assert read_pause(storage.crash_dropping_unsynced(), GROUP) is None
    remove_pause(storage, GROUP)


def test_a_crash_leaves_the_old_pause_or_the_new_one(storage: SimulatedStorage) -> None:
    """Never none, and never a mixture."""
    old, new = Pause(5, "old"), Pause(None, "the new one, which is longer")
    write_pause(storage, GROUP, old)
    begun = len(storage.log)
    write_pause(storage, GROUP, new)
    crashes = [crash.storage for crash in storage.prefix_crashes() if crash.operation_count >= begun]
    found = {read_pause(crashed, GROUP) for crashed in crashes}
    assert found == {old, new}


def test_a_pause_is_over_from_its_time_on() -> None:
    """And one without a time never is."""
    assert [Pause(10).is_over(now) for now in (0, 9, 10, 11)] == [False, False, True, True]
    assert not Pause(None).is_over(2**70)


@pytest.mark.parametrize("damage", [b"", b"{}", b"\xff\xfe", b'{"format": 1, "until_ns": 1, "reason": ""}', b"[1]"])
def test_one_that_cannot_be_made_out_goes_on_until_somebody_resumes(storage: SimulatedStorage, damage: bytes) -> None:
    """Handing out what nobody should have is worse than waiting; its reason says what is wrong."""
    write_pause(storage, GROUP, Pause(1, "short"))
    file = storage.open(GROUP / "pause.json")
    file.truncate(0)
    if damage:
        file.write_at((damage,), 0)
    file.close()
    pause = read_pause(storage, GROUP)
    assert pause is not None
    assert pause.until_ns is None
    assert "damaged" in pause.reason
    remove_pause(storage, GROUP)
    assert read_pause(storage, GROUP) is None


def test_it_is_a_document_for_people(storage: SimulatedStorage) -> None:
    """Readable JSON."""
    write_pause(storage, GROUP, Pause(5, "why"))
    fields = json.loads(storage.tree()[GROUP / "pause.json"] or b"")
    assert (fields["until_ns"], fields["reason"]) == (5, "why")


def test_a_disk_that_refuses_is_not_taken_for_no_pause(storage: SimulatedStorage) -> None:
    """Neither when it is looked for nor when it is to end."""
    write_pause(storage, GROUP, Pause(None, "why"))
    with refusing(storage, "open", "pause.json"), pytest.raises(OSError, match="Input/output error"):
        read_pause(storage, GROUP)
    with refusing(storage, "remove", "pause.json"), pytest.raises(OSError, match="Input/output error"):
        remove_pause(storage, GROUP)
    assert read_pause(storage, GROUP) == Pause(None, "why")
