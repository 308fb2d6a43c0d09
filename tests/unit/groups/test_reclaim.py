"""Space of finished files comes back once all groups have finished them."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import CommitUnknownError
from holdfast.persistence.filesystem import locks
from holdfast.persistence.filesystem.layout import DataFileName
from holdfast.persistence.format.constants import ENTRY_DONE
from holdfast.persistence.groups import reclaim
from holdfast.persistence.groups.group_files import GroupInfo, groups_locked, progress_reader, write_group
from holdfast.persistence.groups.group_visit import make_durable
from holdfast.persistence.groups.position_entry import Change
from holdfast.persistence.groups.position_file_writer import PositionFileWriter
from holdfast.persistence.groups.progress import GroupProgress
from holdfast.persistence.groups.reclaim import retire_finished_files
from holdfast.persistence.groups.retention import Bounds, Retention
from holdfast.persistence.log import next_data_file
from proof.interruptions.sweep import promised
from support.builders.log_parts import LogParts
from support.processes.interruptions import guarded, interrupted, points_of
from support.storages.refusals import refusing

NO_RETENTION = Retention()

FIRST, SECOND, LAST = DataFileName(1, 0), DataFileName(2, 10), DataFileName(3, 20)


def with_log(parts: LogParts, *groups: str) -> list[GroupInfo]:
    """Make three data files of ten messages each, and groups."""
    for name in (FIRST, SECOND, LAST):
        parts.data_file([], header=parts.header(name.sequence, name.first_offset))
    return [write_group(parts.storage, parts.directory, name, parts.files(), 0, {}) for name in groups]


def finish(parts: LogParts, group: GroupInfo, *runs: range) -> None:
    """Note that a group has finished messages."""
    positions = PositionFileWriter(
        parts.storage,
        parts.directory.group(group.name),
        parts.clock,
        progress_reader(parts.storage, parts.directory, parts.queue_id, group),
        file_bytes=16_384,
    )
    positions.append([Change(ENTRY_DONE, run.start, len(run), (1, 5000)) for run in runs])
    positions.close()


def retire(parts: LogParts, retention: Retention = NO_RETENTION, **own: object) -> list[DataFileName]:
    """Retire what can be."""
    files = parts.files()
    return retire_finished_files(parts.directory, files, parts.clock, retention, **own)  # type: ignore[arg-type]


def test_a_file_goes_when_every_group_has_finished_it(parts: LogParts) -> None:
    """The slower one decides."""
    one, two = with_log(parts, "one", "two")
    finish(parts, one, range(20))
    assert retire(parts) == []
    finish(parts, two, range(10))
    assert retire(parts) == [FIRST]
    assert parts.files().names() == [SECOND, LAST]
    finish(parts, two, range(10, 20))
    assert retire(parts) == [SECOND]


def test_a_file_that_is_larger_than_others_may_be_does_not_become_a_spare(parts: LogParts) -> None:
    """As one with a large message: the next file would be as large, and ``max_bytes`` would not know."""
    (group,) = with_log(parts, "one")
    finish(parts, group, range(20))
    size = parts.files().size_of(FIRST)
    with parts.storage.open(parts.files().path(SECOND)) as file:
        file.allocate(size + 1)
    assert retire(parts, Retention(spare_bytes_max=size)) == [FIRST, SECOND]
    assert parts.storage.list(parts.directory.spare) == ["0000000001.data"]


def test_one_unfinished_message_pins_its_own_file_only(parts: LogParts) -> None:
    """A file goes wherever it stands in the log."""
    (group,) = with_log(parts, "one")
    finish(parts, group, range(1, 20))
    assert retire(parts) == [SECOND]
    assert parts.files().names() == [FIRST, LAST]


def test_the_last_file_stays(parts: LogParts) -> None:
    """It is the one being written."""
    (group,) = with_log(parts, "one")
    finish(parts, group, range(30))
    assert retire(parts) == [FIRST, SECOND]
    assert parts.files().names() == [LAST]


def test_without_a_group_nothing_goes(parts: LogParts) -> None:
    """The first one may still want everything."""
    with_log(parts)
    assert retire(parts) == []


def test_progress_is_durable_before_the_file_goes(parts: LogParts) -> None:
    """Else a power loss would ask for messages that are no longer there."""
    own, other = with_log(parts, "own", "other")
    finish(parts, other, range(10))
    progress = GroupProgress()
    progress.finish(0, 10)
    order: list[str] = []

    def look(verb: str, path: object) -> None:
        if verb in {"rename", "remove"} and "data" in str(path):
            order.append("gone")

    parts.storage.before_verb = look
    done = retire(parts, own_group=own.name, own=progress, syncs=[lambda: order.append("synced")])
    assert done == [FIRST]
    assert order == ["synced", "gone"]


def test_progress_whose_sync_failed_in_a_process_that_is_gone_is_written_again(parts: LogParts) -> None:
    """A second sync could succeed over lost data, and messages that the group had finished would be missing."""
    (group,) = with_log(parts, "one")
    finish(parts, group, range(5))
    reader = progress_reader(parts.storage, parts.directory, parts.queue_id, group)
    directory = parts.directory.group(group.name)
    positions = PositionFileWriter(parts.storage, directory, parts.clock, reader, file_bytes=16_384)
    positions.append([Change(ENTRY_DONE, 5, 5, (1, 5000))])
    with refusing(parts.storage, "sync", ".position"), pytest.raises(CommitUnknownError):
        positions.sync()
    positions.abandon()
    assert retire(parts) == [FIRST]
    left = parts.storage.crash_dropping_unsynced()
    after = progress_reader(left, parts.directory, parts.queue_id, group)
    assert after.refresh().unfinished_in(0, 10) == 0


def test_progress_that_its_writer_has_synced_is_not_written_again(parts: LogParts) -> None:
    """A clean close proves it, and so does what was written again once."""
    one, two = with_log(parts, "one", "two")
    finish(parts, one, range(20))
    finish(parts, two, range(10))
    reader = progress_reader(parts.storage, parts.directory, parts.queue_id, two)
    directory = parts.directory.group(two.name)
    positions = PositionFileWriter(parts.storage, directory, parts.clock, reader, file_bytes=16_384)
    positions.append([Change(ENTRY_DONE, 10, 1, (1, 5000))])
    positions.abandon()  # killed
    files = {name: parts.storage.list(parts.directory.group(name)) for name in ("one", "two")}
    assert retire(parts) == [FIRST]
    assert parts.storage.list(parts.directory.group("one")) == files["one"]
    assert parts.storage.list(parts.directory.group("two")) != files["two"]
    files["two"] = parts.storage.list(parts.directory.group("two"))
    for each in (one, two):
        reader = progress_reader(parts.storage, parts.directory, parts.queue_id, each)
        reader.refresh()
        assert reader.is_durable
        make_durable(parts.storage, parts.directory, parts.clock, each, reader)
        assert parts.storage.list(parts.directory.group(each.name)) == files[each.name]


def test_progress_of_a_group_with_an_owner_is_synced(parts: LogParts) -> None:
    """The owner writes it, and nothing else does."""
    (group,) = with_log(parts, "one")
    reader = progress_reader(parts.storage, parts.directory, parts.queue_id, group)
    directory = parts.directory.group(group.name)
    lock = locks.try_acquire(parts.storage, parts.directory.group_lock(group.name))
    assert lock is not None
    positions = PositionFileWriter(parts.storage, directory, parts.clock, reader, file_bytes=16_384)
    positions.append([Change(ENTRY_DONE, 0, 10, (1, 5000))])
    assert retire(parts) == [FIRST]
    positions.abandon()
    lock.release()
    left = parts.storage.crash_dropping_unsynced()
    after = progress_reader(left, parts.directory, parts.queue_id, group)
    assert after.refresh().unfinished_in(0, 10) == 0


def test_own_progress_in_memory_decides_for_the_own_group(parts: LogParts) -> None:
    """What is not noted on the disk yet is synced first."""
    (own,) = with_log(parts, "own")
    progress = GroupProgress()
    assert retire(parts, own_group=own.name, own=progress, syncs=[lambda: None]) == []


# -- Retention -------------------------------------------------------------------------------------------------------


def test_a_finished_file_is_kept_while_it_is_inside_every_bound(parts: LogParts) -> None:
    """What is not finished stays, however far outside it is."""
    (group,) = with_log(parts, "one")
    finish(parts, group, range(1, 20))
    assert retire(parts, Retention(Bounds(message_count=20))) == []
    assert retire(parts, Retention(Bounds(message_count=1))) == []  # the last file has none that is known
    assert retire(parts, Retention(Bounds(size_bytes=1))) == []
    finish(parts, group, range(1))
    assert retire(parts, Retention(Bounds(size_bytes=1))) == [FIRST]
    assert retire(parts, Retention()) == [SECOND]


def test_without_a_group_the_bound_of_the_one_that_has_not_begun_decides(parts: LogParts) -> None:
    """It is far behind as any other is; without such a bound nothing goes."""
    with_log(parts)
    assert retire(parts, Retention(unread=Bounds(message_count=10))) == [FIRST]
    assert retire(parts, Retention(Bounds(message_count=10), unread=Bounds(size_bytes=0))) == []
    assert retire(parts, Retention(unread=Bounds(size_bytes=0))) == [SECOND]


def test_once_there_is_a_group_that_bound_counts_no_more(parts: LogParts) -> None:
    """Its own has moved it on, or not."""
    with_log(parts, "one")
    assert retire(parts, Retention(unread=Bounds(size_bytes=0))) == []


def test_a_full_disk_takes_finished_files_that_are_kept_oldest_first(
    parts: LogParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as are needed; one that is not kept goes anyway."""
    free = 10**6
    monkeypatch.setattr(reclaim, "free_bytes", lambda path: free)
    (group,) = with_log(parts, "one")
    finish(parts, group, range(20))
    everything = Bounds(message_count=10**6)
    assert retire(parts, Retention(everything, free_bytes_min=free)) == []
    assert retire(parts, Retention(everything, free_bytes_min=free + 1)) == [FIRST]
    assert retire(parts, Retention(everything, free_bytes_min=free + 10**9)) == [SECOND]
    assert parts.storage.list(parts.directory.spare) == []  # a spare would keep the space


def test_a_full_disk_takes_spares_before_files_that_are_kept(parts: LogParts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the file that the writer is making."""
    (group,) = with_log(parts, "one")
    finish(parts, group, range(20))
    assert retire(parts, Retention(Bounds(message_count=10))) == [FIRST]
    (spare,) = parts.storage.list(parts.directory.spare)
    parts.storage.open(parts.directory.spare / "next.data", create=True).close()
    monkeypatch.setattr(
        reclaim, "free_bytes", lambda path: 0 if spare in parts.storage.list(parts.directory.spare) else 10**6
    )
    assert retire(parts, Retention(Bounds(message_count=10), free_bytes_min=10**6)) == []
    assert parts.storage.list(parts.directory.spare) == ["next.data"]


def test_a_spare_that_the_writer_takes_meanwhile_is_its_own(parts: LogParts) -> None:
    """Whichever of both is first: the next file is made all the same."""
    with_log(parts)
    files = parts.files()
    files.retire(FIRST)
    (spare,) = [parts.directory.spare / name for name in parts.storage.list(parts.directory.spare)]

    def take(verb: str, path: Path) -> None:
        if verb == "remove" and path == spare:
            parts.storage.before_verb = None
            next_data_file.prepare(parts.storage, parts.directory, parts.header(4, 30), 65_536, b"").close()

    parts.storage.before_verb = take
    files.remove_spares()
    assert parts.storage.list(parts.directory.spare) == ["next.data"]


def test_a_spare_that_is_removed_when_the_writer_takes_it_is_made_anew(parts: LogParts) -> None:
    """Beside a writer that looks for one."""
    with_log(parts)
    files = parts.files()
    files.retire(FIRST)

    def remove(verb: str, path: Path) -> None:
        if verb == "rename":
            parts.storage.before_verb = None
            files.remove_spares()

    parts.storage.before_verb = remove
    next_data_file.prepare(parts.storage, parts.directory, parts.header(4, 30), 65_536, b"").close()
    assert parts.storage.list(parts.directory.spare) == ["next.data"]


def test_a_full_disk_takes_what_is_outside_anyway(parts: LogParts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both files in one call: the first one for the bound, and the second one for the space that is still missing."""
    monkeypatch.setattr(reclaim, "free_bytes", lambda path: 0)
    (group,) = with_log(parts, "one")
    finish(parts, group, range(20))
    size = parts.files().size_of(FIRST)
    assert retire(parts, Retention(Bounds(message_count=10), free_bytes_min=size)) == [FIRST]
    assert retire(parts, Retention(Bounds(message_count=10), free_bytes_min=size)) == [SECOND]


def test_finished_files_go_while_all_of_them_take_too_much(parts: LogParts) -> None:
    """The oldest first, as many as are needed; a file that is taken may be used again."""
    (group,) = with_log(parts, "one")
    finish(parts, group, range(20))
    everything, files = Bounds(message_count=10**6), parts.files()
    assert retire(parts, Retention(everything, total_bytes_max=files.total_bytes)) == []
    assert retire(parts, Retention(everything, total_bytes_max=files.total_bytes - 1)) == [FIRST]
    assert len(parts.storage.list(parts.directory.spare)) == 1
    assert retire(parts, Retention(everything, total_bytes_max=0)) == [SECOND]


def test_free_space_that_cannot_be_told_is_enough(parts: LogParts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is removed for a disk that does not say how full it is."""

    def unknown(path: Path) -> None:
        return None

    monkeypatch.setattr(reclaim, "free_bytes", unknown)
    (group,) = with_log(parts, "one")
    finish(parts, group, range(20))
    assert retire(parts, Retention(Bounds(message_count=10**6), free_bytes_min=10**9)) == []


def test_one_call_retires_a_bounded_number_of_files(parts: LogParts, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest first; the next call retires more."""
    monkeypatch.setattr(reclaim, "_FILES_MAX", 1)
    (group,) = with_log(parts, "one")
    finish(parts, group, range(20))
    assert retire(parts) == [FIRST]
    assert retire(parts) == [SECOND]


def test_progress_whose_owner_has_begun_other_files_meanwhile_is_synced_there(parts: LogParts) -> None:
    """A checkpoint has all that the file before it had; a file that is gone and has none behind it is an error."""
    (group,) = with_log(parts, "one")
    lock = locks.try_acquire(parts.storage, parts.directory.group_lock(group.name))
    assert lock is not None
    owner = progress_reader(parts.storage, parts.directory, parts.queue_id, group)
    directory = parts.directory.group(group.name)
    positions = PositionFileWriter(parts.storage, directory, parts.clock, owner, file_bytes=16_384)
    positions.append([Change(ENTRY_DONE, 0, 5, (1, 5000))])
    reader = progress_reader(parts.storage, parts.directory, parts.queue_id, group)
    reader.refresh()
    for _ in range(900):
        positions.append([Change(ENTRY_DONE, 0, 5, (1, 5000))])
    positions.append([Change(ENTRY_DONE, 5, 5, (1, 5000))])
    progress = make_durable(parts.storage, parts.directory, parts.clock, group, reader)
    assert progress.floor == 10
    left = parts.storage.crash_dropping_unsynced()
    assert progress_reader(left, parts.directory, parts.queue_id, group).refresh().floor == 10
    for name in parts.storage.list(directory):
        if name[0] == "0":
            parts.storage.remove(directory / name)
    with pytest.raises(FileNotFoundError):
        reader.sync()


def test_who_handles_an_interruption_finds_the_list_of_groups_free(parts: LogParts) -> None:
    """The traceback is there meanwhile; a queue that is closed and opened again would wait for the lock, and fail."""
    (group,) = with_log(parts, "one")
    points = [each for each in promised(points_of(lambda: retire(parts))) if "retire" in each.where]
    assert len(points) > 20
    finish(parts, group, range(5))
    for point in points:
        error = interrupted(lambda: retire(parts), point)
        with guarded(10), groups_locked(parts.storage, parts.directory, parts.clock):
            assert isinstance(error, KeyboardInterrupt), point
