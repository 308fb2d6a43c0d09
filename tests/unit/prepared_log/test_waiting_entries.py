"""What segments say together, and what is left out of it: read beside an owner that appends and removes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.errors import UnsupportedVersionError
from holdfast.persistence.filesystem.layout import QueueDirectory
from holdfast.persistence.filesystem.storage import File, OsStorage
from holdfast.persistence.format.constants import FRAMES_START, HEADER_COPY_POSITIONS
from holdfast.persistence.prepared_log.segment_reader import DamagedEntry
from holdfast.persistence.prepared_log.waiting_entries import WaitingEntries, read_segments, undecided
from support.builders.segments import QUEUE_ID, Segment, nonce


class Meddling(OsStorage):
    """Does something each time before a segment is opened."""

    def __init__(self, before: Callable[[int], object]) -> None:
        super().__init__()
        self._before = before
        self.opened = 0

    def open(self, path: Path, *, writable: bool = True) -> File:
        self.opened += 1
        self._before(self.opened)
        return super().open(path, writable=writable)


def waiting(directory: QueueDirectory, storage: OsStorage | None = None) -> WaitingEntries:
    """Return what waits in it."""
    return undecided(read_segments(storage or OsStorage(), directory, QUEUE_ID))


def shown(found: WaitingEntries) -> list[tuple[str, bool]]:
    """Return the ids, and whether each is damaged."""
    return [(each.id, isinstance(each, DamagedEntry)) for each in found.entries]


def test_without_segments_nothing_waits(directory: QueueDirectory) -> None:
    """Whether there is a directory or not."""
    assert waiting(directory) == WaitingEntries()
    directory.prepared.rmdir()
    assert waiting(directory) == WaitingEntries()


def test_what_ended_in_any_segment_waits_no_more(directory: QueueDirectory) -> None:
    """Entries of all segments, oldest first."""
    first, second = Segment(directory.prepared), Segment(directory.prepared, 2)
    for number in (1, 2, 3):
        first.put(number)
    first.end(1)
    second.put(4)
    second.end(2)
    first.write()
    second.write()
    found = waiting(directory)
    assert shown(found) == [("t3", False), ("t4", False)]
    assert found.lost == []


def test_a_damaged_entry_waits_unless_it_ended(directory: QueueDirectory) -> None:
    """It can be aborted."""
    segment = Segment(directory.prepared)
    first, _ = segment.put(1)
    second, _ = segment.put(2)
    segment.end(2)
    segment.sync()
    segment.write(first + 100, second + 100)
    found = waiting(directory)
    assert shown(found) == [("t1", True)]
    (entry,) = found.entries
    assert (entry.nonce, entry.sequence, found.lost) == (nonce(1), 1, [])


def test_where_ends_may_be_lost_earlier_entries_count_as_damaged(directory: QueueDirectory) -> None:
    """Those of later segments do not: what ends them is behind the damage."""
    segments = [Segment(directory.prepared, sequence) for sequence in (1, 2, 3)]
    for number, segment in enumerate(segments, 1):
        segment.put(number)
    place, _ = segments[1].end(9)
    entry, _ = segments[1].put(4)
    for segment in segments:
        segment.sync()
    segments[0].write()
    segments[1].write(place + 40, entry + 150)
    segments[2].write()
    found = waiting(directory)
    assert shown(found) == [("t1", True), ("t2", True), ("t4", True), ("t3", False)]
    (lost,) = found.lost
    assert (lost.path, lost.position) == (segments[1].path, place)
    damaged = [each for each in found.entries if isinstance(each, DamagedEntry)]
    assert [(each.damage.position == place, each.whole is not None) for each in damaged] == [
        (True, True),
        (True, True),
        (False, False),
    ]


def test_a_segment_whose_header_is_lost_may_have_held_anything(directory: QueueDirectory) -> None:
    """Nor can one of another queue be read, or one in the place of another."""
    first, second = Segment(directory.prepared), Segment(directory.prepared, 2)
    first.put(1)
    first.write()
    second.write(*(position + 30 for position in HEADER_COPY_POSITIONS))
    found = waiting(directory)
    assert shown(found) == [("t1", True)]
    assert [each.path for each in found.lost] == [second.path]


def test_a_segment_of_another_version_is_refused(directory: QueueDirectory) -> None:
    """It is not damaged."""
    segment = Segment(directory.prepared)
    segment.content[8] = segment.content[HEADER_COPY_POSITIONS[1] + 8] = 9
    segment.write()
    with pytest.raises(UnsupportedVersionError):
        waiting(directory)


def test_a_segment_that_goes_meanwhile_says_nothing(directory: QueueDirectory) -> None:
    """Before the first look, and before the second one."""
    segment = Segment(directory.prepared)
    place, end = segment.put(1)
    segment.sync()
    for gone_at in (1, 2):
        segment.write(place + 40, end - 3)
        storage = Meddling(lambda number, at=gone_at: segment.path.unlink() if number == at else None)
        assert waiting(directory, storage) == WaitingEntries()
        assert storage.opened == gone_at


def test_damage_that_is_gone_the_second_time_was_a_write_in_progress(directory: QueueDirectory) -> None:
    """The owner appends between two reads of one look, and later frames know that the earlier ones are on the disk."""
    segment = Segment(directory.prepared)
    place, end = segment.put(1)
    segment.sync()
    later, _ = segment.put(2)

    def write(number: int) -> None:
        if number == 1:
            segment.write(place + 40, end - 3)
        else:
            segment.write(later + 40)

    write(1)
    storage = Meddling(write)
    found = waiting(directory, storage)
    assert (shown(found), found.lost, storage.opened) == ([("t1", False)], [], 2)


def test_other_damage_the_second_time_is_none_either(directory: QueueDirectory) -> None:
    """Only what does not verify twice is damaged."""
    segment = Segment(directory.prepared)
    first, _ = segment.put(1)
    second, _ = segment.put(2)
    segment.sync()
    segment.write()
    found = waiting(directory, Meddling(lambda number: segment.write((first if number == 1 else second) + 100)))
    assert (shown(found), found.lost) == ([("t1", False)], [])
    assert first == FRAMES_START
