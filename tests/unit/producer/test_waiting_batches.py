"""Batches in waiting when the disk refuses, or when somebody decides them meanwhile."""

import errno
from pathlib import Path

import pytest

from holdfast import PersistentQueue, PoisonedError, StorageError
from holdfast.persistence.segment.batch_file_reader import BatchSummary
from holdfast.queue.prepared import prepared_transactions
from holdfast.queue.producer.waiting_batches import WaitingBatches
from support.builders.handles import handle_of
from support.builders.transactions import ORDERS, kill, open_queue, prepare, prepared_ids, waiting
from support.processes.log_handlers import text_said
from support.storages.refusals import refusing
from support.storages.simulated_storage import SimulatedStorage


def prepare_in_file(queue: PersistentQueue) -> None:
    """Prepare one message in a file of its own, as streams are."""
    tx = queue.begin()
    tx.put_stream([b"new"])
    tx.prepare("t")


def in_doubt(storage: SimulatedStorage) -> SimulatedStorage:
    """Return what a kill leaves of a queue in which one message is prepared."""
    queue = open_queue(storage)
    prepare_in_file(queue)
    return kill(storage, queue)


def removing(storage: SimulatedStorage, verb: str, name: str = "t.batch") -> None:
    """Remove the batch just before ``verb`` is called on it: somebody else has decided it."""

    def remove(called: str, path: Path) -> None:
        if called == verb and path.name == name:
            storage.before_verb = None
            storage.remove(path)

    storage.before_verb = remove


def batches_of(queue: PersistentQueue) -> tuple[WaitingBatches, BatchSummary]:
    """Return the batches of a queue, and the one that waits."""
    batch = prepared_transactions.find_batch(handle_of(queue), "t")
    assert batch is not None
    return handle_of(queue).require_batches(), batch


# -- Looking -----------------------------------------------------------------------------------------------------------


def test_a_batch_that_is_decided_while_it_is_looked_for_is_not_in_doubt(storage: SimulatedStorage) -> None:
    """It was listed; a disk that refuses is another matter."""
    left = in_doubt(storage)
    with open_queue(left, mode="read_only") as queue:
        with refusing(left, "open", "t.batch"), pytest.raises(StorageError, match="reading a prepared transaction"):
            queue.prepared()
        assert prepared_ids(queue) == ["t"]
        removing(left, "open")
        assert prepared_ids(queue) == []


@pytest.mark.parametrize("mode", ["exclusive", "read_only"])
def test_damage_of_a_batch_that_is_decided_meanwhile_is_none(storage: SimulatedStorage, mode: str) -> None:
    """With a write side or without; a disk that refuses says so."""
    left = in_doubt(storage)
    with open_queue(left, mode=mode) as queue:
        batch = prepared_transactions.find_batch(handle_of(queue), "t")
        assert batch is not None
        with refusing(left, "open", "t.batch"), pytest.raises(StorageError, match="verifying"):
            prepared_transactions.find_damage(handle_of(queue), batch)
        left.remove(batch.path)
        assert prepared_transactions.find_damage(handle_of(queue), batch) == []


# -- Deciding ----------------------------------------------------------------------------------------------------------


def test_a_batch_for_which_the_log_has_no_room_becomes_a_part_of_it(storage: SimulatedStorage) -> None:
    """Committing what is prepared needs no room: its file is there."""
    left = in_doubt(storage)
    with open_queue(left) as queue:
        with refusing(left, "allocate", "next.data", errno.ENOSPC):
            assert queue.commit_prepared("t") == range(1)
        assert waiting(queue) == [b"new"]
        left = kill(left, queue)
    with open_queue(left) as again:
        assert (waiting(again), prepared_ids(again)) == ([b"new"], [])


def test_a_committed_batch_that_cannot_be_removed_is_committed_once(
    storage: SimulatedStorage, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says why it is there still; the next opening removes it."""
    with open_queue(storage) as queue:
        prepare_in_file(queue)
        with refusing(storage, "remove", "t.batch"):
            assert queue.commit_prepared("t") == range(1)
        assert "is committed and could not be removed" in text_said(caplog)
        left = kill(storage, queue)
    with open_queue(left) as again:
        assert (waiting(again), prepared_ids(again)) == ([b"new"], [])
    assert ORDERS / "prepared" / "t.batch" not in left.tree()


def test_a_committed_batch_that_cannot_be_removed_keeps_decisions_open_until_it_has_gone(
    storage: SimulatedStorage,
) -> None:
    """Who looks for what is in doubt finds it, and removes it."""
    with open_queue(storage) as queue:
        prepare_in_file(queue)
        with refusing(storage, "remove", "t.batch"):
            assert queue.commit_prepared("t") == range(1)
        prepared = handle_of(queue).require_batches().prepared
        assert not prepared.sync()
        assert prepared_ids(queue) == []
        assert prepared.sync()


def test_a_removal_is_durable_although_others_were_synced_just_before_it(storage: SimulatedStorage) -> None:
    """That sync was taken for this one's, and after a loss of power the batch was there again."""
    with open_queue(storage) as queue:
        prepare_in_file(queue)
        prepared = handle_of(queue).require_batches().prepared

        def sync_first(verb: str, path: Path) -> None:
            if verb == "remove" and path.name == "t.batch":
                storage.before_verb = None
                assert prepared.sync()

        storage.before_verb = sync_first
        queue.commit_prepared("t")
        assert storage.before_verb is None
        assert prepared.sync()
        assert ORDERS / "prepared" / "t.batch" not in storage.crash_dropping_unsynced().tree()


def test_a_committed_batch_whose_file_is_gone_is_committed(
    storage: SimulatedStorage, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is left to be removed."""
    with open_queue(storage) as queue:
        prepare_in_file(queue)
        removing(storage, "remove")
        assert queue.commit_prepared("t") == range(1)
        assert storage.before_verb is None
        assert "could not be removed" not in text_said(caplog)
        assert handle_of(queue).require_batches().prepared.sync()


def test_an_aborted_batch_that_cannot_be_removed_stays_in_doubt(storage: SimulatedStorage) -> None:
    """The caller is told, and may try again; one that is gone already is aborted."""
    with open_queue(storage) as queue:
        prepare_in_file(queue)
        with refusing(storage, "remove", "t.batch"), pytest.raises(StorageError, match="removing a batch"):
            queue.abort_prepared("t")
        assert ORDERS / "prepared" / "t.batch" in storage.tree()
        removing(storage, "remove")
        queue.abort_prepared("t")
        assert (prepared_ids(queue), waiting(queue)) == ([], [])


def test_a_removal_that_could_not_be_synced_keeps_decisions_open(storage: SimulatedStorage) -> None:
    """A second sync could succeed over what the first one has lost: it is for the next opening to see to."""
    with open_queue(storage) as queue:
        prepare_in_file(queue)
        batches, _ = batches_of(queue)
        assert batches.prepared.sync()
        with refusing(storage, "sync_directory", "prepared"):
            queue.abort_prepared("t")
        assert not batches.prepared.sync()
        for count in (1, 20):
            with pytest.raises(PoisonedError, match="Reopen the queue"):
                prepare(queue, "puts", "later", count=count)
        left = kill(storage, queue)
    with open_queue(left) as again:
        assert waiting(again) == []
        assert handle_of(again).require_batches().prepared.sync()
