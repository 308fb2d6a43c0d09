"""A process that does not own the prepared log lists what waits there, while its owner goes on."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import CorruptionError, PersistentQueue, TransactionStateError, verify
from holdfast.persistence.filesystem.document import read_document
from holdfast.persistence.filesystem.layout import PREPARED_LOG, open_directory, queue_directory, rebuild_identity
from holdfast.persistence.filesystem.storage import OsStorage
from support.builders.segments import Segment
from support.builders.transactions import prepare, prepared_ids, waiting
from support.processes.children import Signal, child

STANDING = ["stands-1", "stands-2"]
TURNS = 60


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a closed queue of three messages."""
    with PersistentQueue(tmp_path / "orders", mode="exclusive") as queue:
        queue.put_many([b"one", b"two", b"three"])
    return queue.path


def busy_owner(root: Path, ready: Signal) -> Callable[[], None]:
    """Return what an owner does until it is killed: it prepares and decides, and two stay undecided."""

    def work() -> None:
        queue = PersistentQueue(root, mode="exclusive")
        for name in STANDING:
            prepare(queue, "puts", name)
        for number in range(TURNS):
            prepare(queue, "puts", f"turn-{number}", count=30)
            (queue.commit_prepared if number % 2 else queue.abort_prepared)(f"turn-{number}")
            ready.send(str(number))
        signal.pause()

    return work


def segments(root: Path) -> list[Path]:
    """Return the segments of a prepared log."""
    return sorted((root / "prepared").glob("*.log"))


def one_segment(root: Path) -> Segment:
    """Return a segment for a closed queue."""
    directory, queue_id, _ = open_directory(OsStorage(), root, create=False)
    return Segment(directory.prepared, 1, queue_id)


def test_what_stands_is_always_listed_and_nothing_is_invented(root: Path) -> None:
    """Through segments that begin, end and go. At most one more is just being decided."""
    ready = Signal()
    with child(busy_owner(root, ready)):
        decided = int(ready.wait())
        with PersistentQueue(root, mode="read_only") as look:
            while decided < TURNS - 1:
                found = look.prepared()
                ids = [each.id for each in found]
                assert ids[:2] == STANDING
                assert len(ids) <= 3
                assert all(int(name.removeprefix("turn-")) > decided for name in ids[2:])
                assert not any(each.damage for each in found)
                decided = int(ready.wait())
            assert segments(root)
            report = verify(root)
    assert (report.damage, report.lost) == ((), ())
    ready.close()


def test_an_owner_that_was_killed_leaves_what_stands(root: Path) -> None:
    """To a reader before the next opening, to verify, and to the next owner."""
    ready = Signal()
    with child(busy_owner(root, ready)) as owner:
        while int(ready.wait()) < 5:
            pass
        owner.kill()
    ready.close()
    with PersistentQueue(root, mode="read_only") as look:
        before = prepared_ids(look)
    assert before[:2] == STANDING
    assert verify(root).ok
    with PersistentQueue(root, mode="exclusive") as queue:
        assert prepared_ids(queue) == before
        assert segments(root) == []
        for name in STANDING:
            assert queue.commit_prepared(name)


def test_an_entry_is_listed_as_long_as_it_waits(root: Path) -> None:
    """With what it puts and acknowledges; no file of its own is needed for that."""
    with PersistentQueue(root, mode="exclusive") as queue, PersistentQueue(root, mode="read_only") as look:
        tx = prepare(queue, "both", "t", count=30)
        assert not list((root / "prepared").glob("*.batch"))
        (found,), (known,) = look.prepared(), queue.prepared()
        assert (found.id, found.put_count, found.ack_count, found.size_bytes) == ("t", 30, 1, known.size_bytes)
        tx.commit()
        assert look.prepared() == []


def test_a_reader_sees_damage_and_the_owner_aborts_it(root: Path) -> None:
    """What cannot be committed says so, and why."""
    segment = one_segment(root)
    place, _ = segment.put(1)
    segment.put(2)
    segment.sync()
    segment.write(place + 100)
    with PersistentQueue(root, mode="read_only") as look:
        damaged, whole = look.prepared()
        assert (damaged.id, bool(damaged.damage), whole.id, whole.damage) == ("t1", True, "t2", ())
    with PersistentQueue(root, mode="exclusive") as queue:
        with pytest.raises(CorruptionError, match="it cannot be committed; abort it"):
            queue.commit_prepared("t1")
        queue.abort_prepared("t1")
        assert queue.commit_prepared("t2") == range(3, 5)
    with PersistentQueue(root, mode="exclusive") as queue:
        assert queue.prepared() == []
    assert segments(root) == []


def test_a_vote_whose_puts_may_be_lost_stays_in_doubt(root: Path) -> None:
    """It is listed as damaged in every mode, its id is taken, and it can be aborted: then its message comes again."""
    with PersistentQueue(root, mode="exclusive") as queue:
        prepare(queue, "both", "t")
    for path in (*(root / "prepared").glob("*.batch"), *segments(root)):
        path.unlink()
    segment = one_segment(root)
    place, _ = segment.end(7)
    segment.sync()
    segment.write(place + 40)
    with PersistentQueue(root, mode="read_only") as look:
        (found,) = look.prepared()
        assert (found.id, found.put_count, found.ack_count, len(found.damage)) == ("t", 0, 1, 1)
    with PersistentQueue(root, mode="exclusive") as queue:
        (found,) = queue.prepared()
        assert (found.id, found.ack_count, len(found.damage)) == ("t", 1, 1)
        with pytest.raises(TransactionStateError, match="transaction t is prepared"):
            prepare(queue, "puts", "t")
        queue.abort_prepared("t")
        assert waiting(queue) == [b"one", b"two", b"three"]
    with PersistentQueue(root, mode="exclusive") as queue:
        assert queue.prepared() == []
    assert segments(root) == []


def test_a_queue_with_a_log_says_so_also_once_its_document_was_rebuilt(root: Path) -> None:
    """A Holdfast without prepared logs does not open it; handles that only read do."""
    with PersistentQueue(root, mode="exclusive") as queue:
        prepare(queue, "puts", "t")
        copy = Path(shutil.copytree(root, root.with_name("copy")))
    for path in (root, copy):
        assert read_document(OsStorage(), path / "queue.json")["features"] == [PREPARED_LOG]
        with PersistentQueue(path, mode="read_only") as look:
            assert prepared_ids(look) == ["t"]
    assert segments(copy)
    (copy / "queue.json").write_bytes(b"damaged")
    with PersistentQueue(copy, mode="read_only") as look:
        assert prepared_ids(look) == ["t"]
    rebuild_identity(OsStorage(), queue_directory(copy))
    assert read_document(OsStorage(), copy / "queue.json")["features"] == [PREPARED_LOG]


def test_a_copy_of_its_files_is_a_queue_with_the_same_transactions(root: Path) -> None:
    """Made as backups are, while no process has the queue open; after a kill too."""
    ready = Signal()
    with child(busy_owner(root, ready)) as owner:
        ready.wait()
        owner.kill()
    ready.close()
    copy = Path(shutil.copytree(root, root.with_name("copy")))
    for path in (root, copy):
        with PersistentQueue(path, mode="exclusive") as queue:
            assert prepared_ids(queue)[:2] == STANDING
            assert queue.commit_prepared("stands-1") == queue.commit_prepared("stands-1")
