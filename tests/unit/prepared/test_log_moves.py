"""What has been undecided for long leaves the prepared log, and segments go; a failure stops neither for good."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator

import pytest

from holdfast import CommitUnknownError, PersistentQueue, StorageError
from holdfast.persistence.filesystem.layout import list_batch_files, list_segments
from holdfast.persistence.outcomes import outcome_log
from holdfast.persistence.prepared_log import prepared_log
from holdfast.persistence.prepared_log.entry import Entry
from holdfast.persistence.prepared_log.prepared_log import PreparedLog
from holdfast.queue.prepared import log_moves
from holdfast.queue.prepared.log_moves import LOOK_SECONDS, LogMoves
from support.builders.handles import handle_of, log_of, without_moves
from support.builders.transactions import cut_power, kill, open_queue, prepare, prepared_ids, waiting
from support.processes.thread_starts import no_threads
from support.processes.threads import wait_until
from support.storages.refusals import refusing
from support.storages.simulated_storage import SimulatedStorage


@pytest.fixture
def queue(storage: SimulatedStorage) -> Iterator[PersistentQueue]:
    """Open a queue whose own moves are over: the tests make theirs."""
    with without_moves(open_queue(storage)) as opened:
        yield opened


@pytest.fixture
def moves(queue: PersistentQueue) -> Iterator[LogMoves]:
    """Return moves that begin when they are told to."""
    made = LogMoves(handle_of(queue))
    log_moves.unwatch(made, handle_of(queue).clock)
    yield made
    made.stop()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing be undecided for a while."""
    monkeypatch.setattr(prepared_log, "UNDECIDED_SECONDS", 0.0)


def files(queue: PersistentQueue) -> tuple[list[int], list[str]]:
    """Return the sequences of the segments, and the ids of the batch files."""
    handle = handle_of(queue)
    found = sorted(list_batch_files(handle.storage, handle.directory))
    return list_segments(handle.storage, handle.directory), found


def begin_segments(queue: PersistentQueue, count: int) -> None:
    """Prepare and abort transactions until so many more segments have begun."""
    until = files(queue)[0][-1] + count
    while files(queue)[0][-1] < until:
        prepare(queue, "puts", "filler", count=10)
        queue.abort_prepared("filler")


def test_what_is_new_stays(queue: PersistentQueue, moves: LogMoves) -> None:
    """A minute is long."""
    prepare(queue, "puts")
    moves.run()
    assert files(queue) == ([1], [])


@pytest.mark.usefixtures("at_once")
def test_what_is_undecided_for_long_moves(storage: SimulatedStorage, queue: PersistentQueue, moves: LogMoves) -> None:
    """It is in doubt as before, here and after a loss of power."""
    prepare(queue, "puts", "first")
    prepare(queue, "puts", "second")
    moves.run()
    assert files(queue) == ([1], ["first", "second"])
    assert log_of(queue).waiting().entries == []
    queue.commit_prepared("first")
    with open_queue(cut_power(storage, queue)) as again:
        assert prepared_ids(again) == ["second"]
        assert waiting(again) == [b"new"]
        again.commit_prepared("second")
        assert waiting(again) == [b"new"] * 2


def test_what_two_segments_have_passed_moves_and_they_go(queue: PersistentQueue, moves: LogMoves) -> None:
    """The last one stays: it takes what comes."""
    prepare(queue, "puts", "old")
    begin_segments(queue, 1)
    moves.run()
    assert files(queue) == ([1, 2], [])
    begin_segments(queue, 1)
    moves.run()
    assert files(queue) == ([3], ["old"])


@pytest.mark.usefixtures("at_once")
def test_one_that_cannot_move_does_not_stop_the_others(
    storage: SimulatedStorage, queue: PersistentQueue, moves: LogMoves
) -> None:
    """It stays in the log, is told of, and moves later."""
    for name in ("first", "second"):
        prepare(queue, "puts", name)
    with refusing(storage, "open", ".staging", errno.EIO, count=1), pytest.raises(StorageError):
        moves.run()
    assert files(queue) == ([1], ["second"])
    assert prepared_ids(queue) == ["first", "second"]
    moves.run()
    assert files(queue) == ([1], ["first", "second"])


@pytest.mark.usefixtures("at_once")
def test_after_a_move_without_a_durable_name_commit_records_stay_pending(
    storage: SimulatedStorage, queue: PersistentQueue, moves: LogMoves
) -> None:
    """The batch file may be there again after a loss of power, and only the record says then that it is void."""
    prepare(queue, "puts", "first")
    with refusing(storage, "sync_directory", "prepared", errno.EIO, count=1), pytest.raises(CommitUnknownError):
        moves.run()
    assert files(queue) == ([1], [])
    queue.commit_prepared("first")
    handle = handle_of(queue)
    assert not handle.require_batches().prepared.sync()
    with open_queue(kill(storage, queue)) as again:
        assert prepared_ids(again) == []
        assert waiting(again) == [b"new"]


@pytest.mark.usefixtures("at_once")
def test_what_is_decided_meanwhile_does_not_move(
    queue: PersistentQueue, moves: LogMoves, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever decides comes first, and the mover finds nothing."""
    prepare(queue, "puts")
    due = log_of(queue).long_undecided(time.monotonic())
    queue.abort_prepared("puts")
    monkeypatch.setattr(PreparedLog, "long_undecided", lambda log, now: due)
    moves.run()
    assert files(queue) == ([1], [])


@pytest.mark.usefixtures("at_once")
def test_nothing_moves_once_it_is_over(queue: PersistentQueue, moves: LogMoves) -> None:
    """A queue that closes leaves the rest to its next opening."""
    moves.stop()
    moves.run()
    prepare(queue, "puts")
    moves.run()
    assert files(queue) == ([1], [])


@pytest.mark.usefixtures("at_once")
def test_a_look_begins_a_thread_if_something_is_due(queue: PersistentQueue, moves: LogMoves) -> None:
    """Without anything due it begins none, and where no thread can be had it asks again."""
    assert moves.look() == LOOK_SECONDS
    prepare(queue, "puts")
    with no_threads("holdfast-prepared"):
        moves.look()
    moves.look()
    wait_until(lambda: files(queue)[1] == ["puts"] and not moves._is_running)


@pytest.mark.usefixtures("at_once")
def test_after_a_failure_looks_wait(
    storage: SimulatedStorage,
    queue: PersistentQueue,
    moves: LogMoves,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A full disk is not told of each second."""
    prepare(queue, "puts")
    with refusing(storage, "open", ".staging", errno.ENOSPC) as failed:
        for _ in range(3):
            moves.look()
            wait_until(lambda: not moves._is_running)
        assert len(failed) == 1
    assert [each.levelname for each in caplog.records if "stay in their log" in each.message] == ["WARNING"]
    monkeypatch.setattr(moves, "_due", 0.0)
    moves.look()
    wait_until(lambda: files(queue)[1] == ["puts"])


def test_what_was_committed_from_its_file_never_comes_back_out_of_a_segment_that_stays(
    storage: SimulatedStorage, queue: PersistentQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The frame that says that it has moved may be lost, and after many other outcomes no memory of it is left."""
    monkeypatch.setattr(outcome_log, "OUTCOMES_MAX", 2)
    for name in ("first", "second"):
        prepare(queue, "puts", name)
    found = log_of(queue).find("first")
    assert isinstance(found, Entry)
    handle_of(queue).require_batches().move(found)
    queue.commit_prepared("first")
    left = cut_power(storage, queue)
    with refusing(left, "open", ".staging", errno.ENOSPC):
        again = open_queue(left)
    with again:
        assert files(again) == ([1], [])
        for number in range(3):
            prepare(again, "puts", f"other-{number}", count=20)
            again.abort_prepared(f"other-{number}")
        handle_of(again).require_write_side()._record_ends.end_all()
        with open_queue(kill(left, again)) as last:
            assert prepared_ids(last) == ["second"]
            assert waiting(last) == [b"new"]
