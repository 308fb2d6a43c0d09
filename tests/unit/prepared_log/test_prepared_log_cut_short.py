"""The prepared log of an owner that is closed, replaced or interrupted in the middle of a call."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from holdfast import ClosedError, CommitUnknownError, FencedError, PersistentQueue, PoisonedError, TransactionStateError
from holdfast.persistence.filesystem.storage import File, write_whole
from holdfast.persistence.format.constants import OUTCOME_ABORTED
from holdfast.persistence.outcomes.waiting_puts import read_waiting_entries
from holdfast.persistence.prepared_log import segment_writer
from holdfast.persistence.prepared_log.entry import Entry
from holdfast.persistence.prepared_log.prepared_log import PreparedLog
from holdfast.persistence.prepared_log.segment_writer import SegmentWriter
from holdfast.queue.producer.write_side import WriteSide
from proof.interruptions.locks import locked
from proof.interruptions.sweep import promised
from support.builders.handles import handle_of, log_of, segments, without_moves
from support.builders.segments import record
from support.builders.transactions import cut_power, kill, open_queue, prepare, prepared_ids, waiting
from support.processes.interruptions import guarded, interrupted, points_of
from support.storages.refusals import refusing
from support.storages.simulated_storage import SimulatedStorage


def once(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, *, first: bool) -> None:
    """Interrupt the next call of a method, ahead of it or behind it."""
    method = getattr(owner, name)

    def interrupted(*arguments: Any) -> None:
        monkeypatch.setattr(owner, name, method)
        if not first:
            method(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(owner, name, interrupted)


# -- Closed ----------------------------------------------------------------------------------------------------------


def test_a_close_syncs_what_another_thread_waits_for(
    storage: SimulatedStorage, queue: PersistentQueue, log: PreparedLog
) -> None:
    """That thread may ask for its sync behind the close, and is told that it is prepared."""
    prepare(queue, "puts", "one")
    _, ticket = log.append([b"new"], {}, record(2, 1, name="two"))
    log.close()
    assert log.sync() == ticket
    with open_queue(cut_power(storage, queue)) as again:
        assert sorted(prepared_ids(again)) == ["one", "two"]


def test_a_close_that_cannot_sync_is_told_to_those_who_wait(
    storage: SimulatedStorage, queue: PersistentQueue, log: PreparedLog
) -> None:
    """The close itself goes on."""
    prepare(queue, "puts", "one")
    log.append([b"new"], {}, record(2, 1))
    with refusing(storage, "sync", ".log", count=1):
        log.close()
    with pytest.raises(PoisonedError):
        log.sync()


def test_nothing_is_appended_once_another_process_may_own_the_queue(
    queue: PersistentQueue, log: PreparedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment that a thread begins later would take the name of one of the next owner."""
    prepare(queue, "puts", "one")
    close = WriteSide.close
    refused: list[BaseException] = []

    def append_first(side: WriteSide) -> None:
        with pytest.raises(ClosedError) as caught:
            log.append([b"late"], {}, record(2, 1))
        refused.append(caught.value)
        close(side)

    monkeypatch.setattr(WriteSide, "close", append_first)
    queue.close()
    assert refused
    with pytest.raises(ClosedError):
        log.append([b"late"], {}, record(3, 1))
    assert segments(queue) == [1]


def test_a_close_that_is_interrupted_before_its_sync_has_synced_nothing(
    storage: SimulatedStorage, queue: PersistentQueue, log: PreparedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits for the sync does it then; the next close does the rest."""
    prepare(queue, "puts", "one")
    _, ticket = log.append([b"new"], {}, record(2, 1, name="two"))
    once(monkeypatch, SegmentWriter, "close", first=True)
    with pytest.raises(KeyboardInterrupt):
        log.close()
    assert log.sync() == ticket
    with open_queue(storage.crash_dropping_unsynced()) as again:
        assert sorted(prepared_ids(again)) == ["one", "two"]
    log.close()
    with pytest.raises(ClosedError):
        log.append([b"late"], {}, record(3, 1))


def test_a_close_in_the_middle_of_a_removal_of_its_own_thread_does_not_wait_for_it(
    storage: SimulatedStorage, queue: PersistentQueue, log: PreparedLog
) -> None:
    """As a signal handler does."""
    prepare(queue, "puts", "one")
    queue.commit_prepared("one")
    end_of_segment(log)

    def close(verb: str, path: Path) -> None:
        if verb == "remove" and path.suffix == ".log":
            storage.before_verb = None
            log.close()

    storage.before_verb = close
    log.remove_ended()
    assert storage.before_verb is None
    with pytest.raises(ClosedError):
        log.append([b"late"], {}, record(3, 1))


def test_a_close_that_is_interrupted_anywhere_leaves_nothing_locked() -> None:
    """While the interruption is handled, the next close removes the segment."""

    def made() -> PersistentQueue:
        queue = open_queue(SimulatedStorage())
        prepare(queue, "puts", "one")
        queue.commit_prepared("one")
        return queue

    with without_moves(made()) as queue:
        points = promised(points_of(log_of(queue).close))
    assert len(points) > 50
    for point in points:
        with without_moves(made()) as queue, guarded(5):
            error = interrupted(log_of(queue).close, point)
            assert not locked(log_of(queue)), point
            log_of(queue).close()
            del error


def end_of_segment(log: PreparedLog) -> None:
    """Have the next segment begin with an entry that is void at once."""
    with patch.object(SegmentWriter, "has_room", lambda writer, size: False):
        found, _ = log.append([b"new"], {}, record(2, 1, name="two"))
    log.end(found.id, found.nonce, OUTCOME_ABORTED, 0)


def test_a_close_removes_segments_in_which_nothing_waits(
    storage: SimulatedStorage, queue: PersistentQueue, log: PreparedLog
) -> None:
    """Their reserve, too; a second close touches nothing, as they may be another owner's by then."""
    prepare(queue, "puts", "one")
    queue.commit_prepared("one")
    assert segments(queue) == [1]
    log.close()
    assert segments(queue) == []
    prepared = handle_of(queue).directory
    storage.open(prepared.segment(1), create=True).close()
    log.close()
    assert segments(queue) == [1]


def test_a_close_that_cannot_remove_a_segment_leaves_it_to_the_next_opening(
    storage: SimulatedStorage, queue: PersistentQueue
) -> None:
    """It is a close as any."""
    prepare(queue, "puts", "one")
    queue.commit_prepared("one")
    with refusing(storage, "remove", ".log"):
        queue.close()
    assert segments(queue) == [1]
    with open_queue(storage) as again:
        assert segments(again) == []
        assert waiting(again) == [b"new"]


def test_nothing_is_given_back_once_another_process_may_own_the_queue(
    storage: SimulatedStorage, queue: PersistentQueue, log: PreparedLog
) -> None:
    """The next owner reserves with it."""
    prepare(queue, "puts", "one")
    found = log.find("one")
    assert isinstance(found, Entry)
    queue.close()
    before = storage.tree()
    with pytest.raises(ClosedError):
        log.reserve_of(found).give_back()
    assert storage.tree() == before


# -- Replaced --------------------------------------------------------------------------------------------------------


def test_an_owner_that_was_replaced_begins_no_segment_and_removes_none(
    queue: PersistentQueue, log: PreparedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The segments of the other owner may have the same names, and what they hold was acknowledged."""
    handle = handle_of(queue)

    def fenced() -> None:
        raise FencedError("another owner has come")

    prepare(queue, "puts", "old")
    unused = PreparedLog(handle.storage, handle.directory, handle.queue_id, 2**14, fenced)
    with pytest.raises(FencedError):
        unused.append([b"new"], {}, record(1, 1))
    assert [each.id for each in read_waiting_entries(handle.storage, handle.directory, handle.queue_id).entries] == [
        "old"
    ]
    while segments(queue) != [1, 2]:
        prepare(queue, "puts", "filler", count=10)
        queue.abort_prepared("filler")
    found = log.find("old")
    assert found is not None
    log.end("old", found.nonce, OUTCOME_ABORTED, 0)
    monkeypatch.setattr(log, "_check_fence", fenced)
    with pytest.raises(FencedError):
        log.remove_ended()
    assert segments(queue) == [1, 2]
    assert not log.has_ended_segments


# -- Interrupted -----------------------------------------------------------------------------------------------------


def test_an_entry_that_was_written_is_in_doubt_though_its_append_was_interrupted(
    storage: SimulatedStorage, queue: PersistentQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its id could be used again, and after a restart the first one would come back under it."""
    tx = queue.begin()
    tx.put(b"new")
    once(monkeypatch, SegmentWriter, "append", first=False)
    with pytest.raises(KeyboardInterrupt):
        tx.prepare("one")
    assert prepared_ids(queue) == ["one"]
    later = queue.begin()
    later.put(b"new")
    with pytest.raises(TransactionStateError, match="is prepared"):
        later.prepare("one")
    queue.abort_prepared("one")
    with open_queue(kill(storage, queue)) as again:
        assert prepared_ids(again) == []


@pytest.mark.parametrize("first", [True, False])
def test_an_entry_that_was_noted_and_not_written_does_not_wait(
    storage: SimulatedStorage, queue: PersistentQueue, monkeypatch: pytest.MonkeyPatch, *, first: bool
) -> None:
    """Nothing of it is there: its id is free."""
    prepare(queue, "puts", "first")
    tx = queue.begin()
    tx.put(b"new")
    once(monkeypatch, PreparedLog, "_add", first=first)
    with pytest.raises(KeyboardInterrupt):
        tx.prepare("one")
    assert prepared_ids(queue) == ["first"]
    prepare(queue, "puts", "one")
    assert prepared_ids(queue) == ["first", "one"]


def test_an_entry_that_was_taken_back_does_not_wait(storage: SimulatedStorage, queue: PersistentQueue) -> None:
    """Its id is free again."""
    prepare(queue, "puts", "first")
    tx = queue.begin()
    tx.put(b"new")
    with refusing(storage, "write_at", ".log", KeyboardInterrupt(), count=1), pytest.raises(KeyboardInterrupt):
        tx.prepare("one")
    assert prepared_ids(queue) == ["first"]
    prepare(queue, "puts", "one")


@pytest.mark.parametrize("verb", ["close", "__init__"])
def test_a_segment_that_is_appended_to_is_not_removed_after_an_interrupted_turn(
    storage: SimulatedStorage, queue: PersistentQueue, log: PreparedLog, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """What is prepared next is there after a restart."""
    prepare(queue, "puts", "filler", count=10)
    queue.abort_prepared("filler")
    tx = queue.begin()
    tx.put_many([bytes(1000)] * 10)
    once(monkeypatch, SegmentWriter, verb, first=True)
    with pytest.raises(KeyboardInterrupt):
        tx.prepare("large")
    log.remove_ended()
    prepare(queue, "puts", "next")
    with open_queue(kill(storage, queue)) as again:
        assert prepared_ids(again) == ["next"]


def test_frames_that_another_thread_has_synced_stay_behind_an_interruption(
    storage: SimulatedStorage, queue: PersistentQueue, log: PreparedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taking them back would leave a hole below the synced end, and later entries that no sync looks at."""
    prepare(queue, "puts", "one")

    def synced_meanwhile(file: File, buffers: Sequence[bytes], position: int) -> None:
        monkeypatch.undo()
        write_whole(file, buffers, position)
        writer = log._writer
        assert writer is not None
        writer.end = position + sum(map(len, buffers))
        writer.sync()
        raise KeyboardInterrupt

    monkeypatch.setattr(segment_writer, "write_whole", synced_meanwhile)
    with pytest.raises(KeyboardInterrupt):
        log.append([b"new"], {}, record(2, 1, name="two"))
    prepare(queue, "puts", "three")
    with open_queue(cut_power(storage, queue)) as again:
        assert sorted(prepared_ids(again)) == ["one", "three", "two"]


@pytest.mark.parametrize(
    "errors", [(OSError(5, "refused"), KeyboardInterrupt()), (KeyboardInterrupt(), OSError(5, ""))]
)
def test_frames_that_can_not_be_taken_back_poison_the_log(
    queue: PersistentQueue, log: PreparedLog, monkeypatch: pytest.MonkeyPatch, errors: tuple[BaseException, ...]
) -> None:
    """What is on the disk is unknown: nothing is prepared until the queue is opened again."""
    prepare(queue, "puts", "one")
    left = list(errors)

    def refuse(*_: object) -> None:
        raise left.pop(0)

    with monkeypatch.context() as refusing_all:
        refusing_all.setattr(segment_writer, "write_whole", refuse)
        with pytest.raises((KeyboardInterrupt, CommitUnknownError)):
            log.append([b"new"], {}, record(2, 1, name="two"))
    assert not left
    with pytest.raises(PoisonedError):
        log.append([b"new"], {}, record(2, 1, name="two"))


def test_an_interrupted_sync_poisons_the_log(
    queue: PersistentQueue, log: PreparedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second one could succeed over what the first one has lost."""
    prepare(queue, "puts", "one")
    log.append([b"new"], {}, record(2, 1, name="two"))
    writer = log._writer
    assert writer is not None

    def interrupt() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as interrupted:
        interrupted.setattr(writer, "_check_fence", interrupt)
        with pytest.raises(KeyboardInterrupt):
            log.sync()
    with pytest.raises(PoisonedError):
        log.sync()
