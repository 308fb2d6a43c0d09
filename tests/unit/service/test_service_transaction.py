"""Transactions over the queues of a service: objects and acknowledgements together, or not at all."""

import msgspec
import pytest

from holdfast import Empty, StaleReceiptError, TransactionStateError, UsageError
from holdfast.errors import EncodeError
from holdfast.queue.transactions.transaction_state import State
from holdfast.service.queue_service import QueueService
from holdfast.service.typed_queue import TypedQueue


class Order(msgspec.Struct):
    """What is ordered."""

    number: int


class Invoice(msgspec.Struct):
    """What is to be paid."""

    order: int
    cents: int


@pytest.fixture
def orders(service: QueueService) -> TypedQueue[Order]:
    """A queue with one order."""
    queue = service.queue("orders", type=Order, backoff=[])
    queue.put(Order(1))
    return queue


@pytest.fixture
def invoices(service: QueueService) -> TypedQueue[Invoice]:
    """A queue without invoices."""
    return service.queue("invoices", type=Invoice)


def test_what_is_taken_and_what_is_put_happens_together(
    service: QueueService, orders: TypedQueue[Order], invoices: TypedQueue[Invoice]
) -> None:
    """Nothing of it before the block's end, all of it behind."""
    with service.transaction() as tx:
        message = tx.receive(orders, timeout=0)
        tx.put(invoices, Invoice(message.body.number, 100), headers={"tenant": "acme"})
        tx.ack(message)
        assert (orders.stats().depth, invoices.stats().depth) == (1, 0)
    assert tx.state is State.COMMITTED
    assert tx.commit() == {orders: range(1, 1), invoices: range(1)}
    assert orders.stats().depth == 0
    with invoices.receive(timeout=0) as made:
        assert made.body == Invoice(1, 100)
        assert made.headers["tenant"] == "acme"


def test_an_exception_leaves_everything_as_it_was(
    service: QueueService, orders: TypedQueue[Order], invoices: TypedQueue[Invoice]
) -> None:
    """The message comes again, and nothing was put."""
    with pytest.raises(ValueError, match="no"), service.transaction() as tx:  # noqa: PT012  # what the block does
        tx.ack(tx.receive(orders, timeout=0))
        tx.put(invoices, Invoice(1, 100))
        raise ValueError("no")
    assert tx.state is State.ABORTED
    assert orders.receive(timeout=0).delivery_count == 2
    with pytest.raises(Empty):
        invoices.receive(timeout=0)


def test_the_end_of_a_deliverys_block_acknowledges_it_with_the_transaction(
    service: QueueService, orders: TypedQueue[Order]
) -> None:
    """As with the queue of bytes."""
    with service.transaction() as tx, tx.receive(orders, timeout=0):
        pass
    assert orders.stats().depth == 0


def test_deliveries_of_a_receive_are_taken_over(
    service: QueueService, orders: TypedQueue[Order], invoices: TypedQueue[Invoice]
) -> None:
    """One, or several of several queues."""
    invoices.put_many([Invoice(1, 1), Invoice(2, 2)])
    order, batch = orders.receive(timeout=0), invoices.receive_many(2, timeout=0)
    with service.transaction() as tx:
        tx.ack([order, *batch])
        tx.put(orders, Order(2))
        with pytest.raises(TransactionStateError):
            order.ack()
    assert (orders.stats().depth, invoices.stats().depth) == (1, 0)


def test_a_stale_delivery_is_refused(service: QueueService, orders: TypedQueue[Order]) -> None:
    """And the transaction may go on without it."""
    message = orders.receive(timeout=0)
    message.ack()
    with service.transaction() as tx, pytest.raises(StaleReceiptError):
        tx.ack(message)


def test_deliveries_of_a_queue_that_is_not_open_here_are_refused(
    service: QueueService, orders: TypedQueue[Order]
) -> None:
    """The service would not know which queue to finish them in."""
    with QueueService(service.path.parent / "elsewhere", mode="exclusive", catalog=False) as other:
        foreign = other.queue("orders", type=Order)
        foreign.put(Order(1))
        message = foreign.receive(timeout=0)
        with service.transaction() as tx, pytest.raises(UsageError, match="not of a queue"):
            tx.ack(message)


def test_an_object_of_another_type_is_refused_and_none_of_its_batch_is_put(
    service: QueueService, invoices: TypedQueue[Invoice]
) -> None:
    """What was put before it stays in the transaction."""
    with service.transaction() as tx:
        tx.put(invoices, Invoice(1, 1))
        with pytest.raises(EncodeError):
            tx.put_many(invoices, [Invoice(2, 2), Order(2)])  # type: ignore[list-item]
    assert invoices.stats().depth == 1


def test_what_cannot_be_decoded_is_passed_by_whatever_becomes_of_the_transaction(
    service: QueueService, orders: TypedQueue[Order]
) -> None:
    """It is a dead letter, uncounted, and the next message comes."""
    orders.receive(timeout=0).ack()
    orders.raw.put(b"garbage")
    orders.put(Order(2))
    tx = service.transaction()
    assert tx.receive(orders, timeout=0).body == Order(2)
    tx.abort()
    (letter,) = orders.dead.list(reason="undecodable")
    assert (letter.payload, letter.delivery_count) == (b"garbage", 0)
    assert orders.stats().depth == 1


def test_waiting_for_a_message_ends_with_its_timeout(service: QueueService, orders: TypedQueue[Order]) -> None:
    """Also behind what cannot be decoded."""
    orders.receive(timeout=0).ack()
    orders.raw.put(b"garbage")
    with service.transaction() as tx, pytest.raises(Empty):
        tx.receive(orders, timeout=0.01)


def test_a_transaction_ends_with_its_time(service: QueueService, orders: TypedQueue[Order]) -> None:
    """Later verbs say so."""
    tx = service.transaction(timeout=0)
    with pytest.raises(TransactionStateError, match="its timeout of 0 s expired"):
        tx.put(orders, Order(2))
    assert "aborted" in repr(tx)


def test_a_transaction_without_work_commits(service: QueueService) -> None:
    """There is nothing to do."""
    with service.transaction() as tx:
        pass
    assert tx.commit() == {}


def test_closing_the_service_aborts_what_is_open(service: QueueService, orders: TypedQueue[Order]) -> None:
    """Nothing of it is there when it opens again."""
    tx = service.transaction()
    tx.put(orders, Order(2))
    service.close()
    with pytest.raises(TransactionStateError):
        tx.commit()
    with QueueService(service.path, mode="exclusive", catalog=False) as again:
        assert again.queue("orders").stats().depth == 1
