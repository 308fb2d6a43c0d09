"""The verbs of deliveries and of batches: what each does, and that a stale delivery changes nothing."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from holdfast import (
    ClosedError,
    Delivery,
    DeliveryBatch,
    Empty,
    LeaseExpiredError,
    PersistentQueue,
    StaleReceiptError,
    TransactionStateError,
    UsageError,
)
from support.builders.jobs import Jobs, drained, fail, in_hand, ready

VERBS: dict[str, Callable[[Delivery], object]] = {
    "ack": Delivery.ack,
    "nack": Delivery.nack,
    "nack at once": lambda delivery: delivery.nack(0),
    "nack later": lambda delivery: delivery.nack(60),
    "reject": lambda delivery: delivery.reject("no"),
    "release": Delivery.release,
    "extend": lambda delivery: delivery.extend(60),
}
BATCH_VERBS: dict[str, Callable[..., object]] = {
    "ack": DeliveryBatch.ack,
    "nack": DeliveryBatch.nack,
    "reject": lambda batch, *items: batch.reject("no", *items),
    "release": DeliveryBatch.release,
    "extend": lambda batch, *items: batch.extend(60, *items),
}


@pytest.fixture
def jobs() -> Jobs:
    """A queue with four messages."""
    jobs = Jobs()
    jobs.put(b"a", b"b", b"c", b"d")
    return jobs


def picture(queue: PersistentQueue) -> dict[str, Any]:
    """Return all that can be known of a queue."""
    stats = queue.stats()
    states = {state: queue.browse(state) for state in ("ready", "leased", "delayed", "dead")}
    return {
        "stats": (stats.depth, stats.in_flight, stats.delayed, stats.dead),
        "next": ready(queue),
        "dead": queue.dead.list(),
        **states,
    }


# -- What each does --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "left", "count", "stats"),
    [
        ("ack", [b"b", b"c", b"d"], None, (3, 0, 0, 0)),
        ("nack", [b"b", b"c", b"d"], None, (4, 0, 1, 0)),
        ("nack at once", [b"a", b"b", b"c", b"d"], 2, (4, 0, 0, 0)),
        ("nack later", [b"b", b"c", b"d"], None, (4, 0, 1, 0)),
        ("reject", [b"b", b"c", b"d"], None, (3, 0, 0, 1)),
        ("release", [b"a", b"b", b"c", b"d"], 1, (4, 0, 0, 0)),
        ("extend", [b"b", b"c", b"d"], None, (4, 1, 0, 0)),
    ],
)
def test_each_verb_does_what_it_says(
    jobs: Jobs, verb: str, left: list[bytes], count: int | None, stats: tuple[int, int, int, int]
) -> None:
    """In memory, and for who looks from another process."""
    with jobs.open(backoff=[10]) as queue, jobs.open(mode="read_only") as look:
        delivery = queue.receive()
        VERBS[verb](delivery)
        assert delivery.is_settled == (verb != "extend")
        found = queue.stats()
        assert (found.depth, found.in_flight, found.delayed, found.dead) == stats
        assert ready(queue) == left
        assert [each.offset for each in look.browse("dead")] == ([0] if verb == "reject" else [])
        assert [each.offset for each in look.browse("delayed")] == ([0] if stats[2] else [])
        if count is not None:
            again = queue.receive()
            assert (again.payload, again.delivery_count) == (b"a", count)


@pytest.mark.parametrize("verb", VERBS)
def test_what_a_verb_did_survives_a_kill(jobs: Jobs, verb: str) -> None:
    """What the handle shows is what is found."""
    queue = jobs.open(backoff=[10])
    VERBS[verb](queue.receive())
    shown = picture(queue)
    with jobs.killed().open(backoff=[10]) as again:
        found = picture(again)
        if verb == "extend":  # the lease died with the process
            assert found["next"] == [b"a", b"b", b"c", b"d"]
        else:
            assert found == shown
    queue.close()


def test_a_message_that_was_released_comes_in_company(jobs: Jobs) -> None:
    """It has not failed."""
    with jobs.open() as queue:
        queue.receive_many(2).release()
        assert [each.payload for each in queue.receive_many(2)] == [b"a", b"b"]


def test_releasing_a_message_that_failed_before_keeps_its_failures(jobs: Jobs) -> None:
    """Only this delivery did not take place."""
    with jobs.open(max_deliveries=3) as queue:
        queue.receive().nack()
        failed_ns = jobs.clock.time_ns()
        jobs.clock.advance(100)
        for _ in range(5):
            queue.receive().release()
        again = queue.receive()
        assert (again.payload, again.delivery_count) == (b"a", 2)
        again.reject("enough")
        assert queue.dead.list()[0].first_failure_ns == failed_ns


@pytest.mark.parametrize("delay", [-1, float("nan"), float("inf"), -0.001])
def test_a_delay_that_cannot_be_is_refused_and_the_delivery_stays(jobs: Jobs, delay: float) -> None:
    """Before anything is written."""
    with jobs.open() as queue:
        delivery = queue.receive()
        with pytest.raises(UsageError):
            delivery.nack(delay)
        with pytest.raises(TypeError):
            delivery.nack("1")  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            delivery.reject(None)  # type: ignore[arg-type]
        assert in_hand(queue) == 1
        delivery.ack()


def test_a_delay_of_a_thousand_years_is_one_and_stops_nobody(jobs: Jobs) -> None:
    """It is more than an entry could hold, and more than a thread can sleep."""
    with jobs.open() as queue:
        queue.receive().nack(1e11)
        assert drained(queue) == [b"b", b"c", b"d"]
        with pytest.raises(Empty):
            queue.receive(timeout=0.01)
        assert queue.stats().delayed == 1
    with jobs.open() as queue:
        assert queue.stats().depth == 1
        assert ready(queue) == []


# -- Stale deliveries ------------------------------------------------------------------------------------------------


def other_hands(queue: PersistentQueue, delivery: Delivery, _: Jobs) -> None:
    """The message was given back, and somebody else has it."""
    delivery.nack(0)
    assert queue.receive().offset == delivery.offset


def lease_over(queue: PersistentQueue, delivery: Delivery, jobs: Jobs) -> None:
    """And somebody else has the message."""
    jobs.clock.advance(31)
    assert queue.receive().offset == delivery.offset


def lease_over_unnoticed(_: PersistentQueue, __: Delivery, jobs: Jobs) -> None:
    """Nobody has looked since."""
    jobs.clock.advance(31)


def retried(queue: PersistentQueue, delivery: Delivery, _: Jobs) -> None:
    """It was dead meanwhile, and is ready again."""
    delivery.reject("no")
    queue.dead.retry(delivery.offset)


def discarded(queue: PersistentQueue, delivery: Delivery, _: Jobs) -> None:
    """It was dead, and is done."""
    delivery.reject("no")
    queue.dead.discard(delivery.offset)


def committed(queue: PersistentQueue, delivery: Delivery, _: Jobs) -> None:
    """A transaction committed it."""
    with queue.transaction() as tx:
        tx.ack(delivery)


STALE: dict[str, Callable[[PersistentQueue, Delivery, Jobs], object]] = {
    "acknowledged": lambda queue, delivery, jobs: delivery.ack(),
    "given back": lambda queue, delivery, jobs: delivery.nack(0),
    "delayed": lambda queue, delivery, jobs: delivery.nack(60),
    "released": lambda queue, delivery, jobs: delivery.release(),
    "rejected": lambda queue, delivery, jobs: delivery.reject("no"),
    "retried": retried,
    "discarded": discarded,
    "in other hands": other_hands,
    "ran out": lease_over,
    "ran out, unnoticed": lease_over_unnoticed,
    "failed in its block": lambda queue, delivery, jobs: fail(delivery),
    "committed": committed,
    "shut down": lambda queue, delivery, jobs: queue.shutdown(immediate=True),
}


@pytest.mark.parametrize("how", STALE)
@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_on_a_stale_delivery_raises_and_changes_nothing(jobs: Jobs, verb: str, how: str) -> None:
    """Whatever made it stale; where its lease ran out the error says so."""
    with jobs.open(max_deliveries=10) as queue:
        delivery = queue.receive()
        STALE[how](queue, delivery, jobs)
        before = None if how == "shut down" else picture(queue)
        write_count = jobs.storage.mutation_count
        with pytest.raises(StaleReceiptError) as stale:
            VERBS[verb](delivery)
        assert isinstance(stale.value, LeaseExpiredError) == how.startswith("ran out")
        assert stale.value.offset == 0
        assert jobs.storage.mutation_count == write_count
        assert before is None or picture(queue) == before


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_on_a_delivery_of_a_closed_queue_is_refused(jobs: Jobs, verb: str) -> None:
    """Closing has given the message back."""
    with jobs.open() as queue:
        delivery = queue.receive()
    with pytest.raises(ClosedError):
        VERBS[verb](delivery)
    with jobs.open() as queue:
        assert ready(queue) == [b"a", b"b", b"c", b"d"]


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_on_a_delivery_that_a_transaction_has_is_refused(jobs: Jobs, verb: str) -> None:
    """It goes with the transaction."""
    with jobs.open() as queue:
        delivery = queue.receive()
        tx = queue.begin()
        tx.ack(delivery)
        before = picture(queue)
        with pytest.raises(TransactionStateError):
            VERBS[verb](delivery)
        assert picture(queue) == before
        tx.commit()
        assert drained(queue) == [b"b", b"c", b"d"]


# -- Batches ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", BATCH_VERBS)
def test_a_verb_of_a_batch_takes_some_or_all_that_are_left(jobs: Jobs, verb: str) -> None:
    """Those that were settled one by one are left alone; so is everything where none are named."""
    with jobs.open() as queue:
        batch = queue.receive_many(4)
        BATCH_VERBS[verb](batch, [])
        assert in_hand(queue) == 4
        BATCH_VERBS[verb](batch, [batch[1], batch[3], batch[1]])
        settled = [verb != "extend" and each.offset in (1, 3) for each in batch]
        assert [each.is_settled for each in batch] == settled
        batch[0].ack()
        BATCH_VERBS[verb](batch)
        assert in_hand(queue) == (3 if verb == "extend" else 0)
        assert all(each.is_settled for each in batch) == (verb != "extend")
        BATCH_VERBS[verb](batch)  # none is left


@pytest.mark.parametrize("how", [how for how in STALE if how != "shut down"])  # which makes all of them stale
@pytest.mark.parametrize("verb", BATCH_VERBS)
def test_a_verb_of_a_batch_settles_all_or_nothing(jobs: Jobs, verb: str, how: str) -> None:
    """Where one of those named is stale none has changed, wherever it stands."""
    for place in range(3):
        fresh = Jobs(jobs.storage.crash_keeping_all(), jobs.clock)
        with fresh.open(max_deliveries=10) as queue:
            batch = queue.receive_many(3, lease_seconds=1000)
            batch[place].extend(30)
            with suppress(AssertionError):  # another message may come first
                STALE[how](queue, batch[place], fresh)
            before = picture(queue)
            with pytest.raises(StaleReceiptError):
                BATCH_VERBS[verb](batch, list(batch))
            assert picture(queue) == before
            assert [each.is_settled for each in batch] == [number == place for number in range(3)]


def test_a_batch_may_be_settled_in_all_ways_at_once(jobs: Jobs) -> None:
    """Each message as it deserves; the end of the block takes the rest."""
    with jobs.open(backoff=[10]) as queue:
        with queue.receive_many(4) as batch:
            batch.nack([batch[0]], delay=5)
            batch.reject("no", [batch[1]])
            batch.release([batch[2]])
        assert ready(queue) == [b"c"]
        assert [letter.payload for letter in queue.dead.list()] == [b"b"]
        jobs.clock.advance(6)
        assert ready(queue) == [b"a", b"c"]


@pytest.mark.parametrize("max_deliveries", [1, 2, 5])
def test_one_poison_message_takes_no_other_of_its_batch_along(max_deliveries: int) -> None:
    """The batch comes again one by one; the one to blame ends as a dead letter that says why, all others are done."""
    jobs = Jobs()
    with jobs.open(max_deliveries=max_deliveries) as queue:
        queue.put_many([b"%d" % number for number in range(20)])
        done: list[bytes] = []
        sizes: list[int] = []
        with suppress(Empty):
            while True:
                with suppress(ValueError), queue.receive_many(10, timeout=0) as batch:
                    sizes.append(len(batch))
                    if any(each.payload == b"7" for each in batch):
                        raise ValueError("7 is poison")
                    done += [each.payload for each in batch]
        letters = {letter.payload: letter for letter in queue.dead.list()}
        poison = letters[b"7"]
        assert (poison.reason, poison.detail, poison.exception) == ("exception", "7 is poison", "builtins.ValueError")
        assert "test_delivery_verbs.py" in poison.traceback
        assert 'raise ValueError("7 is poison")' in poison.traceback
        assert poison.delivery_count == max_deliveries
        if max_deliveries > 1:
            assert sorted(done, key=int) == [b"%d" % number for number in range(20) if number != 7]
            assert list(letters) == [b"7"]
            assert sizes.count(10) == 2
            assert set(sizes) == {1, 10}
        else:  # nobody was told that it is one by one then: there is no further delivery
            assert len(letters) == 10
        assert queue.stats().depth == 0
