"""Groups on the disk: found, made and made again after a fault."""

from __future__ import annotations

import pytest

from holdfast.persistence.filesystem.layout import position_file
from holdfast.persistence.format.file_header import PositionFileHeader, block_buffers
from holdfast.persistence.groups.group_files import find_group, remove_group, write_group
from holdfast.persistence.groups.group_visit import visit_group
from holdfast.persistence.groups.pause_file import Pause, read_pause, write_pause
from support.builders.log_parts import LogParts, put
from support.storages.refusals import refusing


def test_a_disk_that_refuses_is_not_taken_for_no_group(parts: LogParts) -> None:
    """Else a group that has progress would begin anew."""
    made = write_group(parts.storage, parts.directory, "g", parts.files(), 7, {})
    with refusing(parts.storage, "open", "group.json"), pytest.raises(OSError, match="Input/output error"):
        find_group(parts.storage, parts.directory, "g")
    assert find_group(parts.storage, parts.directory, "g") == made
    assert find_group(parts.storage, parts.directory, "other") is None


def test_a_damaged_group_takes_its_id_from_a_position_file_that_has_a_header(parts: LogParts) -> None:
    """Another one of them may be damaged too; where all are, nobody knows the id."""
    group = parts.directory.group("g")
    made = write_group(parts.storage, parts.directory, "g", parts.files(), 7, {})
    put(parts.storage, group / "group.json", b"{}")
    put(parts.storage, position_file(group, 1), block_buffers(bytes(512)))
    found = find_group(parts.storage, parts.directory, "g")
    assert found is not None
    assert found.group_id == bytes(16)
    header = PositionFileHeader(parts.queue_id, made.group_id, 2)
    put(parts.storage, position_file(group, 2), block_buffers(header.encode()))
    found = find_group(parts.storage, parts.directory, "g")
    assert found is not None
    assert found.group_id == made.group_id
    assert [damage.path.name for damage in found.damage] == ["group.json"]


def test_a_group_whose_name_could_not_be_synced_gets_a_new_one_for_the_next_attempt(parts: LogParts) -> None:
    """A second sync could succeed over the lost name; once the group is made, no loss of power takes it back."""
    with refusing(parts.storage, "sync_directory", "groups"), pytest.raises(OSError, match="Input/output error"):
        write_group(parts.storage, parts.directory, "g", parts.files(), 7, {})
    assert find_group(parts.storage, parts.directory, "g") is None
    made = write_group(parts.storage, parts.directory, "g", parts.files(), 7, {})
    assert find_group(parts.storage.crash_dropping_unsynced(), parts.directory, "g") == made


def test_a_group_that_is_not_there_needs_no_note(parts: LogParts) -> None:
    """It is not made for it."""
    count = parts.storage.mutation_count
    assert visit_group(parts.storage, parts.directory, parts.queue_id, parts.clock, "g", pytest.fail)
    assert parts.storage.mutation_count == count


def test_a_damaged_group_whose_deletion_could_not_be_synced_is_not_made_up(parts: LogParts) -> None:
    """What stood in its document is not known any more; one that is sound is written again."""
    group = parts.directory.group("g")
    made = write_group(parts.storage, parts.directory, "g", parts.files(), 7, {})
    with refusing(parts.storage, "sync_directory", "g", count=1), pytest.raises(OSError, match="Input/output error"):
        remove_group(parts.storage, parts.directory, made)
    assert find_group(parts.storage, parts.directory, "g") == made
    put(parts.storage, group / "group.json", b"{}")
    damaged = find_group(parts.storage, parts.directory, "g")
    assert damaged is not None
    with refusing(parts.storage, "sync_directory", "g", count=1), pytest.raises(OSError, match="Input/output error"):
        remove_group(parts.storage, parts.directory, damaged)
    assert find_group(parts.storage, parts.directory, "g") is None


def test_a_group_begins_without_what_a_deletion_that_was_cut_off_has_left(parts: LogParts) -> None:
    """A pause of an earlier group of that name, for one. The default group may be paused before it begins."""
    for name, is_paused in (("g", False), ("default", True)):
        made = write_group(parts.storage, parts.directory, name, parts.files(), 0, {})
        write_pause(parts.storage, parts.directory.group(name), Pause(None, "old"))
        with refusing(parts.storage, "remove", "pause.json"), pytest.raises(OSError, match="Input/output error"):
            remove_group(parts.storage, parts.directory, made)
        write_group(parts.storage, parts.directory, name, parts.files(), 0, {})
        left = parts.storage.crash_dropping_unsynced()
        assert (read_pause(left, parts.directory.group(name)) is not None) == is_paused
