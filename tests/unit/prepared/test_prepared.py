"""Prepared transactions: durable and undecided, over every restart, until somebody decides."""

from collections.abc import Iterator

import pytest

from holdfast import (
    PersistentQueue,
    StaleReceiptError,
    TransactionNotFoundError,
    TransactionStateError,
    UsageError,
)
from holdfast.queue.transactions.transaction_state import State
from support.builders.clocks import FakeClock
from support.builders.transactions import (
    KINDS,
    after,
    cut_power,
    failing,
    kill,
    open_queue,
    prepare,
    prepared_ids,
    waiting,
)
from support.storages.simulated_storage import SimulatedStorage

LARGE = 30  # messages of 1,000 bytes: more than a quarter of a data file


@pytest.fixture
def queue(storage: SimulatedStorage) -> Iterator[PersistentQueue]:
    """Open a queue of three messages."""
    with open_queue(storage) as opened:
        opened.put_many([b"one", b"two", b"three"])
        yield opened


# -- While it is prepared --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("crash", [kill, cut_power])
@pytest.mark.parametrize("kind", KINDS)
def test_it_stays_in_doubt_over_every_restart(storage: SimulatedStorage, kind: str, crash: type) -> None:
    """Its messages stay taken and its puts invisible; a loss of power changes nothing."""
    queue = open_queue(storage)
    queue.put_many([b"one", b"two", b"three"])
    prepare(queue, kind)
    for _ in range(3):
        left = after(kind, committed=True)[:3] if kind != "puts" else [b"one", b"two", b"three"]
        left = [payload for payload in left if payload != b"new"]
        assert waiting(queue) == left
        assert prepared_ids(queue) == [kind]
        assert queue.qsize() == len(left)
        assert queue.stats().depth == 3
        assert queue.stats().in_flight == 3 - len(left)
        storage = crash(storage, queue)
        queue = open_queue(storage)
    queue.commit_prepared(kind)
    assert waiting(queue) == after(kind, committed=True)
    queue.close()


def test_it_is_described(storage: SimulatedStorage) -> None:
    """With its age, and how much it puts and acknowledges; the oldest first."""
    clock = FakeClock()
    with open_queue(storage, clock=clock) as queue:
        queue.put_many([b"one", b"two", b"three"])
        prepare(queue, "both", "z")
        clock.advance(5)
        tx = queue.begin()
        tx.ack([tx.receive(timeout=0), tx.receive(timeout=0)])
        tx.prepare("a")
        clock.advance(1)
    with open_queue(storage, clock=clock) as queue:
        first, second = queue.prepared()
        assert (first.id, first.age_seconds, first.put_count, first.ack_count) == ("z", 6, 1, 1)
        assert (second.id, second.age_seconds, second.put_count, second.ack_count) == ("a", 1, 0, 2)
        assert first.size_bytes >= 3
        assert second.size_bytes == 0
        assert (first.coordinator, first.damage) == (None, ())
        clock.set_time_ns(0)
        assert [each.age_seconds for each in queue.prepared()] == [0, 0]


def test_what_was_received_and_not_acknowledged_is_given_back_at_prepare(queue: PersistentQueue) -> None:
    """It is not part of what waits for a verdict."""
    tx = queue.begin()
    first, second = tx.receive(timeout=0), tx.receive(timeout=0)
    tx.ack(second)
    tx.prepare("t")
    assert waiting(queue) == [b"one", b"three"]
    for message in (first, second):
        with pytest.raises(StaleReceiptError):
            message.ack()
    tx.abort()
    assert waiting(queue) == [b"one", b"two", b"three"]


def test_messages_it_holds_keep_their_data_file(storage: SimulatedStorage) -> None:
    """Whatever is finished around them."""
    with open_queue(storage) as queue:
        queue.put(b"held")
        prepare(queue, "acks", "t")
        for _ in range(4):
            queue.put_many([bytes(1000)] * 40)
            queue.get_many(40)
        assert queue.stats().first_offset == 0
        queue.abort_prepared("t")
        assert queue.get(timeout=0) == b"held"
        assert queue.stats().first_offset > 0


def test_several_wait_side_by_side(queue: PersistentQueue) -> None:
    """And are decided in any order, in this process and a later one."""
    first = prepare(queue, "both", "first")
    prepare(queue, "acks", "second")
    third = prepare(queue, "puts", "third")
    with queue.transaction() as tx:
        tx.put(b"meanwhile")
    third.abort()
    queue.commit_prepared("second")
    assert first.commit() == range(4, 5)
    assert waiting(queue) == [b"three", b"meanwhile", b"new"]


# -- Deciding --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("crash", [kill, cut_power])
@pytest.mark.parametrize("commits", [True, False], ids=["commit", "abort"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, LARGE], ids=["small", "large"])
def test_deciding_is_idempotent_and_survives(
    storage: SimulatedStorage, kind: str, commits: bool, crash: type, count: int
) -> None:
    """The same verdict again is answered the same, the other one is refused; after restarts too."""
    queue = open_queue(storage)
    queue.put_many([b"one", b"two", b"three"])
    prepare(queue, kind, "t", count=count)
    offsets = range(3, 3 + (count if kind != "acks" else 0))
    for turn in range(3):
        if commits:
            assert queue.commit_prepared("t") == queue.commit_prepared("t")
            assert kind == "acks" or queue.commit_prepared("t") == offsets
            with pytest.raises(TransactionStateError, match="was committed") as error:
                queue.abort_prepared("t")
            assert error.value.state == "committed"
        else:
            queue.abort_prepared("t")
            queue.abort_prepared("t")
            with pytest.raises(TransactionStateError, match="was aborted"):
                queue.commit_prepared("t")
        assert queue.prepared() == []
        assert [payload[:5].strip() for payload in waiting(queue)] == [
            *after(kind, committed=commits)[: 3 - (commits and kind != "puts")],
            *[b"new"] * (len(offsets) if commits else 0),
        ]
        storage = (crash if turn else cut_power)(storage, queue)
        queue = open_queue(storage)
    queue.close()


@pytest.mark.parametrize("kind", KINDS)
def test_its_own_handle_and_the_queue_decide_the_same(queue: PersistentQueue, kind: str) -> None:
    """Whoever comes second is told, whichever way."""
    tx = prepare(queue, kind, "t")
    offsets = queue.commit_prepared("t")
    assert tx.commit() == offsets
    tx = prepare(queue, kind, "u")
    queue.abort_prepared("u")
    with pytest.raises(TransactionStateError, match="was aborted"):
        tx.commit()
    tx.abort()
    assert tx.state is State.ABORTED


def test_a_transaction_decides_itself_and_not_another_one_of_its_id(queue: PersistentQueue) -> None:
    """Its id may stand for another one by now."""
    old = prepare(queue, "puts", "t")
    queue.abort_prepared("t")
    new = queue.begin()
    new.put(b"of the new one")
    new.prepare("t")
    with pytest.raises(TransactionStateError, match="was aborted"):
        old.commit()
    old.abort()
    assert prepared_ids(queue) == ["t"]
    assert new.commit() == range(3, 4)


@pytest.mark.parametrize("kind", KINDS)
def test_an_exception_in_its_block_aborts_it_and_a_clean_end_commits_it(queue: PersistentQueue, kind: str) -> None:
    """Also once it is prepared."""
    with failing(), queue.transaction() as tx:
        tx.ack(tx.receive(timeout=0))
        tx.prepare()
        raise ZeroDivisionError
    assert waiting(queue) == [b"one", b"two", b"three"]
    with queue.transaction() as tx:
        tx.put(b"new")
        tx.prepare()
    assert waiting(queue) == [b"one", b"two", b"three", b"new"]


def test_an_empty_one_can_be_prepared_and_decided(queue: PersistentQueue) -> None:
    """Whoever coordinates many need not know which have nothing to do."""
    tx = queue.begin()
    tx.prepare("t")
    assert [(each.put_count, each.ack_count) for each in queue.prepared()] == [(0, 0)]
    assert queue.commit_prepared("t") == range(3, 3)
    assert waiting(queue) == [b"one", b"two", b"three"]


def test_an_unknown_id_is_not_found(queue: PersistentQueue) -> None:
    """The error names it."""
    for call in (queue.commit_prepared, queue.abort_prepared):
        with pytest.raises(TransactionNotFoundError, match="'nothing'") as error:
            call("nothing")
        assert error.value.id == "nothing"


def test_names_that_cannot_be_ids_are_not_looked_for(queue: PersistentQueue) -> None:
    """They name no file."""
    for name in ("../queue.json", "a/b", "", ".x"):
        with pytest.raises((TransactionNotFoundError, UsageError)):
            queue.commit_prepared(name)
