"""Prepared transactions in each mode, in bounded queues, and of other groups."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import (
    Full,
    PersistentQueue,
    QueueLockedError,
    RecordTooLargeError,
    ShutDown,
    TransactionNotFoundError,
    UsageError,
    verify,
)
from holdfast.queue.server import group_desk
from holdfast.queue.transactions.transaction_state import State
from support.builders.transactions import KINDS, after, cut_power, open_queue, prepare, prepared_ids, waiting
from support.storages.simulated_storage import SimulatedStorage


@pytest.fixture
def queue(storage: SimulatedStorage) -> Iterator[PersistentQueue]:
    """Open a queue of three messages."""
    with open_queue(storage) as opened:
        opened.put_many([b"one", b"two", b"three"])
        yield opened


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
    """Without a group; a consumer sees that it is in doubt, and has its owner decide it."""
    producer = open_queue(storage, mode="produce")
    prepare(producer, "puts", "p")
    storage = cut_power(storage, producer)
    with open_queue(storage, mode="produce") as producer, open_queue(storage, mode="consume") as consumer:
        assert prepared_ids(producer) == prepared_ids(consumer) == ["p"]
        assert consumer.commit_prepared("p") == producer.commit_prepared("p") == range(1)
        assert consumer.get(timeout=1) == b"new"


@pytest.mark.parametrize("kind", KINDS)
def test_a_handle_that_looks_sees_what_is_in_doubt_and_decides_nothing(storage: SimulatedStorage, kind: str) -> None:
    """It shows neither the puts nor, as available, the messages that are held."""
    with open_queue(storage) as queue:
        queue.put_many([b"one", b"two", b"three"])
        prepare(queue, kind)
    files = storage.tree()
    with open_queue(storage, mode="read_only") as look:
        assert prepared_ids(look) == [kind]
        for call in (look.commit_prepared, look.abort_prepared):
            with pytest.raises(UsageError):
                call(kind)
        assert waiting(look) == [b"one", b"two", b"three"][kind != "puts" :]
        assert look.qsize() == (3 if kind == "puts" else 2)
        assert look.stats().depth == 3
    assert storage.tree() == files


@pytest.mark.parametrize("kind", ["acks", "both"])
@pytest.mark.parametrize("commits", [True, False], ids=["commit", "abort"])
def test_another_groups_handle_decides_once_the_owner_has_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, commits: bool
) -> None:
    """While a group's owner lives that cannot be asked the answer is QueueLockedError, and nothing has happened."""
    monkeypatch.setattr(group_desk, "VOTE_VERBS", ())
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
        with (
            PersistentQueue(path, mode="consume", group="a") as a,
            PersistentQueue(path, mode="consume", group="b") as b,
        ):
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
