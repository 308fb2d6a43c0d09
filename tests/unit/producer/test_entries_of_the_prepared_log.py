"""Entries of the prepared log when the disk refuses: committed on a full disk, moved, or ended without a word."""

import errno
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast import CommitUnknownError, PersistentQueue, Put, StorageError
from holdfast.persistence.filesystem.layout import list_batch_files
from holdfast.persistence.outcomes import outcome_log
from holdfast.persistence.prepared_log import prepared_log
from holdfast.persistence.prepared_log.entry import Entry
from holdfast.persistence.prepared_log.prepared_log import PreparedLog
from holdfast.persistence.prepared_log.segment_writer import SegmentWriter
from holdfast.queue.producer import waiting_batches
from holdfast.queue.transactions.transaction_state import State
from support.builders.handles import handle_of
from support.builders.transactions import cut_power, kill, open_queue, prepare, prepared_ids, waiting
from support.processes.log_handlers import text_said
from support.storages.refusals import full_till_space_is_given_back, refusing
from support.storages.simulated_storage import SimulatedStorage


def test_an_entry_for_which_the_log_has_no_room_becomes_a_part_of_it(storage: SimulatedStorage) -> None:
    """Committing what is prepared needs no room: its segment has some."""
    with open_queue(storage) as queue:
        prepare(queue, "puts", "t")
        with full_till_space_is_given_back(storage):
            assert queue.commit_prepared("t") == range(1)
        left = kill(storage, queue)
    with open_queue(left) as again:
        assert (waiting(again), prepared_ids(again)) == ([b"new"], [])


def test_an_end_that_could_not_be_noted_is_noted_later(
    storage: SimulatedStorage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One refusal of the disk keeps no commit record for good."""
    with open_queue(storage) as queue:
        prepare(queue, "puts", "t")
        prepared = handle_of(queue).require_batches().prepared

        def refuse(*_: object) -> None:
            raise StorageError("refused", path="")

        with monkeypatch.context() as refused:
            refused.setattr(SegmentWriter, "append", refuse)
            assert queue.commit_prepared("t") == range(1)
        assert "the prepared log could not note yet that t has ended" in text_said(caplog)
        assert prepared.sync()


def test_an_entry_that_is_committed_and_cannot_end_is_committed_once(
    storage: SimulatedStorage, caplog: pytest.LogCaptureFixture
) -> None:
    """Its commit record stays pending; the next opening removes it."""
    with open_queue(storage) as queue:
        prepare(queue, "puts", "t")
        with refusing(storage, "write_at", ".log"):
            assert queue.commit_prepared("t") == range(1)
        assert "the prepared log could not note yet that t has ended" in text_said(caplog)
        left = kill(storage, queue)
    with open_queue(left) as again:
        assert (waiting(again), prepared_ids(again)) == ([b"new"], [])


@pytest.mark.parametrize("verb", ["sync", "write_at"])
def test_an_abort_whose_end_the_disk_refuses_gives_back_what_was_taken(
    storage: SimulatedStorage, caplog: pytest.LogCaptureFixture, verb: str
) -> None:
    """It is remembered, durably: so it has happened, and no error says that it has not."""
    with open_queue(storage) as queue:
        queue.put(b"one")
        tx = prepare(queue, "both", "t")
        with refusing(storage, verb, ".log"):
            tx.abort()
        assert tx.state is State.ABORTED
        assert "could not note yet" in text_said(caplog) or "may be there again" in text_said(caplog)
        assert (waiting(queue), prepared_ids(queue)) == ([b"one"], [])
        left = cut_power(storage, queue)
    with open_queue(left) as again:
        assert (waiting(again), prepared_ids(again)) == ([b"one"], [])


def test_closing_waits_for_a_commit_of_another_thread(
    storage: SimulatedStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind it the next owner may have files of the same names, which are not to be removed."""
    queue = open_queue(storage)
    prepare(queue, "puts", "t")
    handle = handle_of(queue)
    prepared, closer = handle.require_batches().prepared, threading.Thread(target=queue.close)
    drop, seen = prepared.drop, list[bool]()

    def close_meanwhile(*arguments: Any) -> None:
        closer.start()
        while not handle.calls.is_over:
            time.sleep(0.001)
        closer.join(0.05)
        seen.append(closer.is_alive())
        drop(*arguments)

    monkeypatch.setattr(prepared, "drop", close_meanwhile)
    assert queue.commit_prepared("t") == range(1)
    closer.join(10)
    assert seen == [True]
    with open_queue(storage) as again:
        assert (waiting(again), prepared_ids(again)) == ([b"new"], [])


@pytest.mark.parametrize("error", [OSError(errno.EIO, "refused"), KeyboardInterrupt()])
def test_a_move_whose_name_cannot_be_synced_leaves_the_entry(
    storage: SimulatedStorage, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """Whether the batch file is there after a loss of power is unknown, and does not matter."""
    with open_queue(storage) as queue:
        prepare(queue, "puts", "t")
        batches = handle_of(queue).require_batches()
        entry = batches.prepared.log.find("t")
        assert isinstance(entry, Entry)

        def refuse(_: object) -> None:
            raise error

        with monkeypatch.context() as refused:
            refused.setattr(storage, "sync_directory", refuse)
            with pytest.raises(KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else CommitUnknownError):
                batches.move(entry)
        assert prepared_ids(queue) == ["t"]
        left = kill(storage, queue)
    with open_queue(left) as again:
        assert again.commit_prepared("t") == range(1)


@pytest.mark.parametrize("verb", ["commit", "abort"])
@pytest.mark.parametrize("is_named", [True, False])
def test_what_a_move_that_was_interrupted_leaves_is_decided_with_its_entry(
    storage: SimulatedStorage, monkeypatch: pytest.MonkeyPatch, verb: str, is_named: bool
) -> None:
    """Else its file is in doubt once more, when its outcome is forgotten."""
    monkeypatch.setattr(outcome_log, "OUTCOMES_MAX", 2)
    owner, name = (waiting_batches, "move_entry") if is_named else (PreparedLog, "end")
    whole = getattr(owner, name)

    def interrupted(*arguments: Any) -> None:
        if is_named:
            whole(*arguments)
        raise KeyboardInterrupt

    with open_queue(storage) as queue:
        prepare(queue, "puts", "t")
        handle = handle_of(queue)
        batches = handle.require_batches()
        entry = batches.prepared.log.find("t")
        assert isinstance(entry, Entry)
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, interrupted)
            with pytest.raises(KeyboardInterrupt):
                batches.move(entry)
        assert list(list_batch_files(storage, handle.directory)) == ["t"]
        assert batches.prepared.log.find("t") is entry
        getattr(queue, f"{verb}_prepared")("t")
        assert batches.prepared.sync()
        assert not list_batch_files(storage, handle.directory)
        for number in range(3):
            prepare(queue, "puts", f"other-{number}", count=20)
            queue.abort_prepared(f"other-{number}")
        handle.require_write_side()._record_ends.end_all()
        queue.flush()
        left = kill(storage, queue)
    with open_queue(left) as again:
        assert (waiting(again), prepared_ids(again)) == ([b"new"] if verb == "commit" else [], [])


def test_a_commit_that_cannot_remove_what_a_move_has_left_stands(
    storage: SimulatedStorage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its commit record stays pending, so the next opening does not take the file for another one."""
    with open_queue(storage) as queue:
        prepare(queue, "puts", "t")
        batches = handle_of(queue).require_batches()
        entry = batches.prepared.log.find("t")
        assert isinstance(entry, Entry)
        with monkeypatch.context() as patched:
            patched.setattr(PreparedLog, "end", interrupt)
            with pytest.raises(KeyboardInterrupt):
                batches.move(entry)
        with refusing(storage, "remove", ".batch"):
            assert queue.commit_prepared("t") == range(1)
        assert "a copy could not be removed" in text_said(caplog)
        assert not batches.prepared.sync()
        left = kill(storage, queue)
    with open_queue(left) as again:
        assert (waiting(again), prepared_ids(again)) == ([b"new"], [])


def interrupt(*_: object) -> None:
    """Be interrupted."""
    raise KeyboardInterrupt


def test_an_interrupted_move_leaves_no_file(storage: SimulatedStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it gets so far as to remove it; and no move that failed keeps commit records from ending."""
    with open_queue(storage) as queue:
        prepare(queue, "puts", "t")
        batches = handle_of(queue).require_batches()
        entry = batches.prepared.log.find("t")
        assert isinstance(entry, Entry)
        with refusing(storage, "close", ".staging", KeyboardInterrupt(), count=1), pytest.raises(KeyboardInterrupt):
            batches.move(entry)
        assert not list_batch_files(storage, handle_of(queue).directory)
        with refusing(storage, "open", ".staging", errno.ENOSPC), pytest.raises(StorageError):
            batches.move(entry)
        assert batches.prepared.sync()


def test_a_move_writes_into_nothing_that_an_earlier_one_has_left(storage: SimulatedStorage) -> None:
    """A sync has failed on it, so a second one could succeed over bytes that are lost."""
    with open_queue(storage) as queue:
        prepare(queue, "puts", "t")
        batches = handle_of(queue).require_batches()
        entry = batches.prepared.log.find("t")
        assert isinstance(entry, Entry)
        failed: list[str] = []

        def fail(verb: str, path: Path) -> None:
            if path.suffix == ".staging" and (verb == "sync" or (failed and verb == "remove")):
                failed.append(verb)
                raise OSError(errno.EIO, "refused", str(path))

        storage.before_verb = fail
        with pytest.raises(StorageError):
            batches.move(entry)
        storage.before_verb = None
        assert failed == ["sync", "remove"]
        batches.move(entry)
        assert batches.prepared.sync()
        left = cut_power(storage, queue)
    with open_queue(left) as again:
        assert again.commit_prepared("t") == range(1)
        assert waiting(again) == [b"new"]


def _prepare_two(queue: PersistentQueue, name: str) -> None:
    tx = queue.begin()
    tx.put_many([Put(b"one", headers={"a": "1"}), b"two"])
    tx.prepare(name)


def test_what_waits_for_a_short_time_is_not_read_again(storage: SimulatedStorage) -> None:
    """Its messages are in memory, with their headers."""
    with open_queue(storage) as queue:
        _prepare_two(queue, "t")
        called: list[tuple[str, str]] = []
        storage.before_verb = lambda verb, path: called.append((verb, path.suffix))
        assert queue.commit_prepared("t") == range(2)
        assert ("write_at", ".log") in called
        assert ("open", ".log") not in called
        assert [(each.payload, each.headers) for each in queue.receive_many(2)] == [(b"one", {"a": "1"}), (b"two", {})]


def test_memory_holds_messages_of_so_many_entries_until_they_are_decided(
    storage: SimulatedStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of others are read from their segment; what is decided makes room."""
    with open_queue(storage) as queue:
        _prepare_two(queue, "first")
        log = handle_of(queue).require_batches().prepared.log
        first = log.find("first")
        assert isinstance(first, Entry)
        monkeypatch.setattr(prepared_log, "KEPT_BYTES_MAX", first.end - first.position)
        _prepare_two(queue, "other")
        with refusing(storage, "open", ".log"):
            with pytest.raises(StorageError):
                queue.commit_prepared("other")
            queue.abort_prepared("first")
            _prepare_two(queue, "third")
            assert queue.commit_prepared("third") == range(2)
        assert queue.commit_prepared("other") == range(2, 4)
        assert waiting(queue) == [b"one", b"two"] * 2
