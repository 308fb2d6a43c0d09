"""Messages in the hands of a transaction: taken inside of it, or taken over from whoever received them."""

from collections.abc import Iterator

import pytest

from holdfast import Delivery, Empty, PersistentQueue, StaleReceiptError, Transaction, TransactionStateError
from support.builders.transactions import INVOICES, failing, kill, open_queue, waiting
from support.processes.threads import Threads
from support.storages.simulated_storage import SimulatedStorage


@pytest.fixture
def queue(storage: SimulatedStorage) -> Iterator[PersistentQueue]:
    """Open a queue of three messages, where a failure is no reason to wait."""
    with open_queue(storage, backoff=[]) as opened:
        opened.put_many([b"one", b"two", b"three"])
        yield opened


def test_what_a_transaction_takes_is_not_there_for_others(queue: PersistentQueue) -> None:
    """It counts as in flight, as any message in hand."""
    tx = queue.begin()
    message = tx.receive(timeout=0)
    assert (message.payload, message.offset, message.delivery_count) == (b"one", 0, 1)
    assert waiting(queue) == [b"two", b"three"]
    assert (queue.qsize(), queue.stats().depth, queue.stats().in_flight) == (2, 3, 1)
    assert queue.begin().receive(timeout=0).payload == b"two"
    assert queue.get(timeout=0) == b"three"
    with pytest.raises(Empty):
        tx.receive(timeout=0)


def test_what_was_not_acknowledged_is_given_back_at_commit(queue: PersistentQueue) -> None:
    """As if it had not been received, and before what comes later."""
    with queue.transaction() as tx:
        first, second = tx.receive(timeout=0), tx.receive(timeout=0)
        tx.ack(second)
    assert first.is_settled
    assert second.is_settled
    assert waiting(queue) == [b"one", b"three"]
    assert queue.receive(timeout=0).delivery_count == 1


def test_everything_is_given_back_at_abort(queue: PersistentQueue) -> None:
    """What the transaction meant to acknowledge too."""
    tx = queue.begin()
    message = tx.receive(timeout=0)
    tx.ack(message)
    tx.receive(timeout=0)
    tx.abort()
    assert message.is_settled
    assert waiting(queue) == [b"one", b"two", b"three"]
    with pytest.raises(StaleReceiptError):
        message.ack()


def test_an_acknowledgement_counts_from_commit_on(queue: PersistentQueue, storage: SimulatedStorage) -> None:
    """Until then a crash brings the message back; from then on nothing does."""
    tx = queue.begin()
    tx.ack(tx.receive(timeout=0))
    with open_queue(storage.crash_keeping_all(), mode="read_only") as look:
        assert look.stats().depth == 3
    assert tx.commit() == range(3, 3)
    with open_queue(kill(storage, queue)) as reopened:
        assert waiting(reopened) == [b"two", b"three"]


def test_settling_past_the_transaction_is_refused(queue: PersistentQueue) -> None:
    """By ack and nack of the delivery, and by those of a batch that names it."""
    with queue.transaction() as tx:
        own = tx.receive(timeout=0)
        batch = queue.receive_many(2, timeout=0)
        tx.ack(batch[0])
        for call in (own.ack, own.nack, batch[0].ack, batch[0].nack, lambda: batch.ack(batch[:1])):
            with pytest.raises(TransactionStateError, match="belongs to transaction"):
                call()
        batch.nack(delay=0)
        assert batch[1].is_settled
    assert waiting(queue) == [b"one", b"three"]


def test_with_on_a_message_acknowledges_it_in_the_transaction(queue: PersistentQueue) -> None:
    """After an exception it is given back when the transaction ends."""
    with queue.transaction() as tx:
        with tx.receive(timeout=0) as message:
            assert message.payload == b"one"
        assert not message.is_settled, "it waits for the commit"
        with pytest.raises(ZeroDivisionError), tx.receive(timeout=0):
            raise ZeroDivisionError
    assert waiting(queue) == [b"two", b"three"]


def ack_inside(queue: PersistentQueue, tx: Transaction) -> Delivery:
    """Receive within the transaction."""
    with queue.receive(timeout=0) as message:
        tx.ack(message)
    return message


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_message_received_inside_a_transaction_may_be_taken_over(queue: PersistentQueue, is_clean: bool) -> None:
    """It is the transaction's from ``tx.ack`` on; its own ``with`` changes nothing then."""
    tx = queue.begin()
    message = ack_inside(queue, tx)
    assert not message.is_settled
    if is_clean:
        tx.commit()
        assert waiting(queue) == [b"two", b"three"]
    else:
        tx.abort()
        assert waiting(queue) == [b"two", b"three"], "it is in its receiver's hand again"
        message.nack(delay=0)
        assert waiting(queue) == [b"one", b"two", b"three"]


def test_a_message_received_around_a_transaction_may_be_taken_over(queue: PersistentQueue) -> None:
    """An aborted transaction leaves it to the ``with`` around."""
    with queue.receive(timeout=0) as message, queue.transaction() as tx:
        tx.ack(message)
        tx.put(b"result of one")
    assert message.is_settled
    with failing(), queue.receive(timeout=0) as message, queue.transaction() as tx:
        tx.ack(message)
        raise ZeroDivisionError
    assert waiting(queue) == [b"two", b"three", b"result of one"]
    with queue.receive(timeout=0) as message:
        tx = queue.begin()
        tx.ack(message)
        tx.abort()
    assert waiting(queue) == [b"three", b"result of one"]


def test_a_batch_may_be_taken_over_in_part(queue: PersistentQueue) -> None:
    """Its own ``with`` settles the rest."""
    with queue.receive_many(3, timeout=0) as batch:
        tx = queue.begin()
        tx.ack([batch[0], batch[2]])
        tx.commit()
        assert [each.is_settled for each in batch] == [True, False, True]
        batch.nack(delay=0)
    assert waiting(queue) == [b"two"]


def test_leaving_a_batch_lets_the_transaction_have_its_part(queue: PersistentQueue) -> None:
    """The batch's ``with`` may end first."""
    tx = queue.begin()
    with queue.receive_many(3, timeout=0) as batch:
        tx.ack(batch[:1])
    assert [each.is_settled for each in batch] == [False, True, True]
    tx.commit()
    assert waiting(queue) == []


def test_stale_deliveries_are_refused_and_nothing_is_taken_over(queue: PersistentQueue) -> None:
    """Of those named together none is; naming one twice is no mistake."""
    stale, live = queue.receive(timeout=0), queue.receive(timeout=0)
    stale.ack()
    tx = queue.begin()
    with pytest.raises(StaleReceiptError):
        tx.ack([live, stale])
    live.nack(delay=0)
    message = tx.receive(timeout=0)
    tx.ack([message, message])
    tx.ack(message)
    tx.commit()
    assert waiting(queue) == [b"three"]
    with pytest.raises(StaleReceiptError):
        queue.begin().ack(message)


def test_what_another_transaction_has_is_refused(queue: PersistentQueue) -> None:
    """Also once that one has ended."""
    other, tx = queue.begin(), queue.begin()
    message = other.receive(timeout=0)
    with pytest.raises(TransactionStateError, match=other.id):
        tx.ack(message)
    other.abort()
    with pytest.raises(StaleReceiptError):
        tx.ack(message)
    assert tx.commit() == range(3, 3)


def test_a_delivery_of_another_queue_is_refused(queue: PersistentQueue, storage: SimulatedStorage) -> None:
    """An offset alone says nothing."""
    with open_queue(storage, INVOICES) as other:
        other.put(b"x")
        message, tx = other.receive(timeout=0), queue.begin()
        tx.receive(timeout=0)
        with pytest.raises(StaleReceiptError):
            tx.ack(message)
        tx.abort()
        message.ack()


def test_ack_takes_deliveries_and_nothing_else(queue: PersistentQueue) -> None:
    """An offset is not one."""
    tx = queue.begin()
    with pytest.raises(TypeError, match="deliveries"):
        tx.ack([0])  # type: ignore[list-item]


def test_commit_says_so_where_an_immediate_shutdown_took_its_messages(queue: PersistentQueue) -> None:
    """They were given back; nothing has happened."""
    tx = queue.begin()
    tx.ack(tx.receive(timeout=0))
    queue.shutdown(immediate=True)
    with pytest.raises(StaleReceiptError):
        tx.commit()
    tx.abort()
    assert queue.stats().depth == 3


def test_a_waiting_consumer_gets_what_a_transaction_gives_back(queue: PersistentQueue, threads: Threads) -> None:
    """At once."""
    tx = queue.begin()
    for _ in range(3):
        tx.receive(timeout=0)
    found: list[bytes] = []
    thread = threads.start(lambda: found.append(queue.get(timeout=20)))
    tx.abort()
    thread.join(5)
    assert found == [b"one"]
