"""A merge that is cut off, refused or damaged loses no message: at each call of the storage, and at each byte."""

from __future__ import annotations

import errno
from itertools import islice
from pathlib import Path

import pytest

from holdfast.errors import HoldfastError
from holdfast.persistence.filesystem.layout import (
    DataFileName,
    list_replaced_files,
    open_directory,
    rebuild_identity,
)
from holdfast.persistence.format.constants import ENTRY_DONE, FRAMES_START
from holdfast.persistence.format.report import Damage
from holdfast.persistence.groups.group_files import progress_reader, require_group
from holdfast.persistence.groups.position_entry import Change
from holdfast.persistence.groups.position_file_writer import PositionFileWriter
from holdfast.persistence.groups.reclaim import retire_finished_files
from holdfast.persistence.log.log_reader import LogReader
from holdfast.persistence.verify import verify
from support.builders.log_parts import LogParts
from support.builders.merges import (
    LIVE,
    NO_RETENTION,
    between,
    bytes_of,
    compact,
    finish_all_but,
    read_all,
    restore,
    with_log,
)
from support.models.crash_choices import SameForAll
from support.storages.disk_operations import NameOperation, Remove
from support.storages.faults import FaultPlan
from support.storages.simulated_storage import SimulatedStorage

STATES_MAX = 24  # of each step; the explorer has more
LAST = range(950, 1000)


class RemovalsAlone(SameForAll):
    """A loss of power that takes every name but those that are gone."""

    def keep_name(self, operation: NameOperation) -> bool:
        return isinstance(operation, Remove)


def new_log() -> LogParts:
    """Return a log with six messages that live before the last file."""
    parts = LogParts()
    finish_all_but(parts, with_log(parts), [*LIVE, *LAST])
    return parts


def parts_of(parts: LogParts, storage: SimulatedStorage) -> LogParts:
    """Return the parts of a queue that a crash has left."""
    left = LogParts(storage)
    left.queue_id, left.directory = parts.queue_id, parts.directory
    return left


def check_whole(parts: LogParts, payloads: dict[int, bytes]) -> None:
    """Make sure that what the group needs is there, and that it needs the same as before."""
    group = require_group(parts.storage, parts.directory, "one")
    progress = progress_reader(parts.storage, parts.directory, parts.queue_id, group).refresh()
    needed = [offset for run in progress.unfinished_runs(0, 1000) for offset in run]
    assert needed == [*LIVE, *LAST]
    found = {each[0]: each[3] for each in read_all(parts)[0]}
    assert {offset: found.get(offset) for offset in needed} == {offset: payloads[offset] for offset in needed}
    assert verify(Path("/queue"), storage=parts.storage).ok


def test_a_loss_of_power_leaves_every_live_message_at_each_step() -> None:
    """In the old files or in the new one; the next merge ends what was begun."""
    parts = new_log()
    payloads = {each[0]: each[3] for each in read_all(parts)[0]}
    parts.storage.replay_from_here()
    compact(parts)
    merged = set()
    for step in parts.storage.replay():
        for crashed in islice(step.crash_states(), STATES_MAX):
            left = parts_of(parts, crashed)
            check_whole(left, payloads)
            merged.add(left.files().names()[0].is_merged)
            open_directory(crashed, Path("/queue"), create=True)
            left.recover()
            assert not crashed_has_leftover(left)
            compact(left)
            check_whole(left, payloads)
            assert left.files().names()[0].is_merged
            assert list_replaced_files(crashed, left.directory) == []
            check_whole(parts_of(left, crashed.crash_dropping_unsynced()), payloads)
    assert merged == {True, False}


def test_what_a_killed_merge_has_replaced_goes_only_once_the_new_name_is_durable() -> None:
    """Its process may have been killed before it had synced the name; the power fails while the next one cleans up."""
    parts = new_log()
    payloads = {each[0]: each[3] for each in read_all(parts)[0]}
    parts.storage.replay_from_here()
    compact(parts)
    judged = 0
    for step in parts.storage.replay():
        killed = step.crash_keeping_all()
        left = parts_of(parts, killed)
        if not list_replaced_files(killed, left.directory):
            continue
        killed.replay_from_here()
        left.files().finish_merges()
        assert list_replaced_files(killed, left.directory) == []
        for again in killed.replay():
            for crashed in (again.crash(RemovalsAlone(keep=True)), again.crash_dropping_unsynced()):
                check_whole(parts_of(left, crashed), payloads)
                judged += 1
    assert judged > STATES_MAX


def test_progress_is_durable_before_what_it_has_finished_goes() -> None:
    """Else a loss of power leaves a group that needs what was left out."""
    parts = LogParts()
    group = with_log(parts)
    reader = progress_reader(parts.storage, parts.directory, parts.queue_id, group)
    writer = PositionFileWriter(parts.storage, parts.directory.group("one"), parts.clock, reader, file_bytes=16_384)
    live = [*LIVE, *LAST]
    writer.append([Change(ENTRY_DONE, first, stop - first, (1, 5000)) for first, stop in between(live, 1000)])
    payloads = {each[0]: each[3] for each in read_all(parts)[0]}
    assert compact(parts).merged_count
    check_whole(parts_of(parts, parts.storage.crash_dropping_unsynced()), payloads)


def crashed_has_leftover(parts: LogParts) -> bool:
    """Whether a merged file that was not finished is there."""
    return parts.directory.next_merged.name in parts.storage.list(parts.directory.data)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_each_call_of_the_storage_that_fails_leaves_every_live_message(error: int) -> None:
    """Also behind a loss of power; and the next merge succeeds."""
    fired_count, failed = 1, 0
    while fired_count:
        failed += 1
        parts = new_log()
        payloads = {each[0]: each[3] for each in read_all(parts)[0]}
        parts.storage.faults = plan = FaultPlan(failed, error)
        try:
            compact(parts)
        except (HoldfastError, OSError):
            pass
        finally:
            parts.storage.faults = None
        check_whole(parts, payloads)
        check_whole(parts_of(parts, parts.storage.crash_dropping_unsynced()), payloads)
        compact(parts)
        check_whole(parts, payloads)
        check_whole(parts_of(parts, parts.storage.crash_dropping_unsynced()), payloads)
        fired_count = plan.fired_count
    assert failed > 20


def test_each_flipped_byte_of_a_merged_file_is_found_and_takes_its_own_messages_only() -> None:
    """Never another message in its place."""
    parts = new_log()
    payloads = {each[0]: each[3] for each in read_all(parts)[0]}
    compact(parts)
    name = parts.files().names()[0]
    content = bytes_of(parts, name)
    for at in [*range(0, 128, 3), *range(508, 512), *range(4608, len(content), 5)]:
        flipped = bytearray(content)
        flipped[at] ^= 0x40
        restore(parts, name, bytes(flipped))
        report = verify(Path("/queue"), storage=parts.storage)
        assert not report.ok, at
        found = {each[0]: each[3] for each in read_all(parts)[0] if each[0] < 900}
        assert found.items() <= payloads.items(), at
        assert len(found) >= len(LIVE) - 1, at
        lost = set(LIVE) - set(found)
        assert lost <= {offset for run in report.lost for offset in run}, at


def test_a_queue_says_that_it_has_merged_files() -> None:
    """Its document says that it has some; a document that is rebuilt says so, too."""
    parts = new_log()
    compact(parts)
    assert b'"merged"' in bytes_at(parts, parts.directory.identity)
    restore_text(parts, parts.directory.identity, b"damaged")
    rebuild_identity(parts.storage, parts.directory)
    assert b'"merged"' in bytes_at(parts, parts.directory.identity)


def bytes_at(parts: LogParts, path: Path) -> bytes:
    """Return the contents of a file."""
    with parts.storage.open(path, writable=False) as file:
        return bytes(file.read_at(file.size(), 0))


def restore_text(parts: LogParts, path: Path, content: bytes) -> None:
    """Replace the contents of a file."""
    with parts.storage.open(path, create=True) as file:
        file.truncate(0)
        file.write_at([content], 0)
        file.sync()


def killed_before_the_removal() -> tuple[LogParts, dict[int, bytes], DataFileName]:
    """Return a log whose merge was killed once the merged file had its name, with its payloads and that name."""
    parts = new_log()
    payloads = {each[0]: each[3] for each in read_all(parts)[0]}
    parts.storage.replay_from_here()
    compact(parts)
    steps = (parts_of(parts, step.crash_keeping_all()) for step in parts.storage.replay())
    left = next(each for each in steps if list_replaced_files(each.storage, each.directory))
    return left, payloads, left.files().names()[0]


@pytest.mark.parametrize("at", [508, FRAMES_START + 100, -10])
def test_a_damaged_merged_file_is_withdrawn_while_what_it_has_replaced_is_there(at: int) -> None:
    """That has all that lives: only the opening decides it, and the next merge makes the same name again."""
    left, payloads, name = killed_before_the_removal()
    content = bytearray(bytes_of(left, name))
    content[at] ^= 0x40
    content[4096 + 508] ^= 0x40
    restore(left, name, bytes(content))
    replaced = list_replaced_files(left.storage, left.directory)
    retire_finished_files(left.directory, left.files(), left.clock, NO_RETENTION)
    assert list_replaced_files(left.storage, left.directory) == replaced
    log = left.recover()
    assert not log.report.clean
    assert [(each.path.name, each.size_bytes) for each in log.report.damage] == [(f"{name}.damaged", len(content))]
    assert "withdrawn" in log.report.damage[0].reason
    check_whole(left, payloads)
    check_whole(parts_of(left, left.storage.crash_dropping_unsynced()), payloads)
    assert left.files().names()[: len(replaced)] == replaced
    assert left.recover().report.clean
    compact(left)
    check_whole(left, payloads)
    assert left.files().names()[0] == name
    assert f"{name}.damaged" in left.storage.list(left.directory.data)


def test_a_merged_file_that_is_cut_off_is_withdrawn() -> None:
    """Also if no name behind it tells how many messages it should have."""
    left, payloads, name = killed_before_the_removal()
    content = bytes_of(left, name)
    restore(left, name, content[: content.rindex(b"%04d" % LIVE[-1]) - 60])
    last = left.directory.data_file(left.files().names()[-1])
    left.storage.rename(last, last.with_name("away"))
    assert list(left.files().finish_merges()) == [name]
    left.storage.rename(last.with_name("away"), last)
    left.recover()
    check_whole(left, payloads)


def test_a_merged_file_that_cannot_be_read_is_withdrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bad sector fails the reads of a disk."""
    left, payloads, name = killed_before_the_removal()

    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "a bad sector")

    with monkeypatch.context() as patched:
        patched.setattr("holdfast.persistence.log.log_files.FileWalk", refused)
        assert "a bad sector" in left.recover().report.damage[0].reason
    assert left.files().names()[0] != name
    check_whole(left, payloads)


def test_a_position_in_a_withdrawn_file_is_none_in_the_file_that_counts_again() -> None:
    """Both have one sequence, and other layouts: a reader would take good frames for damage."""
    left, payloads, name = killed_before_the_removal()
    content = bytearray(bytes_of(left, name))
    content[FRAMES_START + 100] ^= 0x40
    restore(left, name, bytes(content))
    left.recover()
    for files in (left.files(), left.files()):
        assert not files.has_positions(name.sequence)
        source = files.named(name.sequence)
        assert source is not None
        assert not source.is_merged
        losses: list[Damage] = []
        reader = LogReader(files, losses.append)
        reader.seek(source.first_offset, (name.sequence, FRAMES_START + 7))
        assert reader.next_offset == source.first_offset
        reader.move_to(source.first_offset, name.sequence, FRAMES_START + 7)
        assert reader.read(1, (name.sequence + 1, FRAMES_START, source.first_offset + 1))
        reader.close()
        assert not losses
    check_whole(left, payloads)


def test_a_pass_of_retention_decides_nothing_about_a_whole_merge() -> None:
    """It would read all of the merged file, each time; where some are gone, it removes the others."""
    left, payloads, _ = killed_before_the_removal()
    left.files().remove_rests()
    replaced = list_replaced_files(left.storage, left.directory)
    assert len(replaced) > 1
    left.storage.remove(left.directory.data_file(replaced[0]))
    left.files().remove_rests()
    assert not list_replaced_files(left.storage, left.directory)
    check_whole(left, payloads)


def test_a_merged_file_is_retired_with_what_it_has_replaced() -> None:
    """Else that would count again."""
    left, _, name = killed_before_the_removal()
    files = left.files()
    files.retire(name)
    assert not list_replaced_files(left.storage, left.directory)
    assert left.files().names()[0].first_sequence > name.sequence


def test_two_files_of_one_sequence_beside_a_merged_one_keep_no_queue_from_opening() -> None:
    """An operator's copy has replaced nothing."""
    left, _, _ = killed_before_the_removal()
    left.files().finish_merges()
    last = left.files().names()[-1]
    copy = DataFileName(last.sequence, last.first_offset + 1000)
    restore(left, copy, b"")
    left.files().finish_merges()
    assert not list_replaced_files(left.storage, left.directory)
    assert str(copy) in left.storage.list(left.directory.data)


def test_a_disk_that_refuses_for_a_moment_withdraws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As too many open files do."""
    left, _, _ = killed_before_the_removal()

    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "too many files")

    monkeypatch.setattr("holdfast.persistence.log.log_files.FileWalk", refused)
    with pytest.raises(OSError, match="too many files"):
        left.files().finish_merges()


def test_a_damaged_merged_file_stays_once_any_of_what_it_has_replaced_is_gone() -> None:
    """At each loss of power while those are removed: either all of them are there, or the merged file counts."""
    left, payloads, name = killed_before_the_removal()
    left.storage.replay_from_here()
    replaced = list_replaced_files(left.storage, left.directory)
    left.files().finish_merges()
    seen = set()
    for step in left.storage.replay():
        for crashed in islice(step.crash_states(), STATES_MAX):
            cut = parts_of(left, crashed)
            if cut.files().names()[0] != name:  # it has its name anew
                continue
            rest = list_replaced_files(crashed, left.directory)
            content = bytearray(bytes_of(cut, name))
            content[FRAMES_START + 100] ^= 0x40
            restore(cut, name, bytes(content))
            cut.recover()
            seen.add((is_whole := rest == replaced, cut.files().names()[0] == name))
            if is_whole:
                check_whole(cut, payloads)
    assert seen == {(True, False), (False, True)}
