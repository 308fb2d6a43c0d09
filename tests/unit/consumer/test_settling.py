"""What becomes of deliveries where settling them is cut short, or meets an end that came before."""

from collections.abc import Iterator
from typing import Any

import pytest

from holdfast import ClosedError, Delivery, Empty, PersistentQueue, transaction
from holdfast.queue.consumer.read_side import ReadSide
from holdfast.queue.dispatch.delivery import DeliveryBatch
from support.builders.clocks import FakeClock
from support.builders.handles import handle_of, without_fast_lane
from support.builders.jobs import Jobs, drained
from support.builders.transactions import INVOICES, failing, open_queue, waiting
from support.processes.threads import Threads, is_waiting, wait_until
from support.storages.refusals import refusing
from support.storages.simulated_storage import SimulatedStorage


def side_of(queue: PersistentQueue) -> ReadSide:
    """Return what hands out and takes back."""
    return handle_of(queue).require_read_side()


def interrupted(*_: Any, **__: Any) -> None:
    """Come in between."""
    raise KeyboardInterrupt


def test_an_acknowledgement_that_is_cut_short_in_memory_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is written, so the next take reads what is left from the log: the next one of its order key."""
    with without_fast_lane(Jobs().open()) as queue:
        for payload in (b"first", b"second"):
            queue.put(payload, order_key="a")
        delivery = queue.receive(timeout=0)
        with monkeypatch.context() as patched:
            patched.setattr(side_of(queue)._leases, "end", interrupted)
            with pytest.raises(KeyboardInterrupt):
                delivery.ack()
        assert queue.stats().depth == 1
        delivery.release()
        assert drained(queue) == [b"second"]


def test_a_message_that_cannot_be_read_just_then_is_no_fault_of_whoever_acknowledges() -> None:
    """It waits for the order key of the one that is finished; the next take meets it."""
    jobs = Jobs()
    with jobs.open() as queue:
        for payload in (b"first", b"second"):
            queue.put(payload, order_key="a")
        delivery = queue.receive(timeout=0)
        with pytest.raises(Empty):
            queue.receive(timeout=0)
        with refusing(jobs.storage, "open", ".data"):
            delivery.ack()
        assert drained(queue) == [b"second"]


def test_a_lease_that_runs_out_after_the_end_of_its_queue_gives_nothing_back() -> None:
    """Closing has done so."""
    jobs = Jobs()
    with jobs.open() as queue:
        queue.put(b"a")
        delivery = queue.receive(timeout=0, lease_seconds=5)
    count = jobs.storage.mutation_count
    jobs.clock.advance(6)
    for settle in (delivery.ack, delivery.release, delivery.extend):
        with pytest.raises(ClosedError):
            settle()
    assert jobs.storage.mutation_count == count
    assert not delivery.has_expired


def test_what_an_interrupted_abort_has_handed_back_stays_with_its_receiver(
    storage: SimulatedStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest goes back at the deadline, which then does nothing to it."""
    clock = FakeClock()
    with open_queue(storage, clock=clock) as queue:
        queue.put_many([b"received", b"taken"])
        delivery = queue.receive(timeout=0, lease_seconds=100)
        tx = queue.begin(timeout=10)
        tx.receive(timeout=0)
        tx.ack(delivery)
        with monkeypatch.context() as patched:
            patched.setattr(side_of(queue), "nack", interrupted)
            with pytest.raises(KeyboardInterrupt):
                tx.abort()
        clock.advance(50)
        assert queue.stats().in_flight == 1
        clock.advance(49)
        delivery.ack()
        assert waiting(queue) == [b"taken"]


def test_what_a_transaction_finishes_makes_room_for_whoever_waits(storage: SimulatedStorage, threads: Threads) -> None:
    """Its acknowledgements are decided with its puts, in the log."""
    with open_queue(storage, maxsize=2) as queue:
        queue.put_many([b"one", b"two"])
        tx = queue.begin()
        tx.ack([tx.receive(timeout=0) for _ in range(2)])
        tx.put(b"result")
        thread = threads.start(lambda: queue.put(b"waits", timeout=20))
        wait_until(lambda: is_waiting(thread))
        tx.commit()
        threads.join()
        assert waiting(queue) == [b"result", b"waits"]


class CutShort(list[Delivery]):
    """Deliveries, of whose going through an interruption comes in the middle; once."""

    is_cut = False

    def __iter__(self) -> Iterator[Delivery]:
        if self.is_cut:
            yield from super().__iter__()
            return
        self.is_cut = True
        yield self[0]
        raise KeyboardInterrupt


def test_a_batch_whose_block_is_not_entered_leaves_its_leases_to_their_time() -> None:
    """Nobody will leave that block."""
    jobs = Jobs()
    with jobs.open() as queue:
        queue.put_many([b"one", b"two"])
        found = CutShort(queue.receive_many(2, timeout=0, lease_seconds=5))
        with pytest.raises(KeyboardInterrupt):
            DeliveryBatch(side_of(queue), found).__enter__()
        jobs.clock.advance(6)
        assert drained(queue) == [b"one", b"two"]


# -- Over several queues -----------------------------------------------------------------------------------------------


def test_a_queue_that_joins_twice_takes_part_once(storage: SimulatedStorage) -> None:
    """What it did before counts on."""
    with open_queue(storage, clock=FakeClock()) as orders, open_queue(storage, INVOICES, clock=FakeClock()) as invoices:
        tx = transaction(orders, invoices)
        tx.put(orders, b"first")
        tx.join(orders)
        tx.put(orders, b"second")
        assert tx.commit() == {orders: range(2), invoices: range(0)}


def test_a_delivery_that_failed_in_a_transaction_over_several_queues_is_given_back(storage: SimulatedStorage) -> None:
    """Leaving its block in an exception acknowledges nothing, also if the transaction continues."""
    with open_queue(storage, clock=FakeClock()) as orders, open_queue(storage, INVOICES, clock=FakeClock()) as invoices:
        orders.put(b"one")
        tx = transaction(orders, invoices)
        with failing(), tx.receive(orders, timeout=0):
            tx.put(invoices, b"result")
            raise ZeroDivisionError
        tx.commit()
        assert waiting(invoices) == [b"result"]
        assert orders.stats().in_flight == 0
        assert orders.stats().depth == 1
