"""Data files with little that lives become one, and nothing that is visible changes."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.errors import CorruptionError
from holdfast.persistence.compaction import merging
from holdfast.persistence.compaction.compactor import ACTIVE, ALIVE, CHANGED, DAMAGED, GONE, HELD, NO_GROUP
from holdfast.persistence.filesystem import locks
from holdfast.persistence.filesystem.layout import (
    DataFileName,
    QueueDirectory,
    list_data_files,
    list_replaced_files,
    read_data_file_header,
)
from holdfast.persistence.filesystem.storage import ReadableFile
from holdfast.persistence.format.constants import ENTRY_DEAD, ENTRY_DELIVERED, ENTRY_DONE
from holdfast.persistence.format.file_header import DataFileHeader, block_buffers
from holdfast.persistence.format.report import Damage
from holdfast.persistence.format.seal import Seal
from holdfast.persistence.groups.group_files import (
    find_group,
    progress_reader,
    remove_group,
    require_group,
    write_group,
)
from holdfast.persistence.groups.position_entry import Change
from holdfast.persistence.groups.position_file_writer import POSITION_FILE_BYTES_MIN, PositionFileWriter
from holdfast.persistence.groups.retention import Bounds, Retention
from holdfast.persistence.log.log_files import LogFiles
from holdfast.persistence.log.log_reader import LEFT_OUT, LogReader, Record
from holdfast.persistence.log.sealed_file import retired_ranges
from holdfast.persistence.segment.frame_trailer import read_seal
from holdfast.persistence.verify import verify
from support.builders.log_parts import LogParts
from support.builders.merges import (
    FILE_BYTES,
    LIVE,
    bytes_of,
    compact,
    finish_all_but,
    note,
    read_all,
    restore,
    with_log,
)
from support.storages.refusals import refusing


@pytest.fixture
def log(parts: LogParts) -> LogParts:
    """Return a log with six messages that live before the last file."""
    finish_all_but(parts, with_log(parts), [*LIVE, *range(950, 1000)])
    return parts


def test_a_merge_keeps_every_live_message_with_its_offset_time_headers_and_payload(log: LogParts) -> None:
    """What a reader gets of them is the same as before."""
    before = {each[0]: each[:4] for each in read_all(log)[0]}
    count = len(log.files().names())
    done = compact(log)
    assert (done.file_count, done.merged_count) == (count - 1, 1)
    assert done.written_bytes * 3 <= done.freed_bytes
    merged, last = log.files().names()
    assert merged.is_merged
    assert (merged.first_sequence, merged.sequence, merged.first_offset) == (1, count - 1, 0)
    records, losses = read_all(log)
    assert [each[:4] for each in records if each[0] < last.first_offset] == [before[offset] for offset in LIVE]
    assert {damage.reason for damage in losses} == {LEFT_OUT}
    assert sorted(offset for damage in losses for offset in damage.offsets) == [
        offset for offset in range(last.first_offset) if offset not in LIVE
    ]


def test_verify_takes_what_was_left_out_for_no_damage(log: LogParts) -> None:
    """Neither for lost."""
    compact(log)
    report = verify(Path("/queue"), storage=log.storage)
    assert report.ok, report
    assert report.lost == ()


@pytest.mark.parametrize("start", [0, 2, 3, 4, 250, 251, 252, 253, 600, 601, 777, 778, 800])
def test_a_read_begins_at_any_offset_of_a_merged_file(log: LogParts, start: int) -> None:
    """Also at one that was left out."""
    compact(log)
    last = log.files().names()[-1]
    records, _ = read_all(log, start)
    assert [each[0] for each in records if each[0] < last.first_offset] == [each for each in LIVE if each >= start]


def test_a_later_group_takes_no_left_out_message_for_lost(log: LogParts) -> None:
    """Its gaps are those of the log."""
    compact(log)
    files = log.files()
    gone = {offset for gap in retired_ranges(files) for offset in gap}
    assert gone == {offset for offset in range(files.names()[-1].first_offset) if offset not in LIVE}


def test_what_a_merge_would_do_is_told_without_doing_it(log: LogParts) -> None:
    """With about the bytes that it would write."""
    names = log.files().names()
    told = compact(log, dry_run=True)
    assert log.files().names() == names
    done = compact(log)
    assert (told.file_count, told.merged_count) == (done.file_count, done.merged_count)
    assert told.freed_bytes == pytest.approx(done.freed_bytes, rel=0.1)


def test_merged_files_are_merged_again(parts: LogParts) -> None:
    """The name then covers theirs, and is of a later generation."""
    group = with_log(parts)
    finish_all_but(parts, group, [*range(0, 950, 9), *range(950, 1000)])
    assert compact(parts).merged_count
    assert any(name.generation == 1 for name in parts.files().names())
    note(parts, group, [Change(ENTRY_DONE, 0, 900, (1, 5000))])
    before = parts.files().names()
    compact(parts)
    merged = [name for name in parts.files().names() if name.is_merged]
    assert max(name.generation for name in merged) == 2
    assert len(parts.files().names()) <= len(before)
    assert verify(Path("/queue"), storage=parts.storage).ok


def test_files_that_live_by_more_than_a_quarter_stay(parts: LogParts) -> None:
    """To copy them would cost too much."""
    finish_all_but(parts, with_log(parts), range(0, 1000, 2))
    names = parts.files().names()
    assert compact(parts).kept[ALIVE] == len(names) - 1
    assert parts.files().names() == names


def test_a_dead_letter_lives(log: LogParts) -> None:
    """It is not finished."""
    group = write_group(log.storage, log.directory, "two", log.files(), 0, {})
    finish_all_but(log, group, [100])
    note(log, group, [Change(ENTRY_DEAD, 100, 1, (0, 0), 1)])
    compact(log)
    assert 100 in [each[0] for each in read_all(log)[0]]


def test_what_is_retained_is_not_merged(log: LogParts) -> None:
    """It is wanted for replay."""
    names = log.files().names()
    assert compact(log, retention=Retention(kept=Bounds(size_bytes=10**9))).merged_count == 0
    assert log.files().names() == names


def test_without_a_group_nothing_is_merged(parts: LogParts) -> None:
    """The first one may still want everything."""
    writer = parts.writer(file_bytes=FILE_BYTES)
    for _ in range(600):
        writer.append(bytes(200))
    writer.close()
    names = parts.files().names()
    assert compact(parts).merged_count == 0
    assert parts.files().names() == names


def another_group(log: LogParts) -> None:
    """Make a group that needs everything."""
    write_group(log.storage, log.directory, "late", log.files(), 0, {})


def no_group(log: LogParts) -> None:
    """Take the only group away."""
    group = find_group(log.storage, log.directory, "one")
    assert group is not None
    remove_group(log.storage, log.directory, group)


def no_first_file(log: LogParts) -> None:
    """Retire a file."""
    files = log.files()
    files.retire(files.names()[0])


@pytest.mark.parametrize(
    ("meanwhile", "reason"), [(another_group, CHANGED), (no_group, NO_GROUP), (no_first_file, GONE)]
)
def test_what_changes_during_the_copy_makes_it_void(
    log: LogParts, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[LogParts], None], reason: str
) -> None:
    """A group that is made keeps what it needs."""
    copy = merging.copy_live

    def with_change(files: LogFiles, directory: QueueDirectory, run: merging.MergeRun) -> int:
        size = copy(files, directory, run)
        meanwhile(log)
        return size

    monkeypatch.setattr("holdfast.persistence.compaction.compactor.copy_live", with_change)
    names = log.files().names()
    assert compact(log).kept[reason] == len(names) - 1
    assert set(log.files().names()) <= set(names)
    assert log.directory.next_merged.name not in log.storage.list(log.directory.data)


def test_files_beside_a_lost_one_are_merged_without_it(log: LogParts) -> None:
    """No merged file covers what a group still misses, and none is copied in vain."""
    files = log.files()
    log.storage.remove(files.path([each for each in files.names() if each.first_offset <= 600][-1]))
    before = verify(Path("/queue"), storage=log.storage).lost
    told = compact(log, dry_run=True)
    done = compact(log)
    assert (told.merged_count, done.merged_count) == (2, 2)
    assert done.kept == {ACTIVE: 1}
    assert verify(Path("/queue"), storage=log.storage).lost == before != ()


def test_a_vote_that_comes_during_the_copy_makes_it_void(log: LogParts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its plan may name places in the files."""
    monkeypatch.setattr(
        "holdfast.persistence.compaction.compactor._Needs.holds",
        lambda self, first, end: log.directory.next_merged.name in log.storage.list(log.directory.data),
    )
    names = log.files().names()
    assert compact(log).kept[HELD] == len(names) - 1
    assert log.files().names() == names


@pytest.mark.parametrize("where", ["read_data_file_header", "copy_live"])
def test_a_file_that_is_retired_meanwhile_is_not_merged(
    log: LogParts, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """All groups have finished it just now."""

    def gone(*_: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(f"holdfast.persistence.compaction.compactor.{where}", gone)
    names = log.files().names()
    assert compact(log).kept[GONE] == len(names) - 1
    assert log.files().names() == names


def test_a_file_that_is_retired_during_the_copy_is_no_damage(log: LogParts, monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer has finished meanwhile what lived in it."""
    copy = merging.copy_live

    def behind_a_consumer(files: LogFiles, directory: QueueDirectory, run: merging.MergeRun) -> int:
        retired = log.files()
        retired.retire(retired.names()[1])
        return copy(files, directory, run)

    monkeypatch.setattr("holdfast.persistence.compaction.compactor.copy_live", behind_a_consumer)
    names = log.files().names()
    assert any(names[1].first_offset <= offset < names[2].first_offset for offset in LIVE)
    assert compact(log).kept == {GONE: len(names) - 1, ACTIVE: 1}
    assert log.directory.next_merged.name not in log.storage.list(log.directory.data)


def test_a_message_that_is_not_there_stops_the_merge(log: LogParts) -> None:
    """Whatever the reason is that it cannot be read."""
    files = log.files()
    run = merging.MergeRun(
        tuple(files.names()[:2]), files.names()[2].first_offset, (range(3, 4), range(999, 1000)), 10**6
    )
    with pytest.raises(CorruptionError, match="1 of 2 messages"):
        merging.copy_live(files, log.directory, run)


def test_a_file_with_a_damaged_header_stays(log: LogParts) -> None:
    """What lives in it cannot be read."""
    name = log.files().names()[1]
    restore(log, name, bytes(4608) + bytes_of(log, name)[4608:])
    assert compact(log).kept[DAMAGED] == 1
    assert name in log.files().names()


def test_few_messages_that_have_most_of_the_bytes_are_not_copied(parts: LogParts) -> None:
    """That is seen while they are copied."""
    writer = parts.writer(file_bytes=FILE_BYTES)
    for number in range(1000):
        writer.append(bytes(9000 if number % 50 == 0 else 20))
    writer.close()
    group = write_group(parts.storage, parts.directory, "one", parts.files(), 0, {})
    finish_all_but(parts, group, range(0, 1000, 50))
    names = parts.files().names()
    done = compact(parts)
    assert done.merged_count == 0
    assert done.kept[ALIVE] == len(names) - 1
    assert parts.files().names() == names
    assert parts.directory.next_merged.name not in parts.storage.list(parts.directory.data)


def test_a_merged_file_whose_header_is_damaged_has_no_gaps_for_a_later_group(log: LogParts) -> None:
    """All of it is lost, and told."""
    compact(log)
    name = log.files().names()[0]
    restore(log, name, bytes(4608) + bytes_of(log, name)[4608:])
    assert retired_ranges(log.files()) == []


def test_verify_counts_the_messages_of_a_merged_file(log: LogParts) -> None:
    """The header says how many there are."""
    compact(log)
    name = log.files().names()[0]
    header = replace(read_data_file_header(log.storage, log.directory.data_file(name)), merged_count=7)
    restore(log, name, block_buffers(header.encode()) + bytes_of(log, name)[4608:])
    (damage,) = verify(Path("/queue"), storage=log.storage).damage
    assert damage.reason == "6 messages instead of 7"


@pytest.mark.parametrize("position", [0, 100, 333])
def test_a_reader_of_a_replaced_file_continues_in_the_merged_one(log: LogParts, position: int) -> None:
    """Nothing comes twice, and nothing that lives is passed over."""
    losses: list[Damage] = []
    files = log.files()
    reader = LogReader(files, losses.append)
    last = files.names()[-1]
    end = (last.sequence, 2**31, last.first_offset)
    seen: list[int] = []
    while len(seen) < position:
        seen += [each[0] for each in reader.read(1, end)]
    compact(log)
    while records := reader.read(64, end):
        seen += [each[0] for each in records]
    reader.close()
    assert seen == sorted(set(seen))
    assert set(LIVE) <= set(seen)
    assert not {offset for damage in losses for offset in damage.offsets} & set(LIVE)


def test_a_reader_that_has_opened_a_replaced_file_reads_it_in_the_merged_one(log: LogParts) -> None:
    """Where the old one ended is not known any more."""
    reader = LogReader(log.files(), [].append)  # type: ignore[arg-type]
    reader.seek(500)
    compact(log)
    found: list[int] = []
    while records := reader.read(64, (99, 0, 800)):
        found += [each[0] for each in records]
    assert found == [600, 777]
    reader.close()


@pytest.mark.parametrize("known", ["before", "behind"])
def test_a_reader_with_a_file_in_hand_asks_for_its_end_in_the_merged_one(log: LogParts, known: str) -> None:
    """Whether its list of files is of before the merge or not."""
    files = log.files()
    reader = LogReader(files, [].append)  # type: ignore[arg-type]
    reader.begin_at(files.names()[2])
    first = files.names()[2].first_offset
    compact(log)
    if known == "behind":
        files.refresh()
    found: list[int] = []
    while records := reader.read(64, (99, 0, 800)):
        found += [each[0] for each in records]
    assert found == [each for each in LIVE if each >= first]
    reader.close()


def test_a_reader_that_rests_in_a_replaced_file_continues_in_the_merged_one(log: LogParts) -> None:
    """Its file is closed, and gone."""
    files = log.files()
    losses: list[Damage] = []
    reader = LogReader(files, losses.append)
    last = files.names()[-1]
    end = (last.sequence, 2**31, last.first_offset)
    reader.seek(500)
    assert reader.read(1, end)
    place = reader.next_offset
    reader.rest()
    reader.rest()
    compact(log)
    records: list[Record] = []
    while found := reader.read(64, end):
        records += found
    assert [each[0] for each in records if each[0] > 500] == [each for each in LIVE if each >= place]
    assert not {offset for damage in losses for offset in damage.offsets} & set(LIVE)


def test_a_place_in_a_replaced_file_leads_to_the_message_in_the_merged_one(log: LogParts) -> None:
    """Positions in the old file mean nothing in the new one, even of the same number."""
    places = {each[0]: each for each in read_all(log)[0]}
    compact(log)
    files = log.files()
    merged = files.names()[0]
    losses: list[Damage] = []
    reader = LogReader(files, losses.append)
    for offset in (777, 3, 600, 251):
        for sequence in (places[offset][5], merged.sequence):
            reader.move_to(offset, sequence, places[offset][4])
            found = reader.read(1, (99, 0, 1000))
            assert found[0][:4] == places[offset][:4]
    reader.close()


def test_the_widest_file_counts_and_the_replaced_ones_go_later(log: LogParts) -> None:
    """As after a crash between the name and the removal."""
    names = log.files().names()
    contents = {name: bytes_of(log, name) for name in names}
    compact(log)
    for name in names[:-1]:
        restore(log, name, contents[name])
    assert log.files().names()[0].is_merged
    assert list_replaced_files(log.storage, log.directory) == names[:-1]
    compact(log)
    assert list_replaced_files(log.storage, log.directory) == names[:-1]
    log.files().finish_merges()
    assert list_replaced_files(log.storage, log.directory) == []
    assert [each[0] for each in read_all(log)[0] if each[0] < 800] == list(LIVE)


def test_of_two_merged_files_the_wider_one_counts_then_the_later_one(parts: LogParts) -> None:
    """The name alone decides."""
    narrow, wide, later = DataFileName(3, 10, 1, 5), DataFileName(4, 0, 3, 1), DataFileName(4, 0, 3, 2)
    for name in (narrow, wide, later, DataFileName(5, 50)):
        restore(parts, name, b"")
    assert list_data_files(parts.storage, parts.directory) == [later, DataFileName(5, 50)]
    assert list_replaced_files(parts.storage, parts.directory) == [wide, narrow]


def test_a_damaged_live_message_stops_the_merge_of_its_files(log: LogParts) -> None:
    """They stay, and are reported as before."""
    name = log.files().containing(250)
    assert name is not None
    path = log.directory.data_file(name)
    content = bytearray(bytes_of(log, name))
    at = content.index(b"0250" + bytes(10))
    content[at] ^= 1
    restore(log, name, bytes(content))
    names = log.files().names()
    assert compact(log).merged_count == 0
    assert log.files().names() == names
    assert path.name in log.storage.list(log.directory.data)


def test_a_file_is_opened_once_however_many_of_its_messages_are_copied(
    parts: LogParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its seal is read once, too."""
    finish_all_but(parts, with_log(parts), [*range(3, 120, 9), 300, 310, *range(950, 1000)])
    opened: list[DataFileName] = []
    seals: list[int] = []
    open_file = LogReader._open

    def noted(reader: LogReader, name: DataFileName) -> bool:
        opened.append(name)
        return open_file(reader, name)

    def counted(file: ReadableFile, header: DataFileHeader) -> Seal | None:
        seals.append(header.sequence)
        return read_seal(file, header)

    monkeypatch.setattr(LogReader, "_open", noted)
    monkeypatch.setattr("holdfast.persistence.log.log_reader.read_seal", counted)
    assert compact(parts).merged_count == 1
    assert opened
    assert len(opened) == len({*opened})
    assert len(seals) == len({*seals})


@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "killed"])
def test_a_merge_keeps_how_often_each_message_was_delivered(log: LogParts, is_closed: bool) -> None:
    """Also if the group's owner was killed, so that its progress is written again."""
    group = require_group(log.storage, log.directory, "one")
    reader = progress_reader(log.storage, log.directory, log.queue_id, group)
    positions = PositionFileWriter(log.storage, log.directory.group("one"), log.clock, reader, file_bytes=16_384)
    counts = {3: 1, 251: 4, 777: 2}
    positions.append([Change(ENTRY_DELIVERED, offset, 1, (0, 0), times) for offset, times in counts.items()])
    if is_closed:
        positions.close()
    assert compact(log).merged_count
    progress = progress_reader(log.storage, log.directory, log.queue_id, group).refresh()
    assert progress.deliveries == counts


def test_a_merged_file_never_becomes_a_spare(log: LogParts) -> None:
    """Somebody may read it at the moment when it is retired."""
    compact(log)
    files = log.files()
    merged = files.names()[0]
    assert merged.is_merged
    files.retire(merged)
    assert log.storage.list(log.directory.spare) == []


def test_progress_is_synced_before_the_groups_are_locked(parts: LogParts) -> None:
    """And once more then: for what is noted in between, which is little."""
    group, directory = with_log(parts), parts.directory
    assert locks.try_acquire(parts.storage, directory.group_lock(group.name)) is not None
    reader = progress_reader(parts.storage, directory, parts.queue_id, group)
    positions = PositionFileWriter(
        parts.storage, directory.group(group.name), parts.clock, reader, file_bytes=POSITION_FILE_BYTES_MIN
    )
    positions.append([Change(ENTRY_DONE, 0, 900, (1, 5000))])
    positions.append([Change(ENTRY_DONE, 901, 49, (1, 5000))])
    were_locked: list[bool] = []

    def watch(verb: str, path: Path) -> None:
        if verb == "sync" and path.parent == directory.group(group.name):
            were_locked.append(parts.storage.is_locked(directory.groups_lock))

    parts.storage.before_verb = watch
    assert compact(parts).merged_count == 1
    assert were_locked == [False, True]


@pytest.mark.parametrize("error", [errno.ENOSPC, KeyboardInterrupt()], ids=["full", "interrupted"])
@pytest.mark.parametrize("verb", ["write_at", "sync"])
def test_a_copy_that_is_cut_short_leaves_its_space(log: LogParts, verb: str, error: int | BaseException) -> None:
    """A full disk would stay full by it, and nothing could be put."""
    with (
        refusing(log.storage, verb, "next.merged", error, count=1),
        pytest.raises((OSError, KeyboardInterrupt)),
    ):
        compact(log)
    assert log.directory.next_merged.name not in log.storage.list(log.directory.data)
    assert compact(log).merged_count


def test_a_copy_that_cannot_be_removed_is_written_over(log: LogParts) -> None:
    """The error that ended it is what is raised."""
    with (
        refusing(log.storage, "write_at", "next.merged", errno.ENOSPC, count=1),
        refusing(log.storage, "remove", "next.merged", errno.EIO, count=1),
        pytest.raises(OSError, match="space"),
    ):
        compact(log)
    assert compact(log).merged_count
