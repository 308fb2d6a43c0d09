"""Data files with little that lives become one, and nothing that is visible changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.persistence.compaction import merging
from holdfast.persistence.compaction.compactor import ALIVE, CHANGED
from holdfast.persistence.filesystem.layout import DataFileName, list_data_files, list_replaced_files
from holdfast.persistence.format.constants import ENTRY_DEAD, ENTRY_DONE
from holdfast.persistence.format.report import Damage
from holdfast.persistence.groups.group_files import write_group
from holdfast.persistence.groups.position_entry import Change
from holdfast.persistence.groups.retention import Bounds, Retention
from holdfast.persistence.log.log_reader import LEFT_OUT, LogReader, Record
from holdfast.persistence.log.sealed_file import retired_ranges
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


def test_a_group_that_is_made_during_the_copy_keeps_what_it_needs(
    log: LogParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy is void."""
    copy = merging.copy_live

    def with_another_group(*arguments: object) -> int:
        size = copy(*arguments)  # type: ignore[arg-type]
        write_group(log.storage, log.directory, "late", log.files(), 0, {})
        return size

    monkeypatch.setattr("holdfast.persistence.compaction.compactor.copy_live", with_another_group)
    names = log.files().names()
    assert compact(log).kept[CHANGED] == len(names) - 1
    assert log.files().names() == names
    assert log.directory.next_merged.name not in log.storage.list(log.directory.data)


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
