"""Opening empties the prepared log: what is undecided moves, and segments go unless something forbids it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.errors import CorruptionError
from holdfast.persistence.filesystem.layout import (
    QueueDirectory,
    list_batch_files,
    list_damaged_segments,
    list_segments,
)
from holdfast.persistence.filesystem.storage import OsStorage
from holdfast.persistence.format.constants import HEADER_COPY_POSITIONS, OUTCOME_ABORTED, OUTCOME_MOVED
from holdfast.persistence.prepared_log.emptying import Left, empty
from holdfast.persistence.prepared_log.entry import Entry, UnwrittenEnd
from holdfast.persistence.prepared_log.segment_reader import DamagedEntry, read_segment
from holdfast.persistence.segment.batch_file_reader import messages
from support.builders.segments import QUEUE_ID, ROOM, Segment, nonce


class FullDisk(OsStorage):
    """A disk that has no space for a file."""

    def open(self, path: Path, *, create: bool = False, writable: bool = True):  # type: ignore[no-untyped-def]
        if create:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return super().open(path, create=create, writable=writable)


def emptied(
    directory: QueueDirectory,
    storage: OsStorage | None = None,
    *,
    void: tuple[int, ...] = (),
    votes: tuple[int, ...] = (),
) -> Left:
    """Empty it.

    ``void``: numbers of transactions that were decided without an "ended" frame; ``votes``: of those that voted.
    """
    decided = {nonce(each): OUTCOME_ABORTED for each in void}
    return empty(storage or OsStorage(), directory, QUEUE_ID, decided.get, lambda: set(map(nonce, votes)))


def files(directory: QueueDirectory) -> tuple[list[int], list[str]]:
    """Return the sequences of the segments, and the ids of the batch files."""
    return list_segments(OsStorage(), directory), sorted(list_batch_files(OsStorage(), directory))


def test_nothing_is_emptied_where_nothing_is(directory: QueueDirectory) -> None:
    """A queue that never prepared a small transaction."""
    assert emptied(directory) == Left()


def test_what_is_undecided_moves_and_all_segments_go(directory: QueueDirectory) -> None:
    """The messages are those of before; what ended or was decided does not come again."""
    first, second = Segment(directory.prepared), Segment(directory.prepared, 2)
    for number in (1, 2, 3):
        first.put(number)
    second.end(1)
    second.put(4)
    first.write()
    second.write()
    assert emptied(directory, void=(2,)) == Left(last=2)
    assert files(directory) == ([], ["t3", "t4"])
    content = [payload for payload, _ in messages(OsStorage(), directory.batch_file("t3"), QUEUE_ID)]
    assert content == [b"0 of 3", b"1 of 3"]


def test_a_batch_file_of_the_same_nonce_counts(directory: QueueDirectory) -> None:
    """It was moved before a crash: it is not written again, and one of another nonce, or a damaged one, is."""
    segment = Segment(directory.prepared)
    segment.put(1)
    segment.write()
    emptied(directory)
    moved = directory.batch_file("t1")
    before = moved.stat().st_ino
    segment.write()
    assert emptied(directory).entries == []
    assert moved.stat().st_ino == before
    moved.write_bytes(b"damaged")
    segment.write()
    assert emptied(directory).entries == []
    assert len(list(messages(OsStorage(), moved, QUEUE_ID))) == 2


def test_on_a_full_disk_the_reserve_stays_for_commits(directory: QueueDirectory) -> None:
    """What is reserved behind the last frame is not cut: moved entries would take more."""
    segment = Segment(directory.prepared)
    segment.put(1)
    segment.put(2)
    segment.write()
    before = segment.path.stat().st_size
    assert [each.id for each in emptied(directory, FullDisk()).entries] == ["t1", "t2"]
    assert segment.path.stat().st_size == before
    assert files(directory) == ([1], [])


def test_a_segment_that_never_had_its_name_goes(directory: QueueDirectory) -> None:
    """A crash in the middle of beginning one leaves its reserve; nothing else with such a name is touched."""
    half, other = (directory.prepared / name for name in ("0000000002.log.new", "notes.new"))
    for path in (half, other):
        path.write_bytes(bytes(10))
    assert emptied(directory) == Left()
    assert list(directory.prepared.iterdir()) == [other]


def test_without_any_room_segments_stay_and_are_made_durable(directory: QueueDirectory) -> None:
    """Those from the first undecided entry on; what is void in them is known."""
    found: list[Entry] = []
    for sequence, numbers in ((1, (1,)), (2, (2, 3)), (3, (4,))):
        segment = Segment(directory.prepared, sequence)
        for number in numbers:
            segment.put(number)
        found += segment.read().entries
    left = emptied(directory, FullDisk(), void=(1, 3, 4))
    assert [each.id for each in left.entries if isinstance(each, Entry)] == ["t2"]
    assert (list(left.segments), left.last, left.lost) == ([2, 3], 3, [])
    times = {each.nonce: each.timestamp_ns for each in found}
    assert left.void == {
        nonce(3): UnwrittenEnd(2, OUTCOME_ABORTED, times[nonce(3)]),
        nonce(4): UnwrittenEnd(3, OUTCOME_ABORTED, times[nonce(4)]),
    }
    assert files(directory) == ([2, 3], [])
    for sequence, end in left.segments.items():
        assert read_segment(OsStorage(), directory.segment(sequence), QUEUE_ID).end == end


def test_what_is_synced_is_not_written_again(directory: QueueDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its mark says that it was."""
    segment = Segment(directory.prepared)
    segment.put(1)
    segment.sync()
    segment.write()
    written: list[int] = []
    module = "holdfast.persistence.prepared_log.emptying.write_whole"
    monkeypatch.setattr(module, lambda file, buffers, position: written.append(position))
    left = emptied(directory, FullDisk())
    assert (len(left.entries), written) == (1, [])


def test_a_damaged_entry_stays_with_its_segment(directory: QueueDirectory) -> None:
    """It can be aborted; its neighbours have moved."""
    segment = Segment(directory.prepared)
    start, _ = segment.put(1)
    segment.put(2)
    segment.sync()
    segment.write(start + 40)
    left = emptied(directory)
    assert [(each.id, isinstance(each, DamagedEntry)) for each in left.entries] == [("t1", True)]
    assert [(key, end.outcome) for key, end in left.void.items()] == [(nonce(2), OUTCOME_MOVED)]
    assert files(directory) == ([1], ["t2"])


def test_a_whole_entry_that_cannot_be_read_any_more_is_no_batch_file(
    directory: QueueDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing that was begun stays."""

    def damaged(*_: object) -> Iterator[tuple[bytes, bytes]]:
        yield b"0 of 1", b""
        raise CorruptionError("damaged", path="", position=0)

    segment = Segment(directory.prepared)
    segment.put(1)
    segment.write()
    monkeypatch.setattr("holdfast.persistence.prepared_log.emptying.entry_messages", damaged)
    with pytest.raises(CorruptionError):
        emptied(directory)
    assert [each.name for each in directory.prepared.iterdir()] == [segment.path.name]


Damaging = Callable[[Segment], None]


def without_header(segment: Segment) -> None:
    """Damage both copies of the header."""
    segment.write(*(position + 30 for position in HEADER_COPY_POSITIONS))


def without_an_end(segment: Segment) -> None:
    """Damage a frame that ends an entry of an earlier segment."""
    start, _ = segment.end(9)
    segment.put(8)
    segment.sync()
    segment.write(start + 40)


@pytest.mark.parametrize("damage", [without_header, without_an_end])
def test_entries_before_lost_bytes_are_in_doubt(directory: QueueDirectory, damage: Damaging) -> None:
    """What ended them may be lost; the segments stay."""
    segment = Segment(directory.prepared)
    start, _ = segment.put(1)
    segment.put(2)
    segment.sync()
    segment.write(start + 40)
    damage(Segment(directory.prepared, 2))
    third = Segment(directory.prepared, 3)
    third.put(3)
    third.write()
    left = emptied(directory)
    assert {each.id for each in left.entries} >= {"t1", "t2"}
    assert all(isinstance(each, DamagedEntry) for each in left.entries)
    assert len(left.lost) == 1
    assert files(directory) == ([1, 2, 3], ["t3"])


@pytest.mark.parametrize("votes", [(4,), (), (5,)])
def test_a_damaged_segment_stays_as_long_as_a_vote_misses_its_puts(
    directory: QueueDirectory, votes: tuple[int, ...]
) -> None:
    """They may be in it. The segment before it has nothing that could matter, and what was decided misses nothing."""
    first = Segment(directory.prepared)
    first.put(1)
    first.end(1)
    first.write()
    without_header(Segment(directory.prepared, 2))
    left = emptied(directory, void=(5,), votes=votes)
    stays = votes == (4,)
    assert (left.entries, list(left.segments)) == ([], [2] if stays else [])
    assert (bool(left.lost), left.without_puts) == (stays, {nonce(4)} if stays else set())
    assert files(directory) == ([2] if stays else [], [])
    assert list_damaged_segments(OsStorage(), directory) == ([] if stays else [2])
    assert [each.path.name for each in left.reports] == [f"0000000002.log{'' if stays else '.damaged'}"]


def test_a_damaged_segment_is_quarantined_and_its_name_not_used_again(directory: QueueDirectory) -> None:
    """It may have what was lost, so no opening removes it, and no later one that is damaged takes its place."""
    segment = Segment(directory.prepared, 3)
    start, _ = segment.put(1)
    segment.end(1)
    segment.sync()
    segment.write(*range(start, len(segment.content)))
    content = segment.path.read_bytes()
    left = emptied(directory)
    (report,) = left.reports
    quarantined = directory.damaged_segment(3)
    assert (left.segments, left.last, report.path, report.position) == ({}, 3, quarantined, start)
    assert "may be lost" in report.reason
    assert quarantined.read_bytes() == content
    assert emptied(directory) == Left(last=3)
    assert quarantined.read_bytes() == content


def test_a_segment_of_another_queue_is_quarantined(directory: QueueDirectory) -> None:
    """A copy that went wrong: it is reported as what it is, and stays whole."""
    segment = Segment(directory.prepared, queue_id=bytes(16))
    segment.put(1)
    segment.write()
    content = segment.path.read_bytes()
    (report,) = emptied(directory).reports
    assert "belongs to another queue" in report.reason
    assert report.path.read_bytes() == content


def test_reserved_room_is_no_frame() -> None:
    """The tests above cut it."""
    assert not any(ROOM)
