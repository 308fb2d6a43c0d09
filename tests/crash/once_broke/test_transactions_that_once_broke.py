"""Faults and crashes that once doubled, lost or halved a transaction, each as the shortest run that shows it."""

import errno
import logging
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast import CommitUnknownError, FlushPolicy, HoldfastError, TransactionStateError, transaction
from holdfast.clock import SystemClock
from holdfast.persistence.filesystem.file_names import finish_naming, name_again
from holdfast.persistence.format.commit_record import Participant
from holdfast.persistence.outcomes.redo import has_settled
from holdfast.queue.transactions.transaction_state import State
from support.builders.handles import handle_of
from support.builders.transactions import prepared_ids, waiting
from support.storages.faults import FaultPlan
from support.storages.simulated_storage import SimulatedStorage
from support.workloads.transaction_runs import LARGE, open_queue

POLICY = FlushPolicy.every_commit()


@pytest.fixture(autouse=True)
def _silence(caplog: pytest.LogCaptureFixture) -> None:
    """What fails here is logged."""
    caplog.set_level(logging.CRITICAL, "holdfast")


@pytest.fixture
def storage() -> SimulatedStorage:
    """Two queues; "a" holds two messages, and both have been read from."""
    storage = SimulatedStorage()
    for name in ("a", "b"):
        with open_queue(storage, name, POLICY) as queue:
            queue.put_many([b"zero", b"one", b"two"])
            assert queue.get(timeout=0) == b"zero"
    return storage


def test_a_prepared_file_that_cannot_be_removed_is_committed_once(storage: SimulatedStorage) -> None:
    """The log has decided it: it is not in doubt any more, and no verdict does anything."""
    with open_queue(storage, "a", POLICY) as queue:
        tx = queue.begin()
        tx.put_stream([b"new"])
        tx.ack(tx.receive(timeout=0))
        tx.prepare("t")
        storage.faults = FaultPlan(1, errno.EIO, verbs=frozenset({"remove"}))
        offsets = queue.commit_prepared("t")
        assert prepared_ids(queue) == []
        assert queue.commit_prepared("t") == offsets
        with pytest.raises(TransactionStateError):
            queue.abort_prepared("t")
        assert waiting(queue) == [b"two", b"new"]
    with open_queue(storage, "a", POLICY) as queue:
        assert (waiting(queue), prepared_ids(queue)) == ([b"two", b"new"], [])


def test_the_file_of_a_participant_that_cannot_be_removed_is_committed_once(storage: SimulatedStorage) -> None:
    """Looking for what is in doubt put it into the log once more."""
    with open_queue(storage, "a", POLICY) as a, open_queue(storage, "b", POLICY) as b:
        tx = transaction(a, b)
        tx.put(a, b"new a")
        tx.put(b, b"new b")
        storage.faults = FaultPlan(1, errno.EIO, verbs=frozenset({"remove"}))
        tx.commit()
        assert prepared_ids(b) == []
        assert waiting(b) == [b"one", b"two", b"new b"]


def test_nobody_follows_a_decision_before_it_is_known_to_be_on_the_disk(storage: SimulatedStorage) -> None:
    """The coordinator's sync fails: who votes stays in doubt, and follows what the disk says after a reopening."""
    with open_queue(storage, "a", POLICY) as a:
        b = open_queue(storage, "b", POLICY)
        tx = transaction(b, a)
        tx.put(b, b"new")
        tx.ack(a, tx.receive(a, timeout=0))
        storage.faults = FaultPlan(2, errno.EIO, verbs=frozenset({"sync"}))  # the first one is that of the vote
        with pytest.raises(CommitUnknownError):
            tx.commit()
        assert len(prepared_ids(a)) == 1
        without_power = storage.crash_dropping_unsynced()
        b.close()
    for left, one_is_there in ((without_power, True), (storage.crash_keeping_all(), False)):
        with open_queue(left, "a", POLICY) as a, open_queue(left, "b", POLICY) as b:
            assert prepared_ids(a) == prepared_ids(b) == []
            assert waiting(a) == ([b"one", b"two"] if one_is_there else [b"two"])
            assert waiting(b) == ([b"one", b"two"] if one_is_there else [b"one", b"two", b"new"])


def test_an_undecided_decision_that_cannot_be_taken_back_is_no_abort(storage: SimulatedStorage) -> None:
    """Its bytes may stand in the log: whoever voted stays in doubt."""
    with open_queue(storage, "a", POLICY) as a:
        b = open_queue(storage, "b", POLICY)
        tx = transaction(b, a)
        tx.put(b, b"new")
        tx.ack(a, tx.receive(a, timeout=0))
        b.put(b"makes the data file, so that the decision needs one write")
        writes = frozenset({"write_at", "truncate"})
        storage.faults = FaultPlan(2, errno.EIO, forever=True, verbs=writes)  # the first one is that of the vote
        with pytest.raises(CommitUnknownError):
            tx.commit()
        storage.faults = None
        assert len(prepared_ids(a)) == 1
        b.close()


@pytest.mark.parametrize("is_prepared", [False, True])
def test_an_error_after_a_commit_does_not_say_that_nothing_happened(
    storage: SimulatedStorage, is_prepared: bool
) -> None:
    """A handle once read the end of the log behind its acknowledgement, and that can fail; now a file that begins."""
    with open_queue(storage, "a", POLICY, mode="exclusive") as queue:
        tx = queue.begin()
        tx.ack(tx.receive(timeout=0))
        if is_prepared:
            tx.prepare("t")
        plan = storage.faults = FaultPlan(1, errno.EIO, verbs=frozenset({"read_at"}))
        with suppress(HoldfastError):
            tx.commit()
        state = tx.state
        assert plan.fired_count == 1
    with open_queue(storage, "a", POLICY) as queue:
        is_committed = waiting(queue) == [b"two"] and not queue.prepared()
        assert state is State.UNKNOWN or is_committed == (state is State.COMMITTED)


@pytest.mark.parametrize("in_file", [False, True])
@pytest.mark.parametrize("at", range(1, 6))
def test_an_interrupted_prepare_never_leaves_puts_without_their_acknowledgements(
    storage: SimulatedStorage, at: int, in_file: bool
) -> None:
    """The vote was let go of while the file in ``prepared/`` stayed."""
    queue = open_queue(storage, "a", POLICY)
    tx = queue.begin()
    if in_file:
        tx.put_stream([b"new"])
    else:
        tx.put(b"new")
    tx.ack(tx.receive(timeout=0))
    storage.faults = FaultPlan(at, KeyboardInterrupt(), verbs=frozenset({"sync_directory"}))
    with suppress(KeyboardInterrupt):
        tx.prepare("t")
    storage.faults = None
    queue.close()
    with open_queue(storage, "a", POLICY) as queue:
        assert [(each.put_count, each.ack_count) for each in queue.prepared()] in ([], [(1, 1)])


def test_an_abort_whose_directory_could_not_be_synced_stays_an_abort(storage: SimulatedStorage) -> None:
    """Its file comes back after the loss of power, without its vote; what is remembered says what became of it."""
    queue = open_queue(storage, "a", POLICY)
    tx = queue.begin()
    tx.put_stream([b"new"])
    tx.ack(tx.receive(timeout=0))
    tx.prepare("t")
    storage.faults = FaultPlan(1, errno.EIO, verbs=frozenset({"sync_directory"}))
    queue.abort_prepared("t")
    left = storage.crash_keeping_all()
    queue.close()
    open_queue(left, "a", POLICY).close()
    with open_queue(left.crash_dropping_unsynced(), "a", POLICY) as queue:
        assert prepared_ids(queue) == []
        assert waiting(queue) == [b"one", b"two"]


def test_a_batch_adopted_by_a_killed_process_is_durable_once_it_was_seen(storage: SimulatedStorage) -> None:
    """The kill came between renaming the file into ``data/`` and syncing that."""
    queue = open_queue(storage, "a", POLICY)
    tx = queue.begin()
    tx.put_many([bytes(LARGE), bytes(LARGE)])
    tx.ack(tx.receive(timeout=0))
    tx.prepare("t")
    storage.faults = FaultPlan(1, errno.EIO, forever=True, verbs=frozenset({"sync_directory"}))
    with pytest.raises(CommitUnknownError):
        queue.commit_prepared("t")
    left = storage.crash_keeping_all()
    queue.close()
    with open_queue(left, "a", POLICY) as queue:
        assert (len(waiting(queue)), prepared_ids(queue)) == (3, [])
    with open_queue(left.crash_dropping_unsynced(), "a", POLICY) as queue:
        assert (len(waiting(queue)), prepared_ids(queue)) == (3, [])


def test_a_coordinator_ends_only_when_an_adopted_part_cannot_go_back(storage: SimulatedStorage) -> None:
    """A participant that is killed behind its rename has committed, though not durably: asking makes it durable."""
    with open_queue(storage, "b", POLICY) as queue:
        tx = queue.begin()
        tx.put_many([bytes(LARGE), bytes(LARGE)])
        tx.prepare("t")
        queue_id = handle_of(queue).queue_id
    storage.rename(Path("/b/prepared/t.batch"), Path("/b/data/somewhere"))
    assert has_settled(storage, Path("/a"), SystemClock(), Participant("../b", queue_id), bytes(16))
    assert "somewhere" in storage.crash_dropping_unsynced().list(Path("/b/data"))


def test_what_a_failed_sync_has_left_is_durable_once_it_was_recovered(storage: SimulatedStorage) -> None:
    """Its size too: writing the same bytes in the same place gives a file no new one."""
    queue = open_queue(storage, "a", POLICY)
    storage.faults = FaultPlan(1, errno.EIO, verbs=frozenset({"sync"}))
    with pytest.raises(CommitUnknownError):
        queue.put(b"unknown")
    queue.close()
    left = storage.crash_keeping_all()
    with open_queue(left, "a", POLICY) as queue:
        shown = waiting(queue)
    with open_queue(left.crash_dropping_unsynced(), "a", POLICY) as queue:
        assert waiting(queue) == shown


@pytest.mark.parametrize("at", range(1, 9))
def test_a_position_file_whose_sync_failed_is_not_used_again(storage: SimulatedStorage, at: int) -> None:
    """A sync may say that the disk is full: the second attempt to begin could succeed over what was lost."""
    with open_queue(storage, "c", POLICY) as queue:
        queue.put_many([b"one", b"two"])
        storage.faults = FaultPlan(at, errno.ENOSPC, verbs=frozenset({"sync"}))
        taken = []
        with suppress(HoldfastError):
            taken.append(queue.get(timeout=0))
        storage.faults = None
    with open_queue(storage.crash_dropping_unsynced(), "c", POLICY) as queue:
        assert waiting(queue) == [each for each in (b"one", b"two") if each not in taken] or not taken
        assert not queue.recovery.progress_damage


def test_a_file_that_was_being_named_again_is_found(storage: SimulatedStorage) -> None:
    """A crash between the two renames leaves it beside its name."""
    directory = Path("/a/data")
    (name,) = storage.list(directory)
    storage.rename(directory / name, directory / f"{name}.again")
    with open_queue(storage, "a", POLICY) as queue:
        assert waiting(queue) == [b"one", b"two"]
    name_again(storage, directory / name)
    finish_naming(storage, directory)
    assert name in storage.list(directory)


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_coordinator_does_not_rely_on_a_sync_behind_one_that_failed(
    storage: SimulatedStorage, is_closed: bool
) -> None:
    """The participant's outcome may be lost though a second sync succeeds: the decision has to wait for it."""
    a, b = open_queue(storage, "a", POLICY), open_queue(storage, "b", POLICY)
    tx = transaction(a, b)
    tx.ack(a, tx.receive(a, timeout=0))
    tx.put(b, b"new")
    tx.commit()
    storage.faults = FaultPlan(1, errno.EIO, verbs=frozenset({"sync"}))
    with pytest.raises(HoldfastError):
        a.flush()
    storage.faults = None
    if is_closed:
        a.close()
    b.close()
    with open_queue(storage, "b", POLICY) as b:
        b.put(b"later")
    left = storage.crash_dropping_unsynced()
    with open_queue(left, "b", POLICY) as b, open_queue(left, "a", POLICY) as a:
        assert (waiting(a), waiting(b)) == ([b"two"], [b"one", b"two", b"new", b"later"])


def test_a_participants_file_that_comes_back_is_not_committed_again(storage: SimulatedStorage) -> None:
    """The sync behind its removal had failed; its coordinator still says that it is committed."""
    a, b = open_queue(storage, "a", POLICY), open_queue(storage, "b", POLICY)
    tx = transaction(a, b)
    tx.put(a, b"new a")
    tx.put(b, b"new b")
    tx.commit()
    storage.faults = FaultPlan(1, errno.EIO, verbs=frozenset({"sync_directory"}))
    with pytest.raises(HoldfastError):
        handle_of(b).require_batches().prepared.sync()
    storage.faults = None
    b.close()
    with open_queue(storage, "b", POLICY) as b:
        b.put(b"later")
    left = storage.crash_dropping_unsynced()
    with open_queue(left, "a", POLICY) as a, open_queue(left, "b", POLICY) as b:
        assert (waiting(a), waiting(b)) == ([b"one", b"two", b"new a"], [b"one", b"two", b"new b", b"later"])
        assert prepared_ids(b) == []
