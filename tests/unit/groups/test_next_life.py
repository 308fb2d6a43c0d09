"""Another life of a group: what it takes over, how it begins on the disk, and what a failure on the way leaves."""

from __future__ import annotations

import errno
from itertools import islice
from pathlib import Path

import pytest

from holdfast import CommitUnknownError, FencedError, PoisonedError, StorageError
from holdfast.persistence.filesystem.layout import QueueDirectory, list_generations, open_directory, position_file
from holdfast.persistence.filesystem.poison import commit_unknown
from holdfast.persistence.filesystem.storage import write_whole
from holdfast.persistence.format.constants import ENTRY_DELIVERED, ENTRY_DONE, FENCE_POSITION
from holdfast.persistence.format.dead_letter import DeadMark
from holdfast.persistence.groups.group_files import (
    GroupInfo,
    find_group,
    next_life,
    progress_reader,
    replace_group,
    require_group,
    write_group,
)
from holdfast.persistence.groups.position_entry import NO_HINT, Change, dead_change
from holdfast.persistence.groups.position_file_reader import PositionFileReader
from holdfast.persistence.groups.position_file_writer import PositionFileWriter
from holdfast.persistence.groups.progress import GroupProgress
from support.builders.log_parts import LogParts
from support.storages.faults import FaultPlan
from support.storages.refusals import refusing
from support.storages.simulated_storage import SimulatedStorage

FILE_BYTES = 2**14
STATES_MAX = 32  # of each step; the explorer has more
MARK = DeadMark("rejected", 2, 1, 2)
SESSION = 7 << 32


def group_of(start: int = 0) -> GroupInfo:
    """Return a group in its first life."""
    return GroupInfo("orders", b"1" * 16, start, settings={"max_deliveries": 3})


def left_of(life: GroupProgress, end: int) -> list[int]:
    """Return the offsets that a group gets or has as dead letters."""
    return [offset for run in life.unfinished_runs(0, end) for offset in run]


# -- What it takes over ------------------------------------------------------------------------------------------------


def test_a_life_begins_at_its_start_with_nothing_of_the_one_before() -> None:
    """Neither what was finished, nor counts, delays and failures."""
    before = GroupProgress()
    before.finish(0, 5)
    before.deliver(5, 2, 3)
    before.give_back(6, 1, 3, 99, 9)
    before.lost_count = 4
    group, life = next_life(group_of(), before, 3, [range(8, 10)])
    assert left_of(life, 12) == [3, 4, 5, 6, 7, 10, 11]
    assert (life.deliveries, life.returned, life.again, life.numbers) == ({}, {}, set(), {})
    assert life.lost_count == 4
    assert life.live_count(12) == 7
    assert group.group_id != group_of().group_id
    assert (group.start_offset, group.retired, group.settings) == (3, (range(8, 10),), {"max_deliveries": 3})


@pytest.mark.parametrize(
    ("start", "left"), [(0, range(12)), (2, [1, *range(2, 12)]), (9, [1, 4, 9, 10, 11]), (12, [1, 4])]
)
def test_dead_letters_stay_where_they_are(start: int, left: list[int]) -> None:
    """What is between them and the start is finished; and the document alone says so, too."""
    before = GroupProgress()
    before.finish(0, 1)
    for offset in (4, 1):
        before.bury(offset, MARK)
    group, life = next_life(group_of(), before, start, [])
    assert left_of(life, 12) == sorted({*left, 1, 4})
    assert life.dead == {4: MARK, 1: MARK}
    assert list(life.dead) == [4, 1]
    assert life.live_count(12) == len(set(left) - {1, 4})
    assert left_of(group.initial_progress(), 12) == left_of(life, 12)


def test_sessions_are_told_what_was_taken_away_from_them() -> None:
    """Now, and before: they may not have heard of that either."""
    before = GroupProgress()
    before.deliver(3, 2, 1, SESSION + 1)
    before.take_away(SESSION + 2, 1, 1)
    _, life = next_life(group_of(), before, 9, [])
    assert life.taken_away == {SESSION + 1: {3, 4}, SESSION + 2: {1}}


def test_a_gap_at_the_start_moves_the_floor() -> None:
    """The document has it as the start."""
    group, life = next_life(group_of(), GroupProgress(), 5, [range(2, 5), range(5, 7)])
    assert (life.floor, group.start_offset, group.retired) == (7, 7, ())


# -- On the disk -------------------------------------------------------------------------------------------------------


class Disk:
    """A queue with one group, which a writer has open: message 2 is a dead letter, 0, 1 and 3 are finished."""

    def __init__(self) -> None:
        self.parts = LogParts()
        self.storage: SimulatedStorage = self.parts.storage
        self.directory: QueueDirectory = self.parts.directory
        self.group = write_group(self.storage, self.directory, "orders", self.parts.files(), 0, {})
        self.path = self.directory.group("orders")
        self.writer = self.open(self.storage)
        self.writer.append([Change(ENTRY_DONE, 0, 2, NO_HINT)])
        self.writer.append([dead_change(2, MARK)])
        self.writer.append([Change(ENTRY_DONE, 3, 1, NO_HINT)])
        self.writer.append([Change(ENTRY_DELIVERED, 4, 1, NO_HINT, 2)])
        self.writer.sync()

    def reader(self, storage: SimulatedStorage) -> PositionFileReader:
        """Return a reader of the life that the document names."""
        group = require_group(storage, self.directory, "orders")
        return progress_reader(storage, self.directory, self.parts.queue_id, group)

    def open(self, storage: SimulatedStorage) -> PositionFileWriter:
        """Open the group as its owner does."""
        reader = self.reader(storage)
        return PositionFileWriter(storage, self.path, self.parts.clock, reader, file_bytes=FILE_BYTES)

    def move(self, start: int = 1) -> None:
        """Begin another life."""
        group = require_group(self.storage, self.directory, "orders")
        begun, life = next_life(group, self.writer.progress, start, [])
        publish = lambda: replace_group(self.storage, self.directory, group, begun)  # noqa: E731
        self.writer.begin_life(begun.group_id, life, publish)


def is_before(progress: GroupProgress) -> bool:
    """Whether it is the first life; else it has to be the second one, whole."""
    if progress.deliveries:
        assert left_of(progress, 6) == [2, 4, 5]
        assert progress.deliveries == {4: 2}
        assert progress.dead == {2: MARK}
        return True
    assert left_of(progress, 6) == [1, 2, 3, 4, 5]
    assert progress.dead == {2: MARK}
    return False


def test_a_life_counts_for_every_reader_once_it_has_begun() -> None:
    """A reader of the life before learns that there is another one."""
    disk = Disk()
    old = disk.reader(disk.storage)
    old.refresh()
    assert not old.is_superseded
    disk.move()
    assert is_before(old.refresh())
    assert old.is_superseded
    assert not is_before(disk.reader(disk.storage).refresh())
    disk.writer.append([Change(ENTRY_DONE, 1, 1, NO_HINT)])
    assert left_of(disk.reader(disk.storage).refresh(), 6) == [2, 3, 4, 5]
    disk.writer.close()


def test_a_loss_of_power_leaves_one_life_or_the_other_at_each_step() -> None:
    """Never a mixture; behind the call it is the new one. The next opening begins a generation of it, and so on."""
    disk = Disk()
    disk.storage.replay_from_here()
    disk.move()
    seen = []
    for left in disk.storage.replay():
        for crashed in islice(left.crash_states(), STATES_MAX):
            again = disk.open(crashed)
            seen.append(is_before(again.progress))
            again.append([Change(ENTRY_DONE, 5, 1, NO_HINT)])
            again.close()
            for state in (crashed.crash_dropping_unsynced(), crashed.crash_keeping_all()):
                reader = disk.reader(state)
                assert left_of(reader.refresh(), 6)[-1] == 4
                assert reader.damage == []
    assert True in seen
    assert False in seen
    for crashed in islice(disk.storage.crash_states(), STATES_MAX):
        assert not is_before(disk.open(crashed).progress)


def test_an_opening_behind_a_life_that_did_not_begin_keeps_the_one_that_counts() -> None:
    """Its file is not the latest, and its space is not used again before the next one has its name."""
    disk = Disk()
    with refusing(disk.storage, "rename", "group.json.new"), pytest.raises(OSError, match=r"group\.json"):
        disk.move()
    crashed = disk.storage.crash_keeping_all()
    assert list_generations(crashed, disk.path) == [1, 2]
    crashed.replay_from_here()
    again = disk.open(crashed)
    assert is_before(again.progress)
    for left in crashed.replay():
        for state in islice(left.crash_states(), STATES_MAX):
            assert is_before(disk.reader(state).refresh())
    again.close()


def test_two_owners_of_a_file_behind_which_another_life_lies_find_each_other() -> None:
    """The token is in the file that counts, not only in the latest one."""
    disk = Disk()
    with refusing(disk.storage, "rename", "group.json.new"), pytest.raises(OSError, match=r"group\.json"):
        disk.move()
    second = disk.open(disk.storage)
    disk.parts.clock.advance(1)
    with pytest.raises(FencedError):
        disk.writer.append([Change(ENTRY_DONE, 4, 1, NO_HINT)])
    assert is_before(second.progress)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_each_call_of_the_storage_that_fails_leaves_one_life_or_the_other(error: int) -> None:
    """What the writer says then is what is on the disk, or it writes nothing more."""
    fired_count, failed = 1, 0
    while fired_count:
        failed += 1
        disk = Disk()
        disk.storage.faults = plan = FaultPlan(failed, error)
        try:
            try:
                disk.move()
            finally:
                disk.storage.faults = None
        except CommitUnknownError:
            with pytest.raises(PoisonedError):
                disk.writer.append([Change(ENTRY_DONE, 5, 1, NO_HINT)])
        except (StorageError, OSError):
            assert is_before(disk.writer.progress)
            assert is_before(disk.reader(disk.storage).refresh())
            assert is_before(disk.reader(disk.storage.crash_dropping_unsynced()).refresh())
            disk.writer.append([Change(ENTRY_DONE, 5, 1, NO_HINT)])
            disk.writer.sync()
            assert left_of(disk.reader(disk.storage.crash_dropping_unsynced()).refresh(), 6) == [2, 4]
            disk.move()
        else:
            assert not is_before(disk.writer.progress)
        assert disk.reader(disk.storage).refresh().dead == {2: MARK}
        fired_count = plan.fired_count
    assert failed > 10


def test_another_owner_that_comes_while_a_life_begins_is_found() -> None:
    """Whether it has read the one or the other is unknown, and nothing more is written."""
    disk = Disk()
    latest = position_file(disk.path, list_generations(disk.storage, disk.path)[-1])
    group = require_group(disk.storage, disk.directory, "orders")
    begun, life = next_life(group, disk.writer.progress, 1, [])

    def publish() -> None:
        replace_group(disk.storage, disk.directory, group, begun)
        with disk.storage.open(latest) as file:
            write_whole(file, (b"another owner's ",), FENCE_POSITION)

    with pytest.raises(CommitUnknownError):
        disk.writer.begin_life(begun.group_id, life, publish)
    with pytest.raises(FencedError):
        disk.writer.append([Change(ENTRY_DONE, 5, 1, NO_HINT)])
    disk.writer.close()


def test_another_owner_that_came_before_a_life_begins_is_found() -> None:
    """Then nothing has changed."""
    disk = Disk()
    latest = position_file(disk.path, list_generations(disk.storage, disk.path)[-1])
    with disk.storage.open(latest) as file:
        write_whole(file, (b"another owner's ",), FENCE_POSITION)
    with pytest.raises(FencedError):
        disk.move()
    assert is_before(disk.reader(disk.storage).refresh())
    with pytest.raises(FencedError):
        disk.writer.append([Change(ENTRY_DONE, 5, 1, NO_HINT)])


def test_a_document_of_which_nobody_knows_poisons_the_writer() -> None:
    """Either life may be there after a loss of power."""
    disk = Disk()

    def publish() -> None:
        raise commit_unknown("changing a document", Path("group.json"), OSError(errno.EIO, "no"))

    with pytest.raises(CommitUnknownError):
        disk.writer.begin_life(b"2" * 16, GroupProgress(), publish)
    with pytest.raises(PoisonedError):
        disk.writer.append([Change(ENTRY_DONE, 5, 1, NO_HINT)])


def test_a_document_that_would_be_too_large_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with very many dead letters: discard some."""
    disk = Disk()
    monkeypatch.setattr("holdfast.persistence.groups.group_files.LARGE_DOCUMENT_BYTES_MAX", 100)
    with pytest.raises(StorageError, match="nothing was written"):
        disk.move()
    monkeypatch.undo()
    assert is_before(disk.writer.progress)
    disk.move()
    assert find_group(disk.storage, disk.directory, "orders") is not None
    assert open_directory(disk.storage, Path("/queue"), create=False)
