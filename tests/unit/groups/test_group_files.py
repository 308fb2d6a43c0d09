"""Groups on the disk: found, made and made again after a fault."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count, islice
from pathlib import Path

import pytest

from holdfast.persistence.filesystem import locks
from holdfast.persistence.filesystem.layout import QueueDirectory, position_file
from holdfast.persistence.filesystem.storage import Storage
from holdfast.persistence.format.constants import ENTRY_DONE
from holdfast.persistence.format.file_header import PositionFileHeader, block_buffers
from holdfast.persistence.groups.group_files import (
    GroupInfo,
    find_group,
    list_groups,
    make_life_durable,
    progress_reader,
    remove_group,
    repair_group,
    write_group,
)
from holdfast.persistence.groups.group_visit import visit_group
from holdfast.persistence.groups.pause_file import Pause, read_pause, write_pause
from holdfast.persistence.groups.position_entry import Change
from holdfast.persistence.groups.position_file_writer import PositionFileWriter
from holdfast.persistence.groups.progress import GroupProgress
from support.builders.log_parts import LogParts, put
from support.builders.merges import note
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


@pytest.mark.parametrize("finished", [0, 10])
@pytest.mark.parametrize("is_sound", [True, False])
def test_a_damaged_group_of_two_lives_is_the_one_that_has_finished_less(
    parts: LogParts, finished: int, is_sound: bool
) -> None:
    """A seek that was cut off may have left the later one: messages may come again, and none is skipped."""
    made = write_group(parts.storage, parts.directory, "g", parts.files(), 0, {})
    path = parts.directory.group("g")
    reader = progress_reader(parts.storage, parts.directory, parts.queue_id, made)
    writer = PositionFileWriter(parts.storage, path, parts.clock, reader, file_bytes=16_384)
    writer.append([Change(ENTRY_DONE, 0, 5, (1, 5000))])
    later = GroupProgress(finished)
    states = []
    writer.begin_life(b"2" * 16, later, lambda: states.append(parts.storage.crash_keeping_all()))
    writer.close()
    put(states[0], path / "group.json", b"{}")
    if not is_sound:
        put(states[0], position_file(path, 1), b"")
    found = find_group(states[0], parts.directory, "g")
    assert found is not None
    assert found.group_id == (made.group_id if is_sound and finished else b"2" * 16)
    assert ("of 2 lives" in found.damage[0].reason) == is_sound


def test_a_life_whose_progress_cannot_be_read_has_not_finished_less(parts: LogParts) -> None:
    """Its position file has a header alone."""
    made = begun(parts)
    path = parts.directory.group("g")
    put(parts.storage, path / "group.json", b"{}")
    for generation in (2, 3):
        header = PositionFileHeader(parts.queue_id, b"2" * 16, generation)
        put(parts.storage, position_file(path, generation), block_buffers(header.encode()))
    found = find_group(parts.storage, parts.directory, "g")
    assert found is not None
    assert found.group_id == made.group_id


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


def test_a_group_that_is_deleted_before_a_visitor_has_its_lock_needs_no_note(
    parts: LogParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is made in its place."""
    made = write_group(parts.storage, parts.directory, "g", parts.files(), 7, {})
    try_acquire = locks.try_acquire

    def after_a_deletion(storage: Storage, path: Path, **options: bool) -> locks.SideLock | None:
        remove_group(parts.storage, parts.directory, made)
        return try_acquire(storage, path, **options)

    monkeypatch.setattr(locks, "try_acquire", after_a_deletion)
    assert visit_group(parts.storage, parts.directory, parts.queue_id, parts.clock, "g", pytest.fail)
    assert parts.storage.list(parts.directory.group("g")) == ["read.lock"]


def test_a_group_whose_life_is_not_proven_durable_is_written_anew(parts: LogParts) -> None:
    """Its last sync may have failed, and a second one could succeed over the lost name."""
    made = write_group(parts.storage, parts.directory, "g", parts.files(), 0, {})
    reader = progress_reader(parts.storage, parts.directory, parts.queue_id, made)
    with refusing(parts.storage, "sync_directory", "g", count=1), pytest.raises(OSError, match="Input/output error"):
        make_life_durable(parts.storage, parts.directory, made, reader)
    make_life_durable(parts.storage, parts.directory, made, reader)
    assert find_group(parts.storage.crash_dropping_unsynced(), parts.directory, "g") == made
    note(parts, made, [Change(ENTRY_DONE, 0, 1, (1, 5000))])
    count = parts.storage.mutation_count
    make_life_durable(parts.storage, parts.directory, made, reader)
    assert parts.storage.mutation_count == count
    assert reader.progress.floor == 1


def test_a_visit_leaves_a_damaged_document_to_its_owner(parts: LogParts) -> None:
    """Only an owner knows where the group starts then; a visitor notes progress alone."""
    write_group(parts.storage, parts.directory, "g", parts.files(), 0, {})
    path = parts.directory.group("g") / "group.json"
    put(parts.storage, path, b"{}")
    changes = [Change(ENTRY_DONE, 0, 1, (1, 5000))]
    assert visit_group(parts.storage, parts.directory, parts.queue_id, parts.clock, "g", lambda progress: changes)
    found = find_group(parts.storage, parts.directory, "g")
    assert found is not None
    assert progress_reader(parts.storage, parts.directory, parts.queue_id, found).refresh().floor == 1
    assert parts.storage.tree()[path] == b"{}"


def test_a_group_whose_deletion_could_not_be_synced_is_as_it_was(parts: LogParts) -> None:
    """Whole, damaged, or without its document; the next attempt deletes it."""
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
    assert find_group(parts.storage, parts.directory, "g") == damaged
    note(parts, replace(made, group_id=bytes(16)), [Change(ENTRY_DONE, 7, 1, (1, 5000))])
    parts.storage.remove(group / "group.json")
    lost = find_group(parts.storage, parts.directory, "g")
    assert lost is not None
    with refusing(parts.storage, "sync_directory", "g", count=1), pytest.raises(OSError, match="Input/output error"):
        remove_group(parts.storage, parts.directory, lost)
    assert find_group(parts.storage, parts.directory, "g") == lost
    assert "group.json.restored" not in parts.storage.list(group)
    remove_group(parts.storage, parts.directory, lost)
    assert find_group(parts.storage, parts.directory, "g") is None
    assert parts.storage.list(group) == []


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


def begun(parts: LogParts, name: str = "g") -> GroupInfo:
    """Make a group that has finished a message, and so has a position file."""
    made = write_group(parts.storage, parts.directory, name, parts.files(), 0, {})
    note(parts, made, [Change(ENTRY_DONE, 0, 1, (1, 5000))])
    return made


def id_of(storage: Storage, name: str) -> bytes | None:
    """Return the id of a group that is whole; None if there is none."""
    found = find_group(storage, QueueDirectory(Path("/queue")), name)
    assert found is None or not found.damage
    return None if found is None else found.group_id


def test_a_lost_document_is_not_taken_for_no_group(parts: LogParts) -> None:
    """Else what it had finished comes again, and what it had not is retired."""
    made = begun(parts)
    parts.storage.remove(parts.directory.group("g") / "group.json")
    found = find_group(parts.storage, parts.directory, "g")
    assert found is not None
    assert found.group_id == made.group_id
    assert "missing" in found.damage[0].reason
    assert list_groups(parts.storage, parts.directory) == [found]
    progress = progress_reader(parts.storage, parts.directory, parts.queue_id, found).refresh()
    assert progress.floor == 1
    repaired = repair_group(parts.storage, parts.directory, found, parts.files())
    assert find_group(parts.storage, parts.directory, "g") == replace(repaired, damage=())


@pytest.mark.parametrize("name", ["g", "default"])
def test_no_crash_in_a_deletion_or_a_making_looks_like_a_lost_document(parts: LogParts, name: str) -> None:
    """The group is whole or gone at each step, also if a deletion was cut off before."""
    first = begun(parts, name)
    parts.storage.replay_from_here()
    remove_group(parts.storage, parts.directory, first)
    cut = [crashed for step in parts.storage.replay() for crashed in islice(step.crash_states(), 24)]
    assert {id_of(crashed, name) for crashed in cut} == {first.group_id, None}
    gone = (LogParts(crashed) for crashed in cut if find_group(crashed, parts.directory, name) is None)
    for left in gone:
        left.queue_id, left.directory = parts.queue_id, parts.directory
        left.storage.replay_from_here()
        made = begun(left, name)
        states = [crashed for step in left.storage.replay() for crashed in islice(step.crash_states(), 24)]
        assert {id_of(crashed, name) for crashed in states} == {made.group_id, None}
        assert "group.json.removed" not in left.storage.list(parts.directory.group(name))


@pytest.mark.parametrize("call", range(6))
def test_a_group_that_is_deleted_or_made_meanwhile_is_not_damaged(parts: LogParts, call: int) -> None:
    """Who looks for it holds no lock."""
    for was_there in (True, False):
        first = begun(parts) if was_there else None
        calls = count()

        def step_in(verb: str, path: Path, first: GroupInfo | None = first, calls: Iterator[int] = calls) -> None:
            if next(calls) == call:
                parts.storage.before_verb = None
                if first is not None:
                    remove_group(parts.storage, parts.directory, first)
                begun(parts)

        parts.storage.before_verb = step_in
        found = find_group(parts.storage, parts.directory, "g")
        parts.storage.before_verb = None
        assert found is None or not found.damage
        now = find_group(parts.storage, parts.directory, "g")
        if now is not None:
            remove_group(parts.storage, parts.directory, now)
