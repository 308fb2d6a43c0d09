"""What a transaction may do when: verbs in the wrong state, and what the errors say."""

import random
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

import holdfast
from holdfast import (
    CommitUnknownError,
    Delivery,
    Empty,
    PersistentQueue,
    PoisonedError,
    QueuesTransaction,
    Transaction,
    TransactionStateError,
)
from holdfast.queue.transactions.transaction_state import TRANSITIONS, State, next_state
from support.builders.transactions import INVOICES, ORDERS, cut_power, open_queue, waiting
from support.storages.faults import FaultPlan
from support.storages.simulated_storage import SimulatedStorage

Verb = Callable[[Transaction], object]

WORK: dict[str, Verb] = {
    "put": lambda tx: tx.put(b"x"),
    "put_many": lambda tx: tx.put_many([b"x"]),
    "put_stream": lambda tx: tx.put_stream([b"x"]),
    "receive": lambda tx: tx.receive(timeout=0),
    "ack": lambda tx: tx.ack([]),
    "prepare": lambda tx: tx.prepare(),
}


@pytest.fixture
def queue(storage: SimulatedStorage) -> Iterator[PersistentQueue]:
    """Open a queue of two messages."""
    with open_queue(storage) as opened:
        opened.put_many([b"one", b"two"])
        yield opened


def begin(queue: PersistentQueue) -> tuple[Transaction, Delivery]:
    """Return a transaction that puts and acknowledges."""
    tx = queue.begin()
    message = tx.receive(timeout=0)
    tx.ack(message)
    tx.put(b"new")
    return tx, message


def refused(tx: Transaction, verbs: dict[str, Verb]) -> None:
    """Check that each verb names itself, the transaction and its state, and changes nothing."""
    state = tx.state
    for name, verb in verbs.items():
        with pytest.raises(TransactionStateError, match=f"is {state.value}.*no {name};") as error:
            verb(tx)
        assert (error.value.transaction, error.value.state) == (tx.id, state.value)
        assert tx.id in str(error.value)
    assert tx.state is state


def test_a_committed_transaction_takes_nothing_but_another_commit(queue: PersistentQueue) -> None:
    """Which returns the same and does nothing."""
    tx, _ = begin(queue)
    assert tx.commit() == tx.commit() == range(2, 3)
    refused(tx, WORK | {"abort": lambda tx: tx.abort()})
    assert waiting(queue) == [b"two", b"new"]


def test_an_aborted_transaction_takes_nothing_but_another_abort(queue: PersistentQueue) -> None:
    """Its messages are ready again, once."""
    tx, _ = begin(queue)
    tx.abort()
    tx.abort()
    refused(tx, WORK | {"commit": lambda tx: tx.commit()})
    assert waiting(queue) == [b"one", b"two"]


def test_a_prepared_transaction_can_only_be_decided(queue: PersistentQueue) -> None:
    """Once, and the same way again."""
    tx, _ = begin(queue)
    tx.prepare("t")
    refused(tx, WORK)
    assert waiting(queue) == [b"two"]
    assert tx.commit() == tx.commit() == range(2, 3)
    refused(tx, WORK | {"abort": lambda tx: tx.abort()})
    other, _ = begin(queue)
    other.prepare("t")
    other.abort()
    other.abort()
    refused(other, WORK | {"commit": lambda tx: tx.commit()})


@pytest.mark.parametrize("name", WORK)
def test_the_end_of_a_queue_says_why_verbs_are_refused(queue: PersistentQueue, name: str) -> None:
    """An open transaction is aborted when its queue closes."""
    tx, _ = begin(queue)
    queue.close()
    with pytest.raises(TransactionStateError, match=f"is aborted .its queue was closed.: no {name};"):
        WORK[name](tx)
    with pytest.raises(TransactionStateError, match="its queue was closed"):
        tx.commit()
    tx.abort()


def test_a_failed_sync_leaves_the_transaction_unknown(queue: PersistentQueue, storage: SimulatedStorage) -> None:
    """All or nothing of it is there after reopening; until then every verb says that nobody knows."""
    tx, message = begin(queue)
    storage.faults = FaultPlan(1, verbs=frozenset({"sync"}))
    with pytest.raises(CommitUnknownError):
        tx.commit()
    storage.faults = None
    assert tx.state is State.UNKNOWN
    refused(tx, WORK | {"commit": lambda tx: tx.commit(), "abort": lambda tx: tx.abort()})
    with pytest.raises(TransactionStateError, match="reopen the queue"):
        tx.commit()
    with pytest.raises(TransactionStateError):
        message.nack()
    with pytest.raises(PoisonedError):
        queue.put(b"x")
    with open_queue(cut_power(storage, queue)) as reopened:
        assert waiting(reopened) in ([b"one", b"two"], [b"two", b"new"])


@pytest.mark.parametrize("count", [1, 100], ids=["in memory", "in a file"])
@pytest.mark.parametrize("at", range(1, 4))
def test_a_commit_that_cannot_be_written_aborts(
    queue: PersistentQueue, storage: SimulatedStorage, at: int, count: int
) -> None:
    """Nothing has happened, now or after a power loss; the queue continues."""
    tx, _ = begin(queue)
    tx.put_many([bytes(1000)] * count)
    storage.faults = plan = FaultPlan(at, error=28, forever=True, verbs=frozenset({"write_at", "allocate"}))
    try:
        tx.commit()
        left = [b"two", b"new", *[bytes(1000)] * count]
    except holdfast.DiskFullError:
        left = [b"one", b"two"]
        assert tx.state is State.ABORTED
        with pytest.raises(TransactionStateError, match="commit failed"):
            tx.commit()
    storage.faults = None
    assert plan.fired_count or at > 1
    assert waiting(queue) == left
    queue.put(b"after")
    with open_queue(cut_power(storage, queue)) as reopened:
        assert waiting(reopened) == [*left, b"after"]


@pytest.mark.parametrize("count", [1, 100], ids=["in memory", "in a file"])
def test_a_queue_that_was_shut_down_takes_no_transaction_with_puts(queue: PersistentQueue, count: int) -> None:
    """It is aborted; one that only acknowledges still commits."""
    tx, _ = begin(queue)
    tx.put_many([bytes(1000)] * count)
    other = queue.begin()
    other.ack(other.receive(timeout=0))
    queue.shutdown()
    with pytest.raises(holdfast.ShutDown):
        tx.commit()
    assert tx.state is State.ABORTED
    other.commit()
    assert waiting(queue) == [b"one"]


@pytest.mark.parametrize("size", [10, 20_000], ids=["in memory", "in a file"])
def test_a_put_that_fails_adds_nothing(queue: PersistentQueue, storage: SimulatedStorage, size: int) -> None:
    """The transaction continues with what it had."""
    tx = queue.begin()
    tx.put_many([b"first" * 2000])
    storage.faults = FaultPlan(1, error=28, forever=True)
    try:
        tx.put(bytes(size), headers={"size": str(size)})
        added = [bytes(size)]
    except holdfast.DiskFullError:
        added = []
    storage.faults = None
    assert bool(added) == (size == 10)
    tx.put(b"last")
    tx.commit()
    assert waiting(queue) == [b"one", b"two", b"first" * 2000, *added, b"last"]


@pytest.mark.parametrize("verb", ["write_at", "sync", "open", "rename", "sync_directory", "allocate"])
@pytest.mark.parametrize("at", range(1, 4))
def test_a_failed_prepare_aborts(queue: PersistentQueue, storage: SimulatedStorage, verb: str, at: int) -> None:
    """Whatever fails; what was taken is ready again, and the id is free."""
    tx, _ = begin(queue)
    storage.faults = plan = FaultPlan(at, error=5, verbs=frozenset({verb}))
    expected = State.PREPARED
    try:
        tx.prepare("t")
    except CommitUnknownError:
        expected = State.UNKNOWN
    except holdfast.StorageError:
        expected = State.ABORTED
    storage.faults = None
    assert tx.state is expected
    assert bool(plan.fired_count) == (expected is not State.PREPARED)
    if plan.fired_count:
        with pytest.raises(TransactionStateError, match=r"prepare failed|reopen the queue"):
            tx.commit()
        left = [b"one", b"two"]
    else:
        tx.commit()
        left = [b"two", b"new"]
    with open_queue(cut_power(storage, queue)) as reopened:
        assert reopened.prepared() == []
        assert waiting(reopened) == left
        with reopened.transaction() as tx:
            tx.put(b"again")
            tx.prepare("t")


@pytest.mark.parametrize("at", range(1, 24))
def test_a_prepare_that_fails_for_good_is_all_or_nothing(storage: SimulatedStorage, at: int) -> None:
    """Where not even letting go can be noted nobody knows: after reopening it is in doubt, or not there at all."""
    queue = open_queue(storage)
    queue.put_many([b"one", b"two"])
    tx, _ = begin(queue)
    storage.faults = plan = FaultPlan(at, forever=True)
    with suppress(holdfast.StorageError):
        tx.prepare("t")
    assert tx.state in (State.ABORTED, State.UNKNOWN) if plan.fired_count else (State.PREPARED,)
    storage.faults = None
    left = storage.random_crash(random.Random(at))
    with suppress(holdfast.HoldfastError):
        queue.close()
    with open_queue(left) as queue:
        if queue.prepared():
            assert tx.state in (State.UNKNOWN, State.PREPARED)
            queue.abort_prepared("t")
        assert waiting(queue) == [b"one", b"two"]


def test_an_id_that_cannot_be_leaves_the_transaction_open(queue: PersistentQueue) -> None:
    """Names are those of groups."""
    tx, _ = begin(queue)
    for name in ("", ".hidden", "a/b", "../up", "ü", "x" * 101, "a b"):
        with pytest.raises(holdfast.ConfigError):
            tx.prepare(name)
    assert tx.prepare("A-z.0_9" + "x" * 93) == tx.id == "A-z.0_9" + "x" * 93


def test_reprs_say_the_state(queue: PersistentQueue, storage: SimulatedStorage) -> None:
    """And which queue, and how many."""
    tx, _ = begin(queue)
    assert repr(tx) == f"<Transaction {tx.id} of {ORDERS}: open>"
    tx.commit()
    assert repr(tx).endswith("committed>")
    with open_queue(storage, INVOICES) as other:
        both = holdfast.transaction(queue, other)
        assert isinstance(both, QueuesTransaction)
        assert repr(both) == f"<QueuesTransaction {both.id} of 2 queues: open>"


def test_the_table_is_closed_and_final_states_are_final() -> None:
    """A transaction that was decided is never anything else; nobody leaves the unknown but by reopening."""
    assert {state for state, _ in TRANSITIONS} == set(TRANSITIONS.values()) == set(State)
    for (state, verb), following in TRANSITIONS.items():
        assert next_state(state, verb, "t") is following
        if state in (State.COMMITTED, State.ABORTED, State.UNKNOWN):
            assert following is state
    with pytest.raises(TransactionStateError):
        next_state(State.OPEN, "no such verb", "t")


def test_waiting_for_nothing_is_no_end(queue: PersistentQueue) -> None:
    """Empty leaves a transaction open."""
    queue.get_many(2)
    tx = queue.begin()
    with pytest.raises(Empty):
        tx.receive(timeout=0.01)
    with pytest.raises(ValueError, match="at least 0"):
        tx.receive(timeout=-1)
    tx.put(b"new")
    assert tx.commit() == range(2, 3)
