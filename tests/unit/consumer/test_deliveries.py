"""Deliveries: leased, acknowledged or given back, fenced by receipts, counted across restarts and kills."""

import os
import time
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast import (
    ClosedError,
    Empty,
    FlushPolicy,
    LeaseError,
    Message,
    PersistentQueue,
    StaleReceiptError,
    UsageError,
)
from support.builders.settings import change_settings
from support.processes.children import Child, Signal, child

POLICIES = [FlushPolicy.every_commit(), FlushPolicy.every(commits=10), FlushPolicy.never()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a queue with five messages is."""
    with PersistentQueue(tmp_path / "orders", mode="exclusive") as queue:
        queue.put_many([b"a", b"b", b"c", b"d", b"e"])
    return tmp_path / "orders"


def payloads_left(path: Path) -> list[bytes]:
    """Open the queue anew and take all that is there."""
    with PersistentQueue(path, mode="exclusive") as queue:
        found = []
        while True:
            try:
                found += queue.get_many(100, timeout=0)
            except Empty:
                return found


# -- One at a time ---------------------------------------------------------------------------------------------------


def test_a_delivery_says_what_was_put_when_and_where(path: Path) -> None:
    """Payload, offset, time, headers and how often it was handed out."""
    before = time.time_ns()
    with PersistentQueue(path, mode="exclusive") as queue:
        queue.put(b"with headers", headers={"kind": "order", "größe": "±0", "empty": ""})
        deliveries = queue.receive_many(10)
        last = deliveries[-1]
        assert (last.payload, last.offset, last.delivery_count) == (b"with headers", 5, 1)
        assert last.headers == {"kind": "order", "größe": "±0", "empty": ""}
        assert before <= last.timestamp_ns <= time.time_ns()
        assert deliveries[0].headers == {}
        assert not last.is_settled


def test_a_clean_exit_acknowledges_and_an_exception_gives_back(path: Path) -> None:
    """The context manager does what the work's end says."""
    with PersistentQueue(path, mode="exclusive", backoff=[]) as queue:
        with queue.receive() as delivery:
            assert delivery.payload == b"a"
        with pytest.raises(ZeroDivisionError), queue.receive() as delivery:
            raise ZeroDivisionError
        assert delivery.is_settled
        again = queue.receive(timeout=0)
        assert (again.payload, again.delivery_count) == (b"b", 2)
    assert payloads_left(path) == [b"b", b"c", b"d", b"e"]


def test_a_delivery_that_was_settled_inside_the_block_is_left_alone_at_its_end(path: Path) -> None:
    """Whoever decides early has decided."""
    with PersistentQueue(path, mode="exclusive") as queue:
        with queue.receive() as delivery:
            delivery.nack(delay=0)
        with queue.receive() as delivery:
            delivery.ack()
        assert delivery.payload == b"a"
        with suppress(ZeroDivisionError), queue.receive() as delivery:
            delivery.ack()
            raise ZeroDivisionError
    assert payloads_left(path) == [b"c", b"d", b"e"]


def test_what_is_given_back_comes_next_and_in_order(path: Path) -> None:
    """Before what nobody has had yet."""
    with PersistentQueue(path, mode="exclusive") as queue:
        batch = queue.receive_many(3)
        batch[2].nack(delay=0)
        batch[0].nack(delay=0)
        assert [queue.get(), queue.get(), queue.get()] == [b"a", b"c", b"d"]
        batch[1].ack()
    assert payloads_left(path) == [b"e"]


def test_what_is_in_flight_is_not_handed_out_twice(path: Path) -> None:
    """A lease is exclusive."""
    with PersistentQueue(path, mode="exclusive") as queue:
        held = queue.receive_many(4)
        assert queue.get() == b"e"
        with pytest.raises(Empty):
            queue.get(timeout=0)
        assert (queue.qsize(), queue.stats().depth, queue.stats().in_flight) == (0, 4, 4)
        assert len(held) == 4
    assert payloads_left(path) == [b"a", b"b", b"c", b"d"]


@pytest.mark.parametrize("first", ["ack", "nack"])
@pytest.mark.parametrize("second", ["ack", "nack"])
def test_a_receipt_counts_once(path: Path, first: str, second: str) -> None:
    """Settled is settled: StaleReceiptError, and nothing has changed."""
    with PersistentQueue(path, mode="exclusive") as queue:
        delivery = queue.receive()
        delivery.ack() if first == "ack" else delivery.nack(delay=0)
        with pytest.raises(StaleReceiptError) as stale:
            getattr(delivery, second)()
        assert stale.value.offset == 0
        assert isinstance(stale.value, LeaseError)
        assert queue.qsize() == (4 if first == "ack" else 5)


def test_a_stale_receipt_cannot_acknowledge_somebody_elses_delivery(path: Path) -> None:
    """The message is in other hands by now."""
    with PersistentQueue(path, mode="exclusive") as queue:
        old = queue.receive()
        old.nack(delay=0)
        new = queue.receive()
        assert new.offset == old.offset
        with pytest.raises(StaleReceiptError):
            old.ack()
        with pytest.raises(StaleReceiptError):
            old.nack()
        new.ack()
    assert payloads_left(path) == [b"b", b"c", b"d", b"e"]


def test_a_receipt_of_a_closed_queue_is_refused(path: Path) -> None:
    """Closing has given the message back, so the next owner gets it."""
    with PersistentQueue(path, mode="exclusive") as queue:
        delivery = queue.receive()
    with pytest.raises(ClosedError):
        delivery.ack()
    assert payloads_left(path)[0] == b"a"


# -- Batches ---------------------------------------------------------------------------------------------------------


def test_a_batch_is_acknowledged_as_one(path: Path) -> None:
    """It is a sequence of deliveries; the clean end of its block finishes them all."""
    with PersistentQueue(path, mode="exclusive") as queue:
        with queue.receive_many(3) as batch:
            assert [delivery.payload for delivery in batch] == [b"a", b"b", b"c"]
            assert len(batch) == 3
            assert [delivery.offset for delivery in batch[1:]] == [1, 2]
        with pytest.raises(StaleReceiptError):
            batch[0].ack()
    assert payloads_left(path) == [b"d", b"e"]


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_a_part_of_a_batch_can_be_acknowledged(path: Path, policy: FlushPolicy) -> None:
    """The block's end settles the rest, and holes among what is finished survive a restart."""
    change_settings(path, flush=policy)
    with PersistentQueue(path, mode="exclusive", flush=policy, backoff=[]) as queue:
        with suppress(ZeroDivisionError), queue.receive_many(5) as batch:
            batch.ack([batch[3], batch[1]])
            raise ZeroDivisionError
        assert [message.payload for message in queue.peek(10)] == [b"a", b"c", b"e"]
    assert payloads_left(path) == [b"a", b"c", b"e"]


def test_a_batch_settles_all_or_nothing(path: Path) -> None:
    """Where one receipt is stale none of the others counts."""
    with PersistentQueue(path, mode="exclusive") as queue:
        batch = queue.receive_many(3)
        batch[1].ack()
        for settle in (batch.ack, batch.nack):
            with pytest.raises(StaleReceiptError):
                settle(list(batch))
        assert [delivery.is_settled for delivery in batch] == [False, True, False]
        batch.nack(delay=0)
        assert [message.payload for message in queue.peek(10)] == [b"a", b"c", b"d", b"e"]
    assert payloads_left(path) == [b"a", b"c", b"d", b"e"]


@pytest.mark.parametrize("settle", ["ack", "nack"])
def test_a_delivery_that_is_named_twice_in_one_call_counts_once(path: Path, settle: str) -> None:
    """A list with a repetition is no reason to lose anything."""
    with PersistentQueue(path, mode="exclusive", backoff=[]) as queue:
        batch = queue.receive_many(2)
        getattr(batch, settle)([batch[0], batch[0]])
        assert batch[0].is_settled
        assert not batch[1].is_settled
        assert queue.stats().in_flight == 1
    expected = [b"b", b"c", b"d", b"e"] if settle == "ack" else [b"a", b"b", b"c", b"d", b"e"]
    assert payloads_left(path) == expected


def test_an_empty_list_of_deliveries_settles_nothing(path: Path) -> None:
    """Neither ``ack([])`` nor ``nack([])`` means all."""
    with PersistentQueue(path, mode="exclusive") as queue:
        batch = queue.receive_many(2)
        batch.ack([])
        batch.nack([])
        assert queue.stats().in_flight == 2


# -- Counting --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_failed_deliveries_are_counted_across_reopening(path: Path, policy: FlushPolicy) -> None:
    """A message that was given back comes again, and says how often it did; alone, as it may be to blame."""
    change_settings(path, flush=policy)
    for count in (1, 2, 3):
        with PersistentQueue(path, mode="exclusive", flush=policy) as queue:
            first, second = queue.receive(), queue.receive()
            assert (first.delivery_count, second.delivery_count) == (count, count)
            first.nack(delay=0)
            second.nack(delay=0)
    with PersistentQueue(path, mode="exclusive", flush=policy) as queue:
        assert [message.delivery_count for message in queue.peek(5)] == [3, 3, 0, 0, 0]
        batches = [queue.receive_many(5) for _ in range(3)]
        assert [[delivery.delivery_count for delivery in batch] for batch in batches] == [[4], [4], [1, 1, 1]]
        assert queue.peek(5) == []


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_what_is_in_hand_at_a_clean_close_was_not_delivered(path: Path, policy: FlushPolicy) -> None:
    """Nobody has failed: it comes again in its order and in company, as if for the first time."""
    change_settings(path, flush=policy)
    for _ in range(7):  # more often than ``max_deliveries``
        with PersistentQueue(path, mode="exclusive", flush=policy) as queue:
            assert [delivery.delivery_count for delivery in queue.receive_many(2)] == [1, 1]
    with PersistentQueue(path, mode="exclusive", flush=policy) as queue:
        assert [(each.payload, each.delivery_count) for each in queue.peek(5)][:2] == [(b"a", 0), (b"b", 0)]
        assert [each.delivery_count for each in queue.receive_many(5)] == [1] * 5


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_a_message_that_kills_its_consumer_is_counted(path: Path, policy: FlushPolicy) -> None:
    """The delivery is noted before it is handed out."""
    change_settings(path, flush=policy)

    def work() -> None:
        queue = PersistentQueue(path, mode="exclusive", flush=policy)
        queue.receive()
        queue.receive_many(2)[1].ack()
        os.kill(os.getpid(), 9)

    assert Child(work).wait() == -9
    with PersistentQueue(path, mode="exclusive", flush=policy) as queue:
        batches = [queue.receive_many(5) for _ in range(3)]
        assert [[delivery.payload for delivery in batch] for batch in batches] == [[b"a"], [b"b"], [b"d", b"e"]]
        assert [[delivery.delivery_count for delivery in batch] for batch in batches] == [[2], [2], [1, 1]]


# -- Looking ---------------------------------------------------------------------------------------------------------


def tree(path: Path) -> dict[str, tuple[bytes, int]]:
    """Return content and time of change of everything below ``path``, directories included."""
    found = {}
    for each in sorted([path, *path.rglob("*")]):
        found[str(each)] = (each.read_bytes() if each.is_file() else b"", each.stat().st_mtime_ns)
    return found


def test_peek_takes_nothing(path: Path) -> None:
    """It shows what comes next, as often as it is asked, and counts no delivery."""
    with PersistentQueue(path, mode="exclusive") as queue:
        for _ in range(3):
            assert [message.payload for message in queue.peek(3)] == [b"a", b"b", b"c"]
        message = queue.peek()[0]
        assert isinstance(message, Message)
        assert (message.offset, message.delivery_count, message.headers) == (0, 0, {})
        assert queue.qsize() == 5
        assert queue.groups.list() == []
        assert queue.receive_many(5)[4].delivery_count == 1
        assert queue.peek(5) == []


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_looking_while_another_process_owns_the_queue_changes_nothing(path: Path, policy: FlushPolicy) -> None:
    """No lock is needed, and not a byte nor a time on the disk is another one afterwards."""
    change_settings(path, flush=policy)
    owned, go = Signal(), Signal()

    def own() -> None:
        queue = PersistentQueue(path, mode="exclusive", flush=policy)
        queue.put(b"f", headers={"kind": "late"})
        held = queue.receive_many(2)
        held[0].ack()
        queue.flush()
        time.sleep(1.5)  # until it is idle
        owned.send()
        go.wait()
        queue.get_many(100)
        owned.send()
        time.sleep(60)

    with child(own):
        owned.wait()
        before = tree(path)
        with PersistentQueue(path, mode="read_only") as look:
            messages = look.peek(10)
            assert [message.payload for message in messages] == [b"b", b"c", b"d", b"e", b"f"]
            assert [message.delivery_count for message in messages] == [1, 0, 0, 0, 0]
            assert messages[-1].headers == {"kind": "late"}
            stats = look.stats()
            assert (look.qsize(), stats.depth, stats.in_flight, look.empty()) == (4, 5, 1, False)
            assert look.stats().oldest_age_seconds is not None
            assert look.groups.list() == ["default"]
            for refused in (lambda: look.put(b"x"), look.get, look.receive):
                with pytest.raises(UsageError):
                    refused()
            assert tree(path) == before
            go.send()
            owned.wait()
            assert [message.payload for message in look.peek(10)] == [b"b"]
        with pytest.raises(ClosedError):
            look.peek()
    owned.close()
    go.close()


def test_looking_follows_a_group_that_begins_while_it_looks(path: Path) -> None:
    """What the default group finishes from its first take on is left out."""
    with PersistentQueue(path, mode="exclusive") as queue, PersistentQueue(path, mode="read_only") as look:
        assert (look.qsize(), len(look.peek(10))) == (5, 5)
        queue.get_many(3)
        assert [message.payload for message in look.peek(10)] == [b"d", b"e"]
        assert look.qsize() == 2
        assert not look.recovery.damage


def test_looking_at_a_queue_that_nobody_owns_changes_nothing(path: Path) -> None:
    """After a kill it does not even recover."""

    def work() -> None:
        queue = PersistentQueue(path, mode="exclusive")
        queue.put(b"f")
        os.kill(os.getpid(), 9)

    assert Child(work).wait() == -9
    before = tree(path)
    with PersistentQueue(path, mode="read_only") as look:
        assert len(look.peek(10)) == 6
        look.stats()
        look.flush()
    assert tree(path) == before


def test_looking_shows_no_message_twice_and_none_that_is_gone_while_files_are_reused(tmp_path: Path) -> None:
    """A file that begins another life under the reader's hands answers "consumed meanwhile", never wrong data."""
    path = tmp_path / "orders"
    PersistentQueue(path, mode="exclusive", flush=FlushPolicy.never(), data_file_bytes=16 * 2**10).close()
    started = Signal()

    def churn() -> None:
        queue = PersistentQueue(path, mode="exclusive")
        number = 0
        while True:
            queue.put_many([b"%d " % (number + at) + bytes(1000) for at in range(20)])
            number += 20
            queue.get_many(20)
            if number == 100:
                started.send()

    with child(churn), PersistentQueue(path, mode="read_only") as look:
        started.wait()
        seen = 0
        deadline = time.monotonic() + 1.5
        while time.monotonic() < deadline:
            messages = look.peek(50)
            seen += len(messages)
            offsets = [message.offset for message in messages]
            assert offsets == sorted(set(offsets))
            assert all(int(message.payload.split(b" ")[0]) == message.offset for message in messages)
        assert not look.recovery.damage, look.recovery
        assert look.stats().lost == 0
    assert seen > 0
    started.close()
