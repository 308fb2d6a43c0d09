"""Entries of the prepared log when the disk refuses: committed on a full disk, moved, or ended without a word."""

import errno

import pytest

from holdfast import CommitUnknownError, PersistentQueue, Put, StorageError
from holdfast.persistence.prepared_log import prepared_log
from holdfast.persistence.prepared_log.entry import Entry
from support.builders.handles import handle_of
from support.builders.transactions import kill, open_queue, prepare, prepared_ids, waiting
from support.processes.log_handlers import text_said
from support.storages.refusals import refusing
from support.storages.simulated_storage import SimulatedStorage


def test_an_entry_for_which_the_log_has_no_room_becomes_a_part_of_it(storage: SimulatedStorage) -> None:
    """Committing what is prepared needs no room: its segment has some."""
    with open_queue(storage) as queue:
        prepare(queue, "puts", "t")
        with refusing(storage, "allocate", "next.data", errno.ENOSPC):
            assert queue.commit_prepared("t") == range(1)
        left = kill(storage, queue)
    with open_queue(left) as again:
        assert (waiting(again), prepared_ids(again)) == ([b"new"], [])


def test_an_entry_that_is_committed_and_cannot_end_is_committed_once(
    storage: SimulatedStorage, caplog: pytest.LogCaptureFixture
) -> None:
    """Its commit record stays pending; the next opening removes it."""
    with open_queue(storage) as queue:
        prepare(queue, "puts", "t")
        with refusing(storage, "write_at", ".log"):
            assert queue.commit_prepared("t") == range(1)
        assert "the prepared log could not note it" in text_said(caplog)
        left = kill(storage, queue)
    with open_queue(left) as again:
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
