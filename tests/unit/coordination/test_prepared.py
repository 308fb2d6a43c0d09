"""Prepared transactions: durable and undecided, over every restart, until somebody decides."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import (
    Full,
    PersistentQueue,
    QueueLockedError,
    RecordTooLargeError,
    ShutDown,
    StaleReceiptError,
    Transaction,
    TransactionNotFoundError,
    TransactionStateError,
    UsageError,
    verify,
)
from holdfast.persistence.format import DECIDED_MAX
from holdfast.queue.transaction_state import State
from support.clocks import FakeClock
from support.simulated_storage import SimulatedStorage
from support.transactions import cut_power, kill, open_queue, prepared_ids, waiting

KINDS = ("puts", "acks", "both")
LARGE = 30  # messages of 1,000 bytes: more than a quarter of a data file


@pytest.fixture
def storage() -> SimulatedStorage:
    """Return a disk."""
    return SimulatedStorage()


@pytest.fixture
def queue(storage: SimulatedStorage) -> Iterator[PersistentQueue]:
    """Open a queue of three messages."""
    with open_queue(storage) as opened:
        opened.put_many([b"one", b"two", b"three"])
        yield opened


def prepare(queue: PersistentQueue, kind: str, name: str | None = None, *, count: int = 1) -> Transaction:
    """Prepare a transaction that puts, acknowledges the next message, or does both."""
    tx = queue.begin()
    if kind != "puts":
        tx.ack(tx.receive(timeout=0))
    if kind != "acks":
        tx.put_many([b"new".ljust(1000 if count > 1 else 3)] * count)
    assert tx.prepare(name or kind) == tx.id == (name or kind)
    return tx


def after(kind: str, *, committed: bool) -> list[bytes]:
    """Return what waits in a queue of three once such a transaction was decided."""
    taken = committed and kind != "puts"
    return [b"one", b"two", b"three"][taken:] + [b"new"] * (committed and kind != "acks")


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
    with pytest.raises(ZeroDivisionError), queue.transaction() as tx:
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


# -- Ids -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("second", KINDS)
@pytest.mark.parametrize("first", KINDS)
def test_an_id_in_doubt_is_refused_and_may_be_used_again_once_decided(
    queue: PersistentQueue, first: str, second: str
) -> None:
    """The refused transaction stays open, and takes another id; the latest of an id answers."""
    prepare(queue, first, "t")
    tx = queue.begin()
    if second != "puts":
        tx.ack(tx.receive(timeout=0))
    if second != "acks":
        tx.put(b"second")
    with pytest.raises(TransactionStateError, match="before its id is used again"):
        tx.prepare("t")
    assert tx.state is State.OPEN
    queue.commit_prepared("t")
    tx.prepare("t")
    assert prepared_ids(queue) == ["t"]
    queue.abort_prepared("t")
    queue.abort_prepared("t")
    with pytest.raises(TransactionStateError, match="was aborted"):
        queue.commit_prepared("t")
    assert prepare(queue, "puts").commit() == queue.commit_prepared("puts")


def test_ids_are_made_where_none_is_chosen(queue: PersistentQueue) -> None:
    """32 hexadecimal digits, of which no two are alike."""
    ids = []
    for _ in range(3):
        tx = queue.begin()
        tx.put(b"x")
        ids.append(tx.prepare())
        assert tx.id == ids[-1]
    assert prepared_ids(queue) == ids
    assert all(len(name) == 32 and int(name, 16) for name in ids)
    assert len(set(ids)) == 3


@pytest.mark.parametrize("kind", ["puts", "acks"])
def test_the_memory_of_decided_ids_is_bounded(storage: SimulatedStorage, kind: str) -> None:
    """The oldest is forgotten first; a restart forgets nothing more."""
    assert DECIDED_MAX == 1024
    with open_queue(storage) as queue:
        queue.put(b"one")
        for number in range(DECIDED_MAX + 2):
            tx = prepare(queue, kind, f"t{number}")
            tx.abort()
    with open_queue(storage) as queue:
        for number in (0, 1):
            with pytest.raises(TransactionNotFoundError):
                queue.abort_prepared(f"t{number}")
        for number in (2, 3, 500, DECIDED_MAX + 1):
            queue.abort_prepared(f"t{number}")
            with pytest.raises(TransactionStateError):
                queue.commit_prepared(f"t{number}")


# -- Bounds, modes and the end ---------------------------------------------------------------------------------------


def test_a_bounded_queue_lets_it_in_at_prepare(storage: SimulatedStorage) -> None:
    """Full leaves it open; once it is prepared committing waits for nothing."""
    with open_queue(storage, maxsize=3) as queue:
        queue.put_many([b"one", b"two"])
        tx = queue.begin(timeout=0.05)
        tx.put_many([b"a", b"b"])
        with pytest.raises(Full):
            tx.prepare("t")
        assert tx.state is State.OPEN
        tx = queue.begin()
        tx.put_many([b"a"])
        tx.prepare("t")
        queue.put(b"three")
        assert queue.full()
        assert queue.commit_prepared("t") == range(3, 4)
        tx = queue.begin()
        tx.put_many([b"x"] * 4)
        with pytest.raises(RecordTooLargeError):
            tx.prepare()


def test_after_a_shutdown_only_acks_can_be_committed(queue: PersistentQueue) -> None:
    """What puts stays prepared, and can be aborted or committed after the next opening."""
    puts, acks = prepare(queue, "puts"), prepare(queue, "acks")
    queue.shutdown()
    with pytest.raises(ShutDown):
        puts.commit()
    assert puts.state is State.PREPARED
    acks.commit()
    assert prepared_ids(queue) == ["puts"]
    puts.abort()
    assert waiting(queue) == [b"two", b"three"]


def test_a_consumer_prepares_acknowledgements_alone(storage: SimulatedStorage) -> None:
    """Without the write side, over a restart, and with a memory of its own."""
    with open_queue(storage) as queue:
        queue.put_many([b"one", b"two", b"three"])
    consumer = open_queue(storage, mode="consume")
    prepare(consumer, "acks", "a")
    prepare(consumer, "acks", "b")
    storage = cut_power(storage, consumer)
    with open_queue(storage, mode="consume") as consumer:
        assert prepared_ids(consumer) == ["a", "b"]
        assert waiting(consumer) == [b"three"]
        assert consumer.commit_prepared("a") == range(3, 3)
        consumer.abort_prepared("b")
        consumer.commit_prepared("a")
        assert waiting(consumer) == [b"two", b"three"]
    with open_queue(storage, mode="consume") as consumer:
        consumer.commit_prepared("a")
        consumer.abort_prepared("b")
        assert consumer.prepared() == []


def test_a_producer_prepares_puts_alone(storage: SimulatedStorage) -> None:
    """Without a group; a consumer sees that it is in doubt, and cannot decide it."""
    producer = open_queue(storage, mode="produce")
    prepare(producer, "puts", "p")
    storage = cut_power(storage, producer)
    with open_queue(storage, mode="produce") as producer, open_queue(storage, mode="consume") as consumer:
        assert prepared_ids(producer) == prepared_ids(consumer) == ["p"]
        for call in (consumer.commit_prepared, consumer.abort_prepared):
            with pytest.raises(UsageError):
                call("p")
        assert producer.commit_prepared("p") == range(1)
        assert consumer.get(timeout=1) == b"new"


@pytest.mark.parametrize("kind", KINDS)
def test_a_handle_that_looks_sees_what_is_in_doubt_and_decides_nothing(storage: SimulatedStorage, kind: str) -> None:
    """It shows neither the puts nor, as available, the messages that are held."""
    with open_queue(storage) as queue:
        queue.put_many([b"one", b"two", b"three"])
        prepare(queue, kind)
    files = storage.tree()
    with open_queue(storage, mode="look") as look:
        assert prepared_ids(look) == [kind]
        for call in (look.commit_prepared, look.abort_prepared):
            with pytest.raises(UsageError):
                call(kind)
        assert waiting(look) == [b"one", b"two", b"three"][kind != "puts" :]
        assert look.qsize() == (3 if kind == "puts" else 2)
        assert look.stats().depth == 3
    assert storage.tree() == files


# -- Other groups ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["acks", "both"])
@pytest.mark.parametrize("commits", [True, False], ids=["commit", "abort"])
def test_another_groups_handle_decides_once_the_owner_has_gone(tmp_path: Path, kind: str, commits: bool) -> None:
    """While the group's owner lives the answer is QueueLockedError, and nothing has happened."""
    path = tmp_path / "orders"
    with PersistentQueue(path) as queue:
        queue.put_many([b"one", b"two", b"three"])
        queue.groups.create("b")
        prepare(queue, kind, "t")
    with PersistentQueue(path, mode="produce", group="b") as other:
        with PersistentQueue(path, mode="consume") as owner:
            for call in (other.commit_prepared, other.abort_prepared):
                with pytest.raises(QueueLockedError, match="'default'"):
                    call("t")
            assert waiting(owner) == [b"two", b"three"]
            assert prepared_ids(owner) == prepared_ids(other) == ["t"]
        if commits:
            other.commit_prepared("t")
        else:
            other.abort_prepared("t")
        assert other.prepared() == []
    with PersistentQueue(path) as queue:
        assert waiting(queue) == after(kind, committed=commits)
    assert verify(path).ok


def test_two_groups_hold_the_same_messages_apart(tmp_path: Path) -> None:
    """A vote of one says nothing to the other."""
    path = tmp_path / "orders"
    with PersistentQueue(path, mode="produce") as producer:
        producer.groups.create("a")
        producer.groups.create("b")
        producer.put_many([b"one", b"two"])
        with PersistentQueue(path, mode="consume", group="a") as a, PersistentQueue(path, mode="consume", group="b") as b:
            prepare(a, "acks", "of-a")
            prepare(b, "acks", "of-b")
            a.commit_prepared("of-a")
            b.abort_prepared("of-b")
            assert waiting(a) == [b"two"]
            assert waiting(b) == [b"one", b"two"]


@pytest.mark.parametrize("kind", ["acks", "both"])
def test_deleting_a_group_takes_its_votes_along(storage: SimulatedStorage, kind: str) -> None:
    """What they held is nobody's business any more; puts that were prepared with them can still be decided."""
    with open_queue(storage) as queue:
        queue.put_many([b"one", b"two", b"three"])
        queue.groups.create("b")
        prepare(queue, kind, "t")
    with open_queue(storage, group="b") as queue:
        queue.groups.delete("default")
        if kind == "acks":
            assert queue.prepared() == []
            with pytest.raises(TransactionNotFoundError):
                queue.commit_prepared("t")
        else:
            assert [(each.id, each.ack_count) for each in queue.prepared()] == [("t", 0)]
            assert queue.commit_prepared("t") == range(3, 4)
            assert waiting(queue) == [b"one", b"two", b"three", b"new"]
