"""``verify`` of a prepared log: damage with what to do about it, torn tails, and how many transactions wait."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import PersistentQueue, VerifyReport, verify
from holdfast.persistence.filesystem.layout import open_directory
from holdfast.persistence.filesystem.storage import File, OsStorage
from holdfast.persistence.format.constants import HEADER_COPY_POSITIONS
from support.builders.segments import Segment
from support.builders.transactions import prepare


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a closed queue with a message."""
    with PersistentQueue(tmp_path / "orders", mode="exclusive") as queue:
        queue.put(b"one")
    return queue.path


def segment_of(root: Path, sequence: int = 1) -> Segment:
    """Return a segment of a queue's prepared log."""
    directory, queue_id, _ = open_directory(OsStorage(), root, create=False)
    return Segment(directory.prepared, sequence, queue_id)


def reasons(report: VerifyReport) -> list[str]:
    """Return why bytes are damaged; no offset is lost with a prepared transaction."""
    assert report.lost == ()
    return [each.reason for each in report.damage]


def test_entries_that_wait_are_counted(root: Path) -> None:
    """Those that ended are not."""
    segment = segment_of(root)
    segment.put(1)
    segment.put(2)
    segment.end(1)
    segment.write()
    assert verify(root).notes == ("1 transaction is prepared",)
    assert verify(root).ok
    segment.put(3)
    segment.write()
    assert verify(root).notes == ("2 transactions are prepared",)


def test_a_damaged_entry_is_named_with_what_to_do(root: Path) -> None:
    """It waits until it is aborted; one that has ended costs nothing."""
    first, second = segment_of(root), segment_of(root, 2)
    place, _ = first.put(1)
    ended, _ = first.put(2)
    second.end(2)
    first.sync()
    first.write(place + 100, ended + 100)
    second.write()
    report = verify(root)
    assert [each.position for each in report.damage] == [place, ended]
    waits, is_void = reasons(report)
    assert waits.endswith("transaction t1 cannot be committed: abort it by its id, and put again what it held")
    assert "abort" not in is_void
    assert report.notes == ("1 transaction is prepared",)


def test_bytes_that_name_no_transaction_say_what_may_be_lost(root: Path) -> None:
    """Entries before them cannot be committed any more."""
    segment = segment_of(root)
    segment.put(1)
    place, _ = segment.end(7)
    segment.put(2)
    segment.sync()
    segment.write(place + 40)
    report = verify(root)
    (reason,) = reasons(report)
    assert "put again what is missing, and decide each one that prepared() lists as damaged" in reason
    assert report.notes == ("2 transactions are prepared",)


def test_a_segment_that_an_opening_has_quarantined_is_damage_until_it_is_removed(root: Path) -> None:
    """The queue works without it; what was lost with it is for people to find."""
    segment = segment_of(root)
    place, end = segment.put(1)
    segment.sync()
    segment.write(*range(place, end))
    with PersistentQueue(root, mode="exclusive") as queue:
        assert [each.position for each in queue.recovery.damage] == [place]
    report = verify(root)
    quarantined = segment.path.with_name("0000000001.log.damaged")
    assert [each.path for each in report.damage] == [quarantined]
    assert reasons(report)[0].endswith("and remove this file")
    quarantined.unlink()
    assert verify(root).ok


def test_one_copy_of_the_header_is_damage_and_without_both_all_may_be_lost(root: Path) -> None:
    """The segment is named once."""
    segment = segment_of(root)
    segment.put(1)
    segment.write(HEADER_COPY_POSITIONS[1] + 30)
    report = verify(root)
    assert [(each.path, each.position) for each in report.damage] == [(segment.path, HEADER_COPY_POSITIONS[1])]
    assert reasons(report) == ["one of the two copies of the header does not verify"]
    assert report.notes == ("1 transaction is prepared",)
    segment.write(*(position + 30 for position in HEADER_COPY_POSITIONS))
    report = verify(root)
    (reason,) = reasons(report)
    assert "may be lost" in reason
    assert report.notes == ()


def test_a_torn_tail_is_named_and_no_damage(root: Path) -> None:
    """Nobody was told that these are prepared."""
    segment = segment_of(root)
    segment.put(1)
    segment.sync()
    place, end = segment.put(2)
    segment.write(place + 100)
    report = verify(root)
    assert report.ok
    torn, waits = report.notes
    assert torn.startswith(f"{segment.path} has a torn tail of {end - 3 - place} bytes at {place}: ")
    assert waits == "1 transaction is prepared"


class Growing(OsStorage):
    """An owner appends to a segment while it is read: from one opening of the file to the next one."""

    def __init__(self, segment: Segment) -> None:
        super().__init__()
        self._segment = segment
        self._number = 1

    def open(self, path: Path, *, writable: bool = True) -> File:
        if path == self._segment.path and not writable:
            self._number += 1
            self._segment.put(self._number)
            self._segment.write()
        return super().open(path, writable=writable)


def test_a_segment_that_grows_has_no_torn_tail(root: Path) -> None:
    """Nor one that goes."""
    segment = segment_of(root)
    segment.put(1)
    segment.write()
    report = verify(root, storage=Growing(segment))
    assert report.ok
    assert [each for each in report.notes if "torn" in each] == []


class Going(OsStorage):
    """An owner removes a segment once it was read."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._count = 0

    def open(self, path: Path, *, writable: bool = True) -> File:
        self._count += path == self._path
        if path == self._path and self._count == 2:
            path.unlink()
        return super().open(path, writable=writable)


def test_a_segment_that_goes_has_nothing_to_say(root: Path) -> None:
    """What waited there was decided, or moved."""
    segment = segment_of(root)
    segment.put(1)
    segment.write()
    report = verify(root, storage=Going(segment.path))
    assert (report.ok, report.notes) == (True, ())


def test_a_vote_waits_with_the_puts_that_damage_has_taken(root: Path) -> None:
    """Without damage a vote of no puts is released by the log."""
    with PersistentQueue(root, mode="exclusive") as queue:
        prepare(queue, "both", "t")
    for path in (root / "prepared").iterdir():
        if path.name != "decided":
            path.unlink()
    assert verify(root).notes == ()
    segment = segment_of(root)
    place, _ = segment.end(7)
    segment.sync()
    segment.write(place + 40)
    assert verify(root).notes == ("1 transaction is prepared",)


def test_a_damaged_file_beside_its_entry_is_one_transaction(root: Path) -> None:
    """The file is reported, and the next opening makes it again."""
    segment = segment_of(root)
    segment.put(1)
    segment.write()
    path = root / "prepared" / "t1.batch"
    path.write_bytes(b"torn")
    report = verify(root)
    assert {each.path for each in report.damage} == {path}
    assert report.notes == ("1 transaction is prepared",)
