"""Prepared transactions in each mode, in bounded queues, and of other groups."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from holdfast import (
    Full,
    PersistentQueue,
    RecordTooLargeError,
    ShutDown,
    TransactionNotFoundError,
    UsageError,
)
from holdfast.queue.transactions.transaction_state import State
from support.builders.transactions import KINDS, cut_power, open_queue, prepare, prepared_ids, waiting
from support.owners.machine_link import machine_links
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
        tx = queue.begin(timeout=1)
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


@pytest.mark.parametrize("mode", ["exclusive", "shared"])
def test_what_only_acknowledges_is_decided_without_the_log(storage: SimulatedStorage, mode: str) -> None:
    """Over losses of power, and remembered over a restart."""
    with machine_links():
        queue = open_queue(storage, mode=mode)
        queue.put_many([b"one", b"two", b"three"])
        prepare(queue, "acks", "a")
        prepare(queue, "acks", "b")
        storage = cut_power(storage, queue)
        queue = open_queue(storage, mode=mode)
        assert prepared_ids(queue) == ["a", "b"]
        assert waiting(queue) == [b"three"]
        assert queue.commit_prepared("a") == range(3, 3)
        queue.abort_prepared("b")
        queue.commit_prepared("a")
        assert waiting(queue) == [b"two", b"three"]
        storage = cut_power(storage, queue)
        with open_queue(storage, mode=mode) as queue:
            queue.commit_prepared("a")
            queue.abort_prepared("b")
            assert queue.prepared() == []
            assert waiting(queue) == [b"two", b"three"]


@pytest.mark.parametrize("mode", ["exclusive", "shared"])
def test_what_only_puts_is_prepared_without_a_group(storage: SimulatedStorage, mode: str) -> None:
    """By a handle that has taken nothing; one of a later process decides it, and the other one is told the same."""
    with machine_links():
        queue = open_queue(storage, mode=mode)
        prepare(queue, "puts", "p")
        assert queue.groups.list() == []
        storage = cut_power(storage, queue)
        with ExitStack() as opened:
            one, *rest = [opened.enter_context(open_queue(storage, mode=mode)) for _ in range(1 + (mode == "shared"))]
            assert prepared_ids(one) == ["p"]
            assert [each.commit_prepared("p") for each in (one, *rest)] == [range(1)] * (1 + len(rest))
            assert one.get(timeout=1) == b"new"


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


def test_two_groups_hold_the_same_messages_apart(tmp_path: Path) -> None:
    """A vote of one says nothing to the other."""
    path = tmp_path / "orders"
    with PersistentQueue(path, mode="exclusive") as queue:
        queue.groups.create("a")
        queue.groups.create("b")
        queue.put_many([b"one", b"two"])
    with PersistentQueue(path, mode="shared", group="a") as a, PersistentQueue(path, mode="shared", group="b") as b:
        prepare(a, "acks", "of-a")
        prepare(b, "acks", "of-b")
        assert prepared_ids(a) == prepared_ids(b) == ["of-a", "of-b"]
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
