"""The prepared log of an owner: segments begin and go, ends become durable, and the disk refuses at any step."""

from __future__ import annotations

import errno

import pytest

from holdfast import (
    CommitUnknownError,
    DiskFullError,
    PersistentQueue,
    PoisonedError,
    TransactionStateError,
)
from holdfast.persistence.filesystem.layout import QueueDirectory
from holdfast.persistence.format.constants import OUTCOME_ABORTED
from holdfast.persistence.prepared_log.entry import Entry
from holdfast.persistence.prepared_log.prepared_log import PreparedLog
from holdfast.persistence.prepared_log.segment_writer import SegmentWriter
from holdfast.persistence.prepared_log.waiting_entries import WaitingEntries
from support.builders.handles import handle_of, log_of, segments
from support.builders.segments import QUEUE_ID, nonce
from support.builders.transactions import ORDERS, kill, open_queue, prepare, prepared_ids, waiting
from support.storages.refusals import full_till_space_is_given_back, refusing
from support.storages.simulated_storage import SimulatedStorage


def begin_segment(queue: PersistentQueue) -> None:
    """Prepare and abort transactions until one more segment has begun."""
    until = segments(queue)[-1] + 1
    while segments(queue)[-1] < until:
        prepare(queue, "puts", "filler", count=10)
        queue.abort_prepared("filler")


def entry(log: PreparedLog, name: str) -> Entry:
    """Return what waits under an id."""
    found = log.find(name)
    assert isinstance(found, Entry)
    return found


def end(log: PreparedLog, found: Entry) -> None:
    """End an entry, as an abort does behind its note."""
    log.end(found.id, found.nonce, OUTCOME_ABORTED, 0)


def without_room(log: PreparedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no room for another frame in the last segment."""
    monkeypatch.setattr(SegmentWriter, "has_room", lambda writer, size: False)


def test_a_log_that_was_never_used_has_no_file(storage: SimulatedStorage) -> None:
    """There is nothing to sync, to remove or to close."""
    log = PreparedLog(storage, QueueDirectory(ORDERS), QUEUE_ID, 2**14, lambda: None)
    assert log.sync() == 0
    assert log.sync_ends()
    assert not log.has_ended_segments
    assert log.find("t1") is None
    log.end("t1", nonce(1), OUTCOME_ABORTED, 0)
    log.close()
    assert storage.tree() == {}


def test_an_id_waits_once(queue: PersistentQueue) -> None:
    """Until it is decided."""
    prepare(queue, "puts", "one")
    tx = queue.begin()
    tx.put(b"again")
    with pytest.raises(TransactionStateError, match="is prepared"):
        tx.prepare("one")
    queue.abort_prepared("one")
    prepare(queue, "puts", "one")


def test_only_the_nonce_of_an_entry_ends_it(queue: PersistentQueue, log: PreparedLog) -> None:
    """Its id may have been used before."""
    prepare(queue, "puts", "one")
    log.end("one", nonce(9), OUTCOME_ABORTED, 0)
    assert prepared_ids(queue) == ["one"]


def test_an_end_without_room_is_durable_once_there_is_some(
    queue: PersistentQueue, log: PreparedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then commit records have to stay pending."""
    prepare(queue, "puts", "one")
    prepare(queue, "puts", "two")
    found = entry(log, "one")
    with monkeypatch.context() as patched:
        without_room(log, patched)
        end(log, found)
        assert not log.sync_ends()
    assert prepared_ids(queue) == ["two"]
    assert log.sync_ends()
    with open_queue(kill(handle_of(queue).storage, queue)) as again:
        assert prepared_ids(again) == ["two"]


def test_a_segment_stays_while_something_in_it_is_undecided(queue: PersistentQueue, log: PreparedLog) -> None:
    """Later ones stay with it: they may say what ended in it."""
    prepare(queue, "puts", "old")
    begin_segment(queue)
    begin_segment(queue)
    assert not log.has_ended_segments
    log.remove_ended()
    assert segments(queue) == [1, 2, 3]
    queue.commit_prepared("old")
    log.remove_ended()
    assert segments(queue) == [3]


def test_after_a_failed_removal_none_is_removed(
    storage: SimulatedStorage, queue: PersistentQueue, log: PreparedLog
) -> None:
    """It may come back, and what speaks of its entries has to be there then."""
    prepare(queue, "puts", "old")
    begin_segment(queue)
    begin_segment(queue)
    with refusing(storage, "sync_directory", "prepared", errno.EIO, count=1):
        queue.abort_prepared("old")
    assert prepared_ids(queue) == []
    assert not log.has_ended_segments
    log.remove_ended()
    assert segments(queue) == [2, 3]


@pytest.mark.parametrize("is_last", [True, False])
def test_the_reserve_of_its_segment_commits_an_entry_on_a_full_disk(
    storage: SimulatedStorage, queue: PersistentQueue, log: PreparedLog, is_last: bool
) -> None:
    """Whatever is behind it in the segment stays, and is decided as before."""
    for name in ("first", "second"):
        prepare(queue, "puts", name)
    if not is_last:
        begin_segment(queue)
    with full_till_space_is_given_back(storage) as cut:
        queue.commit_prepared("first")
    assert [path.name for path in cut] == ["0000000001.log"]
    assert waiting(queue) == [b"new"]
    assert prepared_ids(queue) == ["second"]
    prepare(queue, "puts", "third")
    assert entry(log, "third").sequence == 2
    with open_queue(kill(storage, queue)) as again:
        assert prepared_ids(again) == ["second", "third"]
        again.commit_prepared("second")
        assert waiting(again) == [b"new"] * 2


def test_without_space_for_a_segment_nothing_is_prepared(storage: SimulatedStorage, queue: PersistentQueue) -> None:
    """The transaction is as before: it can be prepared again, or aborted."""
    tx = queue.begin()
    tx.put(b"new")
    with refusing(storage, "allocate", error=errno.ENOSPC), pytest.raises(DiskFullError):
        tx.prepare("one")
    assert prepared_ids(queue) == []
    prepare(queue, "puts", "one")
    assert prepared_ids(queue) == ["one"]


def test_a_failed_sync_poisons_the_log(storage: SimulatedStorage, queue: PersistentQueue) -> None:
    """Whether it is prepared is unknown; the next opening says."""
    prepare(queue, "puts", "one")
    tx = queue.begin()
    tx.put(b"new")
    with refusing(storage, "sync", ".log", errno.EIO, count=1), pytest.raises(CommitUnknownError):
        tx.prepare("two")
    later = queue.begin()
    later.put(b"later")
    with pytest.raises(PoisonedError):
        later.prepare("three")
    with open_queue(kill(storage, queue)) as again:
        assert prepared_ids(again) == ["one", "two"]


def test_opening_leaves_no_segment(storage: SimulatedStorage, queue: PersistentQueue) -> None:
    """Entries that moved are decided as any."""
    prepare(queue, "puts", "one")
    with open_queue(kill(storage, queue)) as again:
        assert segments(again) == []
        assert log_of(again).waiting() == WaitingEntries([], [], frozenset())
        again.commit_prepared("one")
        assert waiting(again) == [b"new"]
