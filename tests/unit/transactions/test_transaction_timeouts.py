"""A transaction's time: when it is over it aborts, and what it has taken is there for others."""

import time
from collections.abc import Iterator

import pytest

import holdfast
from holdfast import Delivery, LeaseExpiredError, PersistentQueue, StaleReceiptError, TransactionStateError
from holdfast.queue.transactions.transaction import TIMEOUT_SECONDS
from holdfast.queue.transactions.transaction_state import State
from support.builders.clocks import FakeClock
from support.builders.transactions import INVOICES, failing, open_queue, prepared_ids, waiting
from support.processes.threads import Threads, wait_until
from support.storages.simulated_storage import SimulatedStorage


@pytest.fixture
def clock() -> FakeClock:
    """Return a clock that stands still."""
    return FakeClock()


@pytest.fixture
def queue(storage: SimulatedStorage, clock: FakeClock) -> Iterator[PersistentQueue]:
    """Open a queue of two messages."""
    with open_queue(storage, clock=clock, max_deliveries=None) as opened:
        opened.put_many([b"one", b"two"])
        yield opened


def test_after_a_minute_verbs_say_that_the_time_is_over(queue: PersistentQueue, clock: FakeClock) -> None:
    """All but abort; whichever comes first gives back what was taken."""
    assert TIMEOUT_SECONDS == 60
    verbs = (
        lambda tx: tx.put(b"x"),
        lambda tx: tx.put_many([b"x"]),
        lambda tx: tx.put_stream([b"x"]),
        lambda tx: tx.receive(timeout=0),
        lambda tx: tx.ack([]),
        lambda tx: tx.prepare(),
        lambda tx: tx.commit(),
    )
    for verb in verbs:
        tx = queue.begin()
        tx.put(b"never")
        tx.ack(tx.receive(timeout=0))
        clock.advance(59.9)
        tx.put(b"in time")
        assert waiting(queue) == [b"two"]
        clock.advance(0.1)
        with pytest.raises(TransactionStateError, match=r"is aborted \(its timeout of 60 s expired\)"):
            verb(tx)
        tx.abort()
        assert waiting(queue) == [b"one", b"two"]


def test_a_message_that_a_seek_has_brought_once_more_is_given_back(queue: PersistentQueue, clock: FakeClock) -> None:
    """The transaction has acknowledged it before, for another receiver."""
    tx = queue.begin()
    tx.ack(queue.receive(timeout=0))
    queue.groups.seek("default", "earliest")
    again = tx.receive(timeout=0)
    assert again.payload == b"one"
    clock.advance(60)
    assert waiting(queue) == [b"one", b"two"]
    with pytest.raises(StaleReceiptError):
        again.ack()


def test_the_timeout_may_be_chosen(queue: PersistentQueue, clock: FakeClock) -> None:
    """For begin and transaction alike."""
    for tx in (queue.begin(timeout=5), queue.transaction(timeout=5)):
        clock.advance(5)
        with pytest.raises(TransactionStateError, match="its timeout of 5 s expired"):
            tx.put(b"x")


def test_a_timeout_that_is_no_time_is_refused(queue: PersistentQueue) -> None:
    """Less than nothing, and what is no number; without end is one."""
    for wrong in (-1, float("nan")):
        for begin in (queue.begin, queue.transaction, lambda timeout: holdfast.transaction(queue, timeout=timeout)):
            with pytest.raises(ValueError, match="at least 0 seconds"):
                begin(timeout=wrong)


def test_a_timeout_may_be_endless(queue: PersistentQueue, threads: Threads) -> None:
    """It is waited for as if there were none."""
    tx = queue.begin(timeout=float("inf"))
    assert [tx.receive().payload, queue.get()] == [b"one", b"two"]
    threads.start(tx.receive)
    threads.start(queue.get)
    queue.put_many([b"three", b"four"])
    threads.join(10)
    assert queue.qsize() == 0


def test_a_with_block_that_took_too_long_does_not_pretend_to_have_committed(
    queue: PersistentQueue, clock: FakeClock
) -> None:
    """Its end raises; an exception of the block itself comes first."""
    with failing(TransactionStateError), queue.transaction() as tx:
        tx.put(b"never")
        clock.advance(61)
    with failing(), queue.transaction() as tx:
        clock.advance(61)
        raise ZeroDivisionError
    assert tx.state is State.ABORTED
    assert waiting(queue) == [b"one", b"two"]


def test_messages_come_back_though_nobody_calls_the_transaction(queue: PersistentQueue, clock: FakeClock) -> None:
    """Whoever looks or takes next finds them; also when the transaction was dropped."""
    queue.begin().receive(timeout=0)
    kept = queue.begin(timeout=30)
    kept.receive(timeout=0)
    assert (waiting(queue), queue.qsize(), queue.stats().in_flight) == ([], 0, 2)
    clock.advance(30)
    assert (queue.qsize(), queue.stats().in_flight) == (1, 1)
    clock.advance(30)
    assert waiting(queue) == [b"one", b"two"]
    assert kept.state is State.ABORTED
    assert queue.get_many(2, timeout=0) == [b"one", b"two"]


def test_a_waiting_receiver_gets_the_message_at_the_deadline(storage: SimulatedStorage, threads: Threads) -> None:
    """Though the transaction's owner has gone to sleep."""
    with open_queue(storage) as queue:
        queue.put(b"one")
        begun = time.monotonic()
        sleeper = queue.begin(timeout=1)
        sleeper.receive(timeout=0)
        found: list[Delivery] = []
        threads.start(lambda: found.append(queue.receive()))  # without an end of its own
        wait_until(lambda: bool(found))
        assert time.monotonic() - begun >= 1
        assert (found[0].payload, found[0].delivery_count) == (b"one", 2)
        assert sleeper.state is State.ABORTED


def test_another_transaction_gets_the_message_at_the_deadline(storage: SimulatedStorage) -> None:
    """One that waits wakes for the deadlines of the others."""
    with open_queue(storage) as queue:
        queue.put(b"one")
        queue.begin(timeout=2).receive(timeout=0)
        with queue.transaction(timeout=20) as tx:
            tx.ack(tx.receive())
        assert queue.qsize() == 0


def test_receiving_waits_no_longer_than_the_transaction_lives(storage: SimulatedStorage) -> None:
    """What it had taken before is there for others, and not taken by itself once more."""
    with open_queue(storage) as queue:
        queue.put(b"one")
        tx = queue.begin(timeout=2)
        tx.receive()
        with pytest.raises(TransactionStateError, match=r"its timeout of .* s expired"):
            tx.receive(timeout=20)
        assert queue.stats().in_flight == 0
        assert waiting(queue) == [b"one"]


def test_what_was_taken_over_goes_back_to_its_receiver(queue: PersistentQueue, clock: FakeClock) -> None:
    """He can settle it again from the deadline on, though nobody calls the transaction."""
    first, second = queue.receive(timeout=0), queue.receive(timeout=0)
    tx = queue.begin()
    tx.ack([first, second])
    with pytest.raises(TransactionStateError):
        first.ack()
    clock.advance(60)
    first.ack()
    assert tx.state is State.ABORTED
    clock.advance(29)
    assert waiting(queue) == [], "leased anew, though nobody looked while its first lease ran out"
    clock.advance(1)
    assert waiting(queue) == [b"two"]
    with pytest.raises(LeaseExpiredError):
        second.nack()


def test_a_prepared_transaction_has_no_timeout(queue: PersistentQueue, clock: FakeClock) -> None:
    """It waits for its verdict for ever, and says how long it has."""
    tx = queue.begin()
    tx.ack(tx.receive(timeout=0))
    tx.put(b"new")
    tx.prepare("t")
    clock.advance(86_400)
    assert waiting(queue) == [b"two"]
    assert prepared_ids(queue) == ["t"]
    assert queue.prepared()[0].age_seconds == 86_400
    assert tx.commit() == range(2, 3)
    assert waiting(queue) == [b"two", b"new"]


def test_a_transaction_over_several_queues_gives_back_everywhere(
    queue: PersistentQueue, storage: SimulatedStorage, clock: FakeClock
) -> None:
    """Whichever of them somebody looks at."""
    with open_queue(storage, INVOICES, clock=clock) as other:
        other.put(b"uno")
        tx = holdfast.transaction(queue, other)
        tx.receive(queue, timeout=0)
        tx.receive(other, timeout=0)
        clock.advance(60)
        assert waiting(other) == [b"uno"]
        assert waiting(queue) == [b"one", b"two"]
        with pytest.raises(TransactionStateError, match=r"its timeout of .* s expired"):
            tx.put(queue, b"x")
