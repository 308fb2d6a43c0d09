"""Messages that nobody can read are parked: dead letters whose delivery does not count."""

from contextlib import suppress

import pytest

from holdfast import Delivery, StaleReceiptError, TransactionStateError
from support.builders.jobs import Jobs


@pytest.fixture
def jobs() -> Jobs:
    """A queue with two messages."""
    jobs = Jobs()
    with jobs.open() as queue:
        queue.put_many([b"a", b"b"])
    return jobs


def test_a_parked_message_is_a_dead_letter_with_its_error_and_without_this_delivery(jobs: Jobs) -> None:
    """It keeps what was wrong, also over a restart, and the next message comes."""
    with jobs.open() as queue:
        queue.receive(timeout=0).nack(0)
        queue.receive(timeout=0).park(ValueError("no text"))
        assert queue.receive(timeout=0).payload == b"b"
    with jobs.open() as queue:
        (letter,) = queue.dead.list(reason="undecodable")
        assert (letter.payload, letter.delivery_count, letter.detail) == (b"a", 1, "no text")
        assert letter.exception == "builtins.ValueError"
        assert queue.dead.retry(letter) == 1
        assert queue.receive(timeout=0).payload == b"a"


def test_a_stale_delivery_parks_nothing(jobs: Jobs) -> None:
    """As every verb of it."""
    with jobs.open() as queue:
        delivery = queue.receive(timeout=0)
        delivery.ack()
        with pytest.raises(StaleReceiptError):
            delivery.park(ValueError("no text"))
        assert len(queue.dead) == 0


@pytest.mark.parametrize("commits", [True, False])
def test_parking_what_a_transaction_has_received_is_no_part_of_the_transaction(jobs: Jobs, *, commits: bool) -> None:
    """It is parked whatever becomes of that, and cannot be acknowledged by it any more."""
    with jobs.open() as queue:
        tx = queue.begin()
        delivery = tx.receive(timeout=0)
        delivery.park(ValueError("no text"))
        with pytest.raises(StaleReceiptError):
            tx.ack(delivery)
        tx.commit() if commits else tx.abort()
        assert [letter.offset for letter in queue.dead.list(reason="undecodable")] == [0]
        assert queue.stats().depth == 1


def test_a_parked_head_lets_its_order_key_go_on(jobs: Jobs) -> None:
    """The next message of the key comes."""
    with jobs.open() as queue:
        queue.get_many(2)
        queue.put(b"first", order_key="k")
        queue.put(b"second", order_key="k")
        queue.receive(timeout=0).park(ValueError("no text"))
        assert queue.receive(timeout=0).payload == b"second"


def test_an_error_given_with_a_nack_is_kept_where_it_was_the_last_one(jobs: Jobs) -> None:
    """Its type, its text and its traceback."""
    with jobs.open(max_deliveries=1) as queue:
        delivery: Delivery = queue.receive(timeout=0)
        try:
            raise KeyError("sku")
        except KeyError as error:
            delivery.nack(error=error)
        (letter,) = queue.dead.list(reason="exception")
        assert (letter.detail, letter.exception) == ("'sku'", "builtins.KeyError")
        assert 'raise KeyError("sku")' in letter.traceback


def test_the_end_of_a_transactions_block_leaves_a_parked_message_alone(jobs: Jobs) -> None:
    """Its exception would give back what the transaction has, and it has that one no longer."""
    with jobs.open() as queue:
        with suppress(ValueError), queue.transaction() as tx:
            tx.receive(timeout=0).park(ValueError("no text"))
            raise ValueError("no")
        assert len(queue.dead) == 1
        assert queue.stats().depth == 1


def test_a_delivery_of_a_transaction_still_refuses_other_verbs(jobs: Jobs) -> None:
    """Parking is the exception, because it is no verdict on the work."""
    with jobs.open() as queue, queue.transaction() as tx:
        delivery = tx.receive(timeout=0)
        with pytest.raises(TransactionStateError):
            delivery.reject("no")
