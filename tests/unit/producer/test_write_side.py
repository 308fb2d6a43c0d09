"""The write side: what it decides, counts, refuses and leaves behind, apart from any caller."""

import pytest

from holdfast import ClosedError, FlushPolicy, ShutDown
from holdfast.persistence.format.commit_record import CommitRecord
from holdfast.queue.producer.write_side import WriteSide
from support.builders.handles import handle_of
from support.builders.jobs import Jobs, ready
from support.builders.transactions import cut_power, open_queue, prepare, prepared_ids, waiting
from support.storages.simulated_storage import SimulatedStorage

NONCE = b"n" * 16


def test_a_decision_that_was_cut_short_before_its_sync_is_synced_when_somebody_asks(storage: SimulatedStorage) -> None:
    """Whoever is told that it stands may act upon it; a second question costs nothing."""
    queue = open_queue(storage)
    side = handle_of(queue).require_write_side()
    assert not side.has_decided(NONCE)
    side._append_batch([b"x"], None, CommitRecord("t", NONCE, 1, 0))
    assert side.has_decided(NONCE)
    count = storage.mutation_count
    assert side.has_decided(NONCE)
    assert storage.mutation_count == count
    with open_queue(cut_power(storage, queue)) as again:
        assert waiting(again) == [b"x"]


def appended(side: WriteSide) -> int:
    """Append one message by itself; return the ticket to settle it by."""
    return side._append(b"x", b"") + 1


def test_commits_of_others_count_for_the_policy(storage: SimulatedStorage) -> None:
    """Every third one is synced, whoever asked for it; where no number is set, none is."""
    with open_queue(storage, flush=FlushPolicy.every(commits=3)) as queue:
        side = handle_of(queue).require_write_side()
        side.settle(appended(side), 1)
        side.settle(appended(side), 1)
        assert side._writer.synced[2] == 0
        side.settle(appended(side), 1)
        assert side._writer.synced[2] == 3
        side.settle(appended(side), 5)
        assert side._writer.synced[2] == 4


def test_without_a_number_of_commits_none_is_synced(storage: SimulatedStorage) -> None:
    """They are announced all the same."""
    with open_queue(storage, flush=FlushPolicy.never()) as queue:
        side = handle_of(queue).require_write_side()
        side.settle(appended(side), 1)
        assert side._writer.synced[2] == 0
        assert waiting(queue) == [b"x"]


def test_a_large_batch_is_not_taken_into_a_log_that_was_shut_down(storage: SimulatedStorage) -> None:
    """As a small one is not; it stays in doubt for the next opening."""
    with open_queue(storage) as queue:
        prepare(queue, "puts", "t", count=100)
        queue.shutdown()
        with pytest.raises(ShutDown):
            queue.commit_prepared("t")
        assert prepared_ids(queue) == ["t"]
    with open_queue(storage) as again:
        assert len(again.commit_prepared("t")) == 100


def test_a_closed_side_flushes_no_more_and_one_that_was_shut_down_does(storage: SimulatedStorage) -> None:
    """What was put before is put all the same."""
    queue = open_queue(storage, flush=FlushPolicy.never())
    side = handle_of(queue).require_write_side()
    queue.put(b"x")
    queue.shutdown()
    side.flush()
    assert side._writer.synced[2] == 1
    queue.close()
    with pytest.raises(ClosedError):
        side.flush()


def test_an_idle_mark_is_left_only_behind_what_was_looked_at() -> None:
    """Somebody has put meanwhile: then the queue is not idle."""
    jobs = Jobs()
    with jobs.open(flush=FlushPolicy.every(commits=100)) as queue:
        side = handle_of(queue).require_write_side()
        queue.put(b"a")
        side._tick()
        queue.put(b"b")
        before = side.end()
        side._leave_mark()
        assert side.end() == before
        side._tick()
        side._leave_mark()
        assert side.end()[1] > before[1]
        assert ready(queue) == [b"a", b"b"]
