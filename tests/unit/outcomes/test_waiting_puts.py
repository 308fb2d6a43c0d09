"""What waits in ``prepared/``: seen from outside, beside an owner that commits, moves and removes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import CorruptionError, PersistentQueue
from holdfast.persistence.filesystem.layout import open_directory
from holdfast.persistence.filesystem.storage import OsFile, OsStorage
from holdfast.persistence.format.constants import OUTCOME_ABORTED
from holdfast.persistence.outcomes.outcome_log import OutcomeLog
from holdfast.persistence.outcomes.published_commits import published_commits
from holdfast.persistence.outcomes.waiting_puts import WaitingPuts, read_batch, read_waiting_entries, waiting_puts
from holdfast.persistence.prepared_log.emptying import move_entry
from holdfast.persistence.prepared_log.entry import Entry, entry_messages
from holdfast.persistence.segment.batch_file_reader import BatchSummary
from support.builders.segments import Segment, nonce

STORAGE = OsStorage()


class Queue:
    """A closed queue, and what an owner may have left in its ``prepared/``."""

    def __init__(self, root: Path) -> None:
        with PersistentQueue(root, mode="exclusive") as queue:
            queue.put(b"one")
        self.root = root
        self.directory, self.id, _ = open_directory(STORAGE, root, create=False)

    def segment(self, sequence: int = 1) -> Segment:
        """Return a segment of its prepared log."""
        return Segment(self.directory.prepared, sequence, self.id)

    def move(self, number: int) -> Path:
        """Move an entry to a batch file, as far as the file's name; return that."""
        found = read_waiting_entries(STORAGE, self.directory, self.id).entries
        (entry,) = (each for each in found if isinstance(each, Entry) and each.nonce == nonce(number))
        return move_entry(STORAGE, self.directory, self.id, entry, entry_messages(STORAGE, entry)).path

    def waiting(self, before_files: Callable[[], object] = lambda: None) -> list[WaitingPuts]:
        """Return what waits."""
        entries = read_waiting_entries(STORAGE, self.directory, self.id).entries
        before_files()
        return waiting_puts(STORAGE, self.directory, self.id, entries)

    def shown(self, before_files: Callable[[], object] = lambda: None) -> list[tuple[str, type | None]]:
        """Return the ids of what waits, and where it does; None: damaged."""
        found = self.waiting(before_files)
        return [(each.id, None if each.batch is None else type(each.batch)) for each in found]


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    """Return a closed queue."""
    return Queue(tmp_path / "orders")


def flip(path: Path, position: int) -> None:
    """Damage a byte of a file."""
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def test_nothing_waits_in_a_queue_without_any(queue: Queue) -> None:
    """No file is needed for that."""
    assert queue.shown() == []
    assert read_batch(STORAGE, queue.directory, queue.id, "t1") is None


def test_an_entry_that_has_moved_waits_in_its_file(queue: Queue) -> None:
    """The file counts, with the frame that says so or before it."""
    segment = queue.segment()
    segment.put(1)
    segment.put(2)
    segment.write()
    path = queue.move(1)
    assert queue.shown() == [("t1", BatchSummary), ("t2", Entry)]
    segment.end(1)
    segment.write()
    assert sorted(queue.shown(), key=lambda each: each[0]) == [("t1", BatchSummary), ("t2", Entry)]
    path.unlink()
    assert queue.shown() == [("t2", Entry)]


def test_an_entry_that_moves_meanwhile_is_seen_once(queue: Queue) -> None:
    """Its segment was read before, and its file is read behind that."""
    segment = queue.segment()
    segment.put(1)
    segment.write()
    assert queue.shown(lambda: queue.move(1)) == [("t1", BatchSummary)]


def test_a_file_that_goes_meanwhile_waits_no_more(queue: Queue) -> None:
    """It is decided between two looks at the directory."""
    segment = queue.segment()
    segment.put(1)
    segment.write()
    path = queue.move(1)
    segment.path.unlink()

    class Deciding(OsStorage):
        def open(self, name: Path, *, create: bool = False, writable: bool = True) -> OsFile:
            if name == path:
                path.unlink()
            return super().open(name, create=create, writable=writable)

    assert waiting_puts(Deciding(), queue.directory, queue.id, []) == []


def test_a_damaged_file_does_not_hide_its_entry(queue: Queue) -> None:
    """Opening makes the file again."""
    segment = queue.segment()
    place, _ = segment.put(1)
    segment.sync()
    segment.write()
    path = queue.move(1)
    for position in (60, 4096 + 60):
        flip(path, position)
    assert queue.shown() == [("t1", Entry)]
    segment.write(place + 100)
    (found,) = queue.waiting()
    assert (found.nonce, found.batch, [each.path for each in found.damage]) == (nonce(1), None, [segment.path])
    segment.path.unlink()
    (found,) = queue.waiting()
    assert (found.nonce, found.batch, [each.path for each in found.damage]) == (b"", None, [path])
    with pytest.raises(CorruptionError):
        read_batch(STORAGE, queue.directory, queue.id, "t1")


def test_a_file_counts_where_its_entry_is_damaged(queue: Queue) -> None:
    """It was written before."""
    segment = queue.segment()
    place, _ = segment.put(1)
    segment.sync()
    segment.write()
    queue.move(1)
    segment.write(place + 100)
    assert queue.shown() == [("t1", BatchSummary)]


def test_what_was_decided_waits_no_more(queue: Queue) -> None:
    """The memory of decided transactions knows, where the segment could not be written any more."""
    segment = queue.segment()
    segment.put(1)
    segment.put(2)
    segment.write()
    outcome_log = OutcomeLog(STORAGE, queue.directory.outcome_log)
    outcome_log.note("t1", nonce(1), OUTCOME_ABORTED, range(0), 1)
    outcome_log.close()
    assert queue.shown() == [("t2", Entry)]


def test_a_segment_that_goes_meanwhile_takes_its_entries_along(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """What ended them may have gone with a later segment before that was read."""
    first, second = queue.segment(), queue.segment(2)
    first.put(1)
    first.write()
    second.put(2)
    second.write(*(position + 30 for position in (0, 4096)))

    def go(*_: object) -> frozenset[bytes]:
        first.path.unlink()
        second.path.unlink()
        return frozenset()

    monkeypatch.setattr("holdfast.persistence.outcomes.waiting_puts.published_commits", go)
    found = read_waiting_entries(STORAGE, queue.directory, queue.id)
    assert (found.entries, found.lost) == ([], [])


# -- Commits that the log has published -------------------------------------------------------------------------------


def committing(queue: Queue, payload: bytes) -> tuple[PersistentQueue, bytes]:
    """Return the open queue with a transaction that was just committed, and its nonce."""
    owner = PersistentQueue(queue.root, mode="exclusive", data_file_bytes=64 * 1024)
    tx = owner.begin()
    tx.put(payload)
    tx.prepare("t")
    entries = read_waiting_entries(STORAGE, queue.directory, queue.id).entries
    found = waiting_puts(STORAGE, queue.directory, queue.id, entries)
    tx.commit()
    return owner, found[0].nonce


@pytest.mark.parametrize("size", [10, 40_000], ids=["copied", "adopted"])
def test_a_commit_that_is_pending_is_known_from_outside(queue: Queue, size: int) -> None:
    """Until everything that follows from it is on the disk."""
    owner, known = committing(queue, bytes(size))
    with owner:
        assert published_commits(STORAGE, queue.directory, queue.id) == {known}
        segment = queue.segment(7)
        segment.put(int.from_bytes(known, "big"), name="t")
        segment.put(1)
        segment.write()
        assert queue.shown() == [("t1", Entry)]
        segment.path.unlink()


@pytest.mark.parametrize("damage", ["mark", "no mark", "header", "no file", "another file", "another queue"])
def test_without_the_mark_or_its_file_no_commit_is_known(queue: Queue, damage: str) -> None:
    """The next opening reads the log."""
    (data,) = queue.directory.data.iterdir()
    mark = queue.directory.write_mark
    if damage == "mark":
        flip(mark, 50)
    elif damage == "no mark":
        mark.unlink()
    elif damage == "header":
        flip(data, 60)
        flip(data, 4096 + 60)
    elif damage == "no file":
        data.unlink()
    elif damage == "another file":
        other = Queue(queue.root.with_name("other"))
        (other_data,) = other.directory.data.iterdir()
        data.write_bytes(other_data.read_bytes())
    queue_id = bytes(16) if damage == "another queue" else queue.id
    assert published_commits(STORAGE, queue.directory, queue_id) == frozenset()
