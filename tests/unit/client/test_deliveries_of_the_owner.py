"""Deliveries of the handle that owns the queue: the read side leases them for it, and each is one object."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import ClosedError, Delivery, Empty, LeaseExpiredError, PersistentQueue, ShutDown, StaleReceiptError
from holdfast.queue.client import shared_consumer
from holdfast.queue.client.link import OwnerLink
from holdfast.queue.client.shared_engine import SharedEngine
from holdfast.queue.consumer.read_side import ReadSide
from support.builders.clocks import FakeClock
from support.processes.threads import Threads, wait_until


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[PersistentQueue]:
    """Return a queue that this process owns, with three messages."""
    with PersistentQueue(tmp_path / "q", mode="shared") as queue:
        queue.put_many([b"a", b"b", b"c"])
        yield queue


def engine_of(queue: PersistentQueue) -> SharedEngine:
    """Return the engine of a handle."""
    assert isinstance(queue._engine, SharedEngine)
    return queue._engine


def side_of(queue: PersistentQueue) -> ReadSide:
    """Return the read side of the default group in the owner."""
    own_queue = engine_of(queue).membership.own_queue
    assert own_queue is not None
    return own_queue.group("default")


def succeed(queue: PersistentQueue) -> None:
    """Let the owner close; this process is the next one."""
    membership = engine_of(queue).membership
    link = membership._link
    assert isinstance(link, OwnerLink)
    membership._abdicate(link, has_failed=False)
    assert membership.own_queue is None


def test_a_delivery_of_the_owner_is_one_object(queue: PersistentQueue) -> None:
    """Both ends know it until it is acknowledged, and then neither."""
    delivery = queue.receive(timeout=0)
    assert side_of(queue).leased == {0: delivery}
    assert engine_of(queue)._consumer.numbers_in_hand() == [delivery.number]
    delivery.ack()
    assert delivery.is_settled
    assert side_of(queue).leased == {}
    assert engine_of(queue)._consumer.numbers_in_hand() == []
    with pytest.raises(StaleReceiptError):
        delivery.ack()


def test_one_that_is_named_twice_counts_once(queue: PersistentQueue) -> None:
    """And if one of several is stale, none is finished."""
    batch = queue.receive_many(2, timeout=0)
    batch.ack([batch[0], batch[1], batch[0]])
    last = queue.receive(timeout=0)
    with pytest.raises(StaleReceiptError):
        batch.ack([last, batch[0]])
    assert not last.is_settled
    last.ack()
    assert queue.empty()


@pytest.mark.parametrize("settle", [Delivery.ack, Delivery.nack, Delivery.release])
def test_a_delivery_outlives_its_owner(queue: PersistentQueue, settle: Callable[[Delivery], None]) -> None:
    """The next one leases it anew, as another object, and knows it by its number."""
    delivery = queue.receive(timeout=0)
    succeed(queue)
    assert not delivery.is_settled
    queue.put(b"d")
    assert side_of(queue).leased.keys() == {0}
    assert side_of(queue).leased[0] is not delivery
    settle(delivery)
    assert delivery.is_settled
    assert side_of(queue).leased == {}
    assert queue.get(timeout=0) == (b"a" if settle is Delivery.release else b"b")
    assert queue.depth() == (2 if settle is Delivery.ack else 3)


@pytest.mark.parametrize("has_succeeded", [False, True])
def test_a_transaction_has_it_as_its_receiver_had_it(queue: PersistentQueue, has_succeeded: bool) -> None:
    """Committed it is finished; aborted it is its receiver's again."""
    first, second = queue.receive(timeout=0), queue.receive(timeout=0)
    if has_succeeded:
        succeed(queue)
    with queue.transaction() as tx:
        tx.ack(first)
        tx.put(b"d")
    assert first.is_settled
    tx = queue.transaction()
    tx.ack(second)
    tx.abort()
    assert not second.is_settled
    second.ack()
    assert [queue.get(timeout=0), queue.get(timeout=0)] == [b"c", b"d"]
    assert queue.empty()


def test_a_transaction_that_takes_gives_back_what_it_does_not_commit(queue: PersistentQueue) -> None:
    """As in every process."""
    tx = queue.transaction()
    assert tx.receive(timeout=0).payload == b"a"
    tx.abort()
    assert side_of(queue).leased == {}
    with queue.transaction() as tx, tx.receive(timeout=0) as delivery:
        assert delivery.payload == b"a"
    assert queue.depth() == 2


def test_a_lease_ends_at_the_owner(queue: PersistentQueue) -> None:
    """The delivery itself shows it, and another thread has the message meanwhile."""
    delivery = queue.receive(timeout=0, lease_seconds=0.001)
    wait_until(lambda: side_of(queue).in_flight_count == 0)
    assert delivery.has_expired
    again = queue.receive(timeout=1)
    assert (again.offset, again.delivery_count) == (0, 2)
    with pytest.raises(LeaseExpiredError):
        delivery.ack()
    again.ack()


def test_a_message_that_comes_again_ends_the_delivery_that_its_handle_still_has(queue: PersistentQueue) -> None:
    """The read side has given it back, and the handle has not been asked for it since."""
    former = queue.receive(timeout=0)
    side_of(queue).release([former])
    again = queue.receive(timeout=0)
    assert again.offset == former.offset
    assert former.is_settled
    again.ack()


def test_what_is_open_needs_no_upkeep_until_another_process_owns(queue: PersistentQueue) -> None:
    """The read side sees that its block is open; a client has to say so."""
    upkeep = engine_of(queue)._upkeep
    with queue.receive(timeout=0, lease_seconds=0.05) as delivery:
        assert upkeep._due == math.inf
        assert upkeep._thread is None
        wait_until(lambda: delivery.expires_at - delivery.lease_seconds > side_of(queue)._leases.monotonic() - 0.05)
        engine_of(queue)._consumer.numbers_in_hand()
        wait_until(lambda: upkeep._due < math.inf)
    assert delivery.is_settled


@pytest.mark.parametrize("can_own", [True, False])
def test_what_is_open_stays_with_its_handle_although_another_process_owns(tmp_path: Path, can_own: bool) -> None:
    """Nothing else happens in the handle meanwhile. One that owns for each call has lost the queue by then."""
    path = tmp_path / "short"
    with PersistentQueue(path, mode="shared", can_own=can_own, lease_seconds=0.3, backoff=[0.0]) as queue:
        queue.put(b"a")
        with queue.receive(timeout=0) as delivery, PersistentQueue(path, mode="shared") as other:
            engine_of(other).membership.take_over()
            with pytest.raises(Empty):
                other.receive(timeout=1.0)
        assert delivery.is_settled
        assert queue.empty()


@pytest.mark.parametrize("is_open", [True, False])
def test_a_longer_lease_than_that_of_the_group_outlives_its_owner(tmp_path: Path, is_open: bool) -> None:
    """The next one leases it as the group does, until it is told."""
    path = tmp_path / "short"
    with PersistentQueue(path, mode="shared", lease_seconds=0.3, backoff=[0.0]) as queue:
        queue.put(b"a")
        delivery = queue.receive(timeout=0)
        delivery.extend(60)
        delivery.is_open = is_open
        with PersistentQueue(path, mode="shared") as other:
            engine_of(other).membership.take_over()
            with pytest.raises(Empty):
                other.receive(timeout=1.0)
            assert delivery.lease_seconds == 60
            delivery.ack()


def test_upkeep_looks_at_what_was_taken_of_an_owner_that_ended_meanwhile(
    queue: PersistentQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have looked before that was in hand."""
    consumer, upkeep = engine_of(queue)._consumer, engine_of(queue)._upkeep
    have_in_hand = consumer.have_in_hand

    def end_meanwhile(*arguments: Any) -> None:
        succeed(queue)
        assert upkeep._thread is None
        have_in_hand(*arguments)

    monkeypatch.setattr(consumer, "have_in_hand", end_meanwhile)
    queue.receive(timeout=0)
    wait_until(lambda: upkeep._due < math.inf)


def test_what_the_read_side_has_settled_is_not_settled_again(queue: PersistentQueue) -> None:
    """Another thread has acknowledged it, and its handle has not taken note yet."""
    delivery = queue.receive(timeout=0)
    assert side_of(queue).ack_same([delivery])
    with pytest.raises(StaleReceiptError):
        delivery.ack()


def test_a_loop_finishes_what_it_has_left_behind(queue: PersistentQueue) -> None:
    """With the next take, as in every process."""
    loop = queue.consume(prefetch=2, timeout=0)
    assert [next(loop).payload, next(loop).payload] == [b"a", b"b"]
    assert side_of(queue).leased.keys() == {0, 1}
    assert next(loop).payload == b"c"
    assert side_of(queue).leased.keys() == {2}
    assert list(loop) == []
    assert queue.empty()


def test_what_was_taken_behind_the_end_is_given_back(queue: PersistentQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """The handle was closed while the read side leased it."""
    side, consumer, receive = side_of(queue), engine_of(queue)._consumer, ReadSide.receive

    def close_behind(*arguments: Any, **options: Any) -> list[Delivery]:
        deliveries = receive(*arguments, **options)
        consumer._lifecycle.close()
        return deliveries

    monkeypatch.setattr(ReadSide, "receive", close_behind)
    with pytest.raises(ClosedError):
        queue.receive(timeout=0)
    assert side.leased == {}


def test_a_get_waits_longer_than_one_wait(queue: PersistentQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks again until its time is over."""
    monkeypatch.setattr(shared_consumer, "WAIT_SECONDS_MAX", 0.001)
    queue.get_many(3, timeout=0)
    with pytest.raises(Empty):
        queue.get(timeout=0.01)


def test_a_failed_nack_of_a_message_whose_lease_runs_out_meanwhile_changes_nothing(queue: PersistentQueue) -> None:
    """The read side gives it back once."""
    delivery = queue.receive(timeout=0, lease_seconds=0.001)
    wait_until(lambda: side_of(queue).in_flight_count == 0)
    with pytest.raises(LeaseExpiredError):
        delivery.nack()
    again = queue.receive(timeout=1)
    assert again.delivery_count == 2
    again.ack()


@pytest.mark.parametrize("settle", [Delivery.nack, Delivery.release, lambda delivery: delivery.reject("no")])
def test_of_two_threads_that_settle_a_delivery_one_is_told_that_it_is_stale(
    queue: PersistentQueue, settle: Callable[[Delivery], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An acknowledgement that comes into the middle of another verb changes nothing."""
    delivery = queue.receive(timeout=0)
    stale: list[StaleReceiptError] = []
    membership = engine_of(queue).membership
    ask = membership.ask

    def ask_late(*args: Any) -> Any:
        monkeypatch.undo()
        with pytest.raises(StaleReceiptError) as caught:
            delivery.ack()
        stale.append(caught.value)
        return ask(*args)

    monkeypatch.setattr(membership, "ask", ask_late)
    settle(delivery)
    assert [each.context["offset"] for each in stale] == [0]
    assert queue.stats().depth + queue.stats().dead == 3


def test_an_acknowledgement_that_was_first_makes_another_verb_stale(
    queue: PersistentQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told before the owner is asked."""
    delivery = queue.receive(timeout=0)
    consumer = engine_of(queue)._consumer
    part_with = consumer.part_with

    def part_late(deliveries: Any) -> None:
        delivery.ack()
        part_with(deliveries)

    monkeypatch.setattr(consumer, "part_with", part_late)
    with pytest.raises(StaleReceiptError):
        delivery.nack()
    assert queue.stats().depth == 2


def test_a_transaction_takes_what_has_come_while_a_thread_waited(queue: PersistentQueue) -> None:
    """Its commit finishes it, as any other message that it has taken."""
    assert queue.get_many(9, timeout=0) == [b"a", b"b", b"c"]

    def comes_ahead() -> bool:
        threads = Threads()
        threads.start(lambda: queue.wait_for_more(30))
        time.sleep(0.05)
        queue.put(b"d")
        threads.join()
        if not engine_of(queue)._consumer.has_ahead:  # the thread was late, and only saw that there is one
            assert queue.get(timeout=0) == b"d"
        return engine_of(queue)._consumer.has_ahead

    wait_until(comes_ahead)
    tx = queue.begin()
    tx.ack(tx.receive(timeout=0))
    tx.put(b"e")
    tx.commit()
    assert queue.get_many(9, timeout=0) == [b"e"]


def test_what_came_ahead_and_was_settled_meanwhile_is_no_transactions(queue: PersistentQueue) -> None:
    """Another thread was faster between the look and the take."""
    consumer = engine_of(queue)._consumer
    delivery = queue.receive(timeout=0)
    consumer.keep_ahead(delivery)
    consumer.hold = _settled_meanwhile  # type: ignore[method-assign]
    tx = queue.begin()
    assert consumer.claim_ahead(tx, None, _settled_meanwhile) == []  # type: ignore[arg-type]
    tx.abort()


def _settled_meanwhile(*_: object) -> None:
    raise StaleReceiptError("another thread has settled it")


def test_a_message_that_a_block_gave_to_a_transaction_comes_again_after_its_abort(tmp_path: Path) -> None:
    """Once its lease is over: the block that had it open is not that of the owner's own object."""
    with PersistentQueue(tmp_path / "short", mode="shared", lease_seconds=0.2, backoff=[0.0]) as queue:
        queue.put(b"a")
        tx = queue.begin()
        with queue.receive(timeout=0) as delivery:
            tx.ack(delivery)
        tx.abort()
        assert queue.get(timeout=10) == b"a"


def test_a_transaction_takes_over_a_message_that_one_before_gave_back(queue: PersistentQueue) -> None:
    """Beside others that no transaction had."""
    batch = queue.receive_many(3, timeout=0)
    first = queue.begin()
    first.ack(batch[0])
    first.abort()
    second = queue.begin()
    second.ack(list(batch))
    second.put(b"d")
    second.commit()
    assert queue.get_many(9, timeout=0) == [b"d"]


@pytest.mark.parametrize("is_client", [False, True])
def test_the_lease_of_a_message_begins_again_when_a_transaction_gives_it_back(tmp_path: Path, is_client: bool) -> None:
    """At the owner, too: no other consumer gets it while its receiver has it in hand."""
    path, clock = tmp_path / "q", FakeClock()
    with (
        PersistentQueue(path, mode="shared", clock=clock, lease_seconds=10) as owner,
        PersistentQueue(path, mode="shared", clock=clock) as client,
    ):
        queue = client if is_client else owner
        queue.put(b"a")
        delivery = queue.receive(timeout=0)
        clock.advance(3)
        tx = queue.begin()
        tx.ack(delivery)
        tx.abort()
        clock.advance(9)
        with pytest.raises(Empty):
            owner.receive(timeout=0)
        delivery.ack()
        assert owner.stats().depth == 0


def test_a_shutdown_waits_for_no_delivery_whose_lease_has_ended(tmp_path: Path) -> None:
    """Another handle has taken and finished the message."""
    path = tmp_path / "short"
    with (
        PersistentQueue(path, mode="shared", lease_seconds=0.2, backoff=[0.0]) as queue,
        PersistentQueue(path, mode="shared") as other,
    ):
        queue.put(b"a")
        dropped = queue.receive(timeout=0)
        assert other.get(timeout=10) == b"a"
        queue.shutdown()
        with pytest.raises(ShutDown):
            queue.get(timeout=10)
        assert dropped.is_settled
