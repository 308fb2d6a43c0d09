"""How long a message waits that failed, how often it comes again, and that both survive the end of a process."""

from datetime import timedelta
from pathlib import Path

import pytest

from holdfast import Backoff, PersistentQueue
from support.builders.jobs import Jobs, fail, ready


@pytest.fixture
def jobs() -> Jobs:
    """A queue with two messages."""
    jobs = Jobs()
    jobs.put(b"a", b"b")
    return jobs


def waits(queue: PersistentQueue, jobs: Jobs) -> float:
    """Return how long until message a is ready, as ``browse`` says, and let that time pass."""
    (delayed,) = queue.browse("delayed")
    assert delayed.payload == b"a"
    assert delayed.until_ns is not None
    assert queue.stats().delayed == 1
    seconds = (delayed.until_ns - jobs.clock.time_ns()) / 1e9
    jobs.clock.advance(seconds - 0.01)
    assert ready(queue) == [b"b"]
    jobs.clock.advance(0.02)
    assert ready(queue) == [b"a", b"b"]
    return seconds


def test_each_failure_makes_the_wait_longer(jobs: Jobs) -> None:
    """By hand and by exception alike."""
    with jobs.open(backoff=Backoff(base=1, cap=5, jitter=False), max_deliveries=None) as queue:
        found = []
        for number in range(6):
            delivery = queue.receive()
            assert delivery.delivery_count == number + 1
            if number % 2:
                delivery.nack()
            else:
                fail(delivery)
            found.append(waits(queue, jobs))
        assert found == [1, 2, 4, 5, 5, 5]


def test_the_default_waits_a_second_with_jitter(jobs: Jobs) -> None:
    """From half of it on."""
    with jobs.open(backoff=Backoff()) as queue:
        queue.receive().nack()
        assert 0.5 <= waits(queue, jobs) <= 1


def test_a_list_says_each_wait(jobs: Jobs) -> None:
    """And its last one is used again."""
    with jobs.open(backoff=[3, 7], max_deliveries=None) as queue:
        found = []
        for _ in range(4):
            queue.receive().nack()
            found.append(waits(queue, jobs))
        assert found == [3, 7, 7, 7]


def test_a_delay_given_by_hand_counts_instead(jobs: Jobs) -> None:
    """Seconds or a timedelta; 0 is at once."""
    with jobs.open(backoff=[3, 7], max_deliveries=None) as queue:
        queue.receive().nack(50)
        assert waits(queue, jobs) == 50
        queue.receive().nack(timedelta(minutes=2))
        assert waits(queue, jobs) == 120
        queue.receive().nack(0)
        assert ready(queue) == [b"a", b"b"]
        queue.receive().nack()
        assert waits(queue, jobs) == 7


def test_messages_given_back_for_later_hold_nobody_up(jobs: Jobs) -> None:
    """And come in the order in which their time comes."""
    with jobs.open() as queue:
        queue.put_many([b"c", b"d"])
        for delay in (30, 10, 20):
            queue.receive().nack(delay)
        assert ready(queue) == [b"d"]
        queue.get()
        order = []
        for _ in range(3):
            jobs.clock.advance(10)
            order.append(queue.get(block=False))
        assert order == [b"b", b"c", b"a"]


@pytest.mark.parametrize("ending", ["close", "kill"])
def test_waits_and_counts_survive_the_end_of_the_process(jobs: Jobs, ending: str) -> None:
    """To the nanosecond; so does when it failed first."""
    queue = jobs.open(backoff=[100], max_deliveries=2)
    queue.receive().nack()
    first_failure_ns = jobs.clock.time_ns()
    (before,) = queue.browse("delayed")
    jobs.clock.advance(50)
    if ending == "close":
        queue.close()
    with jobs.killed().open(backoff=[100], max_deliveries=2) as again:
        assert again.browse("delayed") == [before]
        assert ready(again) == [b"b"]
        jobs.clock.advance(51)
        delivery = again.receive()
        assert (delivery.payload, delivery.delivery_count) == (b"a", 2)
        delivery.nack()
        (letter,) = again.dead.list()
        assert (letter.first_failure_ns, letter.last_failure_ns) == (first_failure_ns, jobs.clock.time_ns())
    queue.close()


def test_waits_survive_many_generations_of_the_position_file(jobs: Jobs) -> None:
    """A checkpoint says them again."""
    with jobs.open(max_deliveries=None) as queue:
        queue.receive().nack(10_000)
        (before,) = queue.browse("delayed")
        for _ in range(5000):
            queue.receive().nack(0)
    with jobs.open() as queue:
        assert queue.browse("delayed") == [before]
        assert queue.browse("ready")[0].delivery_count == 5000
        assert queue.browse("ready", limit=5) == queue.browse("ready")


def test_who_owns_the_queue_for_a_moment_and_retries_a_dead_letter_keeps_what_else_it_finds(tmp_path: Path) -> None:
    """Waits and counts of the others."""
    with PersistentQueue(tmp_path / "q", mode="exclusive", max_deliveries=None) as queue:
        queue.put_many([b"a", b"b", b"c"])
        first, second, third = queue.receive_many(3)
        first.nack(1000)
        second.reject("no")
        third.nack(0)
        (before,) = queue.browse("delayed")
    with PersistentQueue(tmp_path / "q", mode="shared", can_own=False) as client:
        assert client.dead.retry(1) == 1
        assert client.browse("delayed") == [before]
    with PersistentQueue(tmp_path / "q", mode="exclusive") as queue:
        assert queue.browse("delayed") == [before]
        found = [queue.receive(timeout=0) for _ in range(2)]
        assert sorted((each.payload, each.delivery_count) for each in found) == [(b"b", 1), (b"c", 2)]


def test_a_lower_max_deliveries_makes_dead_letters_of_what_was_handed_out_so_often_already(jobs: Jobs) -> None:
    """They are found when they would be taken."""
    with jobs.open(max_deliveries=None) as queue:
        for _ in range(4):
            queue.receive().nack(0)
        queue.configure(max_deliveries=3)
    with jobs.open() as queue:
        assert queue.receive().payload == b"b"
        (letter,) = queue.dead.list()
        assert (letter.payload, letter.reason, letter.delivery_count) == (b"a", "max_deliveries", 4)


def test_a_wall_clock_that_is_set_back_makes_the_wait_longer_and_loses_nothing(jobs: Jobs) -> None:
    """Waits are points in time, which survive restarts."""
    with jobs.open(backoff=[10]) as queue:
        queue.receive().nack()
        jobs.clock.set_time_ns(jobs.clock.time_ns() - 100 * 10**9)
        jobs.clock.advance(50)
        assert ready(queue) == [b"b"]
        jobs.clock.advance(60)
        assert ready(queue) == [b"a", b"b"]
