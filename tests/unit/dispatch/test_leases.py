"""Leases: how long a message is its receiver's, what ends that, and who hears of it."""

from contextlib import suppress
from datetime import timedelta

import pytest

from holdfast import (
    LeaseExpiredError,
    StaleReceiptError,
    TransactionStateError,
    UsageError,
)
from support.builders.handles import handle_of
from support.builders.jobs import Jobs, drained, in_hand, ready


@pytest.fixture
def jobs() -> Jobs:
    """A queue with three messages."""
    jobs = Jobs()
    jobs.put(b"a", b"b", b"c")
    return jobs


# -- Running out -----------------------------------------------------------------------------------------------------


def test_a_message_is_ready_again_when_its_lease_has_run_out_and_not_before(jobs: Jobs) -> None:
    """At once, whatever the back-off, and counted."""
    with jobs.open(lease_seconds=30, backoff=[100]) as queue:
        first = queue.receive()
        jobs.clock.advance(29.9)
        assert ready(queue) == [b"b", b"c"]
        assert not first.has_expired
        jobs.clock.advance(0.2)
        assert ready(queue) == [b"a", b"b", b"c"]
        assert first.has_expired
        assert first.is_settled
        second = queue.receive()
        assert (second.payload, second.delivery_count) == (b"a", 2)


def test_the_default_lease_is_thirty_seconds(jobs: Jobs) -> None:
    """As the documentation says."""
    with jobs.open() as queue:
        queue.receive()
        jobs.clock.advance(29.9)
        assert in_hand(queue) == 1
        jobs.clock.advance(0.2)
        assert in_hand(queue) == 0


def test_who_receives_may_ask_for_another_lease(jobs: Jobs) -> None:
    """For one message or for a batch; a timedelta too."""
    with jobs.open(lease_seconds=30) as queue:
        short = queue.receive(lease_seconds=5)
        long = queue.receive_many(2, lease_seconds=timedelta(minutes=2))
        jobs.clock.advance(6)
        assert in_hand(queue) == 2
        assert short.has_expired
        jobs.clock.advance(100)
        assert in_hand(queue) == 2
        jobs.clock.advance(20)
        assert in_hand(queue) == 0
        assert all(each.has_expired for each in long)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_a_lease_that_cannot_be_is_refused_and_nothing_is_taken(jobs: Jobs, seconds: float) -> None:
    """Before anything is handed out or counted."""
    with jobs.open() as queue:
        with pytest.raises(UsageError):
            queue.receive(lease_seconds=seconds)
        assert in_hand(queue) == 0
        assert queue.receive().delivery_count == 1


def test_messages_whose_leases_run_out_together_come_again_one_by_one(jobs: Jobs) -> None:
    """Whoever hung on a batch did so on one of them."""
    with jobs.open(lease_seconds=10) as queue:
        queue.receive_many(3)
        jobs.clock.advance(11)
        counts = []
        for _ in range(3):
            batch = queue.receive_many(10, timeout=0)
            counts.append([(each.payload, each.delivery_count) for each in batch])
            batch.ack()
        assert counts == [[(b"a", 2)], [(b"b", 2)], [(b"c", 2)]]


def test_a_lease_that_runs_out_at_the_last_delivery_makes_a_dead_letter(jobs: Jobs) -> None:
    """Its reason says so; it needs no note."""
    with jobs.open(lease_seconds=10, max_deliveries=2) as queue:
        for _ in range(2):
            assert queue.receive().payload == b"a"
            jobs.clock.advance(11)
        assert ready(queue) == [b"b", b"c"]
        (letter,) = queue.dead.list()
        assert (letter.payload, letter.reason, letter.delivery_count) == (b"a", "lease_expired", 2)
        assert (letter.detail, letter.exception, letter.traceback) == ("", "", "")
        assert queue.stats().depth == 2


def test_a_wall_clock_that_is_set_ends_no_lease(jobs: Jobs) -> None:
    """Leases are measured on the monotonic clock."""
    with jobs.open(lease_seconds=10) as queue:
        delivery = queue.receive()
        jobs.clock.set_time_ns(jobs.clock.time_ns() + 10**15)
        assert in_hand(queue) == 1
        delivery.ack()


# -- Extending -------------------------------------------------------------------------------------------------------


def test_extend_counts_from_now_and_as_often_as_is_wanted(jobs: Jobs) -> None:
    """Without an argument for as long as the lease was given for, or was extended to last."""
    with jobs.open(lease_seconds=10) as queue:
        delivery = queue.receive()
        for _ in range(5):
            jobs.clock.advance(9)
            delivery.extend()
        delivery.extend(60)
        jobs.clock.advance(59)
        assert in_hand(queue) == 1
        delivery.extend()
        jobs.clock.advance(59)
        delivery.extend(timedelta(seconds=5))
        jobs.clock.advance(6)
        with pytest.raises(LeaseExpiredError) as expired:
            delivery.extend()
        assert expired.value.offset == 0
        assert queue.receive().delivery_count == 2


def test_a_lease_can_be_cut_short(jobs: Jobs) -> None:
    """To nothing, too."""
    with jobs.open(lease_seconds=100) as queue:
        batch = queue.receive_many(2)
        batch[0].extend(0)
        batch[1].extend(5)
        assert ready(queue) == [b"a", b"c"]
        jobs.clock.advance(6)
        assert ready(queue) == [b"a", b"b", b"c"]


def test_a_batch_extends_all_or_some_or_none(jobs: Jobs) -> None:
    """Where one is stale the others stay as they were."""
    with jobs.open(lease_seconds=10) as queue:
        batch = queue.receive_many(3)
        batch.extend(50, [batch[0]])
        batch[1].release()
        with pytest.raises(StaleReceiptError):
            batch.extend(1000, list(batch))
        jobs.clock.advance(11)
        assert in_hand(queue) == 1
        jobs.clock.advance(40)
        assert in_hand(queue) == 0
        assert [each.has_expired for each in batch] == [True, False, True]


def test_extending_a_batch_reaches_each_that_is_not_settled(jobs: Jobs) -> None:
    """One that was acknowledged before is no reason to refuse."""
    with jobs.open(lease_seconds=10) as queue:
        batch = queue.receive_many(3)
        batch.ack([batch[1]])
        batch.extend(100)
        jobs.clock.advance(99)
        assert in_hand(queue) == 2
        batch.ack()
        assert queue.stats().depth == 0


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf")])
def test_an_extension_that_cannot_be_is_refused_and_the_lease_stays(jobs: Jobs, seconds: float) -> None:
    """It neither ends nor lasts for ever."""
    with jobs.open(lease_seconds=10) as queue:
        delivery = queue.receive()
        with pytest.raises(UsageError):
            delivery.extend(seconds)
        jobs.clock.advance(9)
        assert in_hand(queue) == 1
        jobs.clock.advance(2)
        assert in_hand(queue) == 0


# -- What keeps a lease ----------------------------------------------------------------------------------------------


def test_no_lease_runs_out_while_its_block_is_open(jobs: Jobs) -> None:
    """However long it takes, and also where somebody looks meanwhile; the clean end acknowledges."""
    with jobs.open(lease_seconds=10) as queue:
        for looks in (True, False):
            with queue.receive() as delivery:
                for _ in range(10):
                    jobs.clock.advance(100)
                    assert not looks or in_hand(queue) == 1
            assert delivery.is_settled
            assert not delivery.has_expired
        assert drained(queue) == [b"c"]


def test_a_block_that_took_longer_than_the_lease_gives_back_with_its_exception(jobs: Jobs) -> None:
    """It failed, and is no lease that ran out."""
    with jobs.open(lease_seconds=10, max_deliveries=1) as queue:
        with suppress(ZeroDivisionError), queue.receive():
            jobs.clock.advance(100)
            raise ZeroDivisionError("by zero")
        (letter,) = queue.dead.list()
        assert (letter.reason, letter.detail) == ("exception", "by zero")


@pytest.mark.parametrize("fails", [False, True])
def test_the_block_of_a_batch_keeps_all_its_leases(jobs: Jobs, fails: bool) -> None:
    """Up to its end, which settles them."""
    with jobs.open(lease_seconds=10) as queue:
        with suppress(ZeroDivisionError), queue.receive_many(3) as batch:
            jobs.clock.advance(100)
            assert in_hand(queue) == 3
            jobs.clock.advance(100)
            if fails:
                raise ZeroDivisionError
        assert not any(each.has_expired for each in batch)
        assert ready(queue) == ([b"a", b"b", b"c"] if fails else [])


def test_a_block_that_is_entered_too_late_says_so_at_its_end(jobs: Jobs) -> None:
    """Its work may be done twice, and nobody would know otherwise; an exception of its own is not hidden."""
    with jobs.open(lease_seconds=10) as queue:
        delivery = queue.receive()
        jobs.clock.advance(11)
        assert in_hand(queue) == 0
        with pytest.raises(LeaseExpiredError), delivery:
            pass
        with pytest.raises(ZeroDivisionError), delivery:
            raise ZeroDivisionError
        assert ready(queue) == [b"a", b"b", b"c"]


def test_a_batch_with_one_lease_that_ran_out_says_so_at_its_end(jobs: Jobs) -> None:
    """The clean end of the block does not pretend that all was acknowledged."""
    with jobs.open(lease_seconds=10) as queue:
        batch = queue.receive_many(2)
        batch[0].extend(100)
        jobs.clock.advance(11)
        assert in_hand(queue) == 1
        with pytest.raises(LeaseExpiredError), batch:
            pass
        assert not batch[0].is_settled
        batch[0].ack()
        assert ready(queue) == [b"b", b"c"]


def test_a_block_that_ended_keeps_nothing_any_more(jobs: Jobs) -> None:
    """Where its last word was refused, the message comes again when the lease runs out."""
    with jobs.open(lease_seconds=10) as queue:
        batch = queue.receive_many(2)
        batch[1].extend(100)
        jobs.clock.advance(11)
        assert ready(queue) == [b"a", b"c"]
        with pytest.raises(LeaseExpiredError), batch:
            pass
        assert ready(queue) == [b"a", b"c"]
        jobs.clock.advance(100)
        assert ready(queue) == [b"a", b"b", b"c"]


def test_a_transaction_keeps_the_lease_of_what_it_has_taken_over(jobs: Jobs) -> None:
    """Until it ends; then the receiver has it again, for as long as before."""
    with jobs.open(lease_seconds=10) as queue:
        delivery = queue.receive()
        with queue.transaction(timeout=1000) as tx:
            tx.ack(delivery)
            jobs.clock.advance(500)
            assert in_hand(queue) == 1
            with pytest.raises(TransactionStateError):
                delivery.extend()
            tx.abort()
        assert not delivery.has_expired
        delivery.extend()
        jobs.clock.advance(11)
        assert in_hand(queue) == 0
        assert delivery.has_expired
        assert ready(queue) == [b"a", b"b", b"c"]


def test_a_transaction_that_received_a_message_keeps_it_until_its_own_time_is_over(jobs: Jobs) -> None:
    """Its deadline is what counts."""
    with jobs.open(lease_seconds=10) as queue:
        tx = queue.begin(timeout=100)
        tx.receive(timeout=0)
        jobs.clock.advance(99)
        assert in_hand(queue) == 1
        jobs.clock.advance(2)
        assert ready(queue) == [b"a", b"b", b"c"]


# -- Restarts --------------------------------------------------------------------------------------------------------


def test_leases_of_a_killed_process_are_ready_at_once_when_the_group_is_opened_again(jobs: Jobs) -> None:
    """However long they were, and counted; those never handed out come in company, the others alone."""
    queue = jobs.open(lease_seconds=10_000)
    queue.receive_many(2)
    killed = jobs.killed()
    with killed.open() as again:
        assert ready(again) == [b"a", b"b", b"c"]
        counts = [[each.delivery_count for each in again.receive_many(10, timeout=0)] for _ in range(3)]
        assert counts == [[2], [2], [1]]
    queue.close()


def test_a_clean_close_gives_back_uncounted_what_is_in_hand(jobs: Jobs) -> None:
    """Nobody has failed; a lease that ran out before did."""
    with jobs.open(lease_seconds=10) as queue:
        queue.receive()
        jobs.clock.advance(11)
        assert in_hand(queue) == 0
        queue.receive(lease_seconds=100)
        queue.receive(lease_seconds=100)
    with jobs.open() as queue:
        assert [queue.receive().delivery_count for _ in range(3)] == [2, 1, 1]


def test_nothing_runs_out_before_the_next_is_due() -> None:
    """Another thread has looked just before; the message stays in hand."""
    jobs = Jobs()
    with jobs.open(lease_seconds=30) as queue:
        queue.put(b"a")
        delivery = queue.receive(timeout=0)
        leases = handle_of(queue).require_read_side()._leases
        jobs.clock.advance(29)
        assert leases.run_out() == []
        delivery.ack()


def test_a_transaction_lets_go_only_of_what_it_holds() -> None:
    """A message of another receiver is not its to settle."""
    jobs = Jobs()
    with jobs.open() as queue:
        queue.put_many([b"a", b"b"])
        tx = queue.begin()
        mine = tx.receive(timeout=0)
        theirs = queue.receive(timeout=0)
        assert mine.holder is not None
        with pytest.raises(StaleReceiptError, match="is not one of this transaction"):
            handle_of(queue).require_read_side().check([theirs], mine.holder)
        theirs.ack()
        tx.ack(mine)
        tx.commit()
        assert queue.stats().depth == 0
