"""The wall clock is set forward and back: who sleeps notices, and how long messages wait is still said."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import Empty, PersistentQueue
from support.builders.clocks import START_NS, FakeClock
from support.builders.transactions import open_queue
from support.processes.threads import Threads, is_waiting, wait_until
from support.storages.simulated_storage import SimulatedStorage

NS = 10**9
YEAR_SECONDS = 365 * 86400


@pytest.fixture
def clock() -> FakeClock:
    """Time that stands still."""
    return FakeClock()


def step(clock: FakeClock, seconds: int) -> None:
    """Set the wall clock alone."""
    clock.set_time_ns(clock.time_ns() + seconds * NS)


# -- Those who sleep ---------------------------------------------------------------------------------------------------


@pytest.fixture(params=["exclusive", "shared"])
def taker(tmp_path: Path, clock: FakeClock, request: pytest.FixtureRequest) -> Iterator[PersistentQueue]:
    """A handle that takes: alone, or as the owner of a shared queue."""
    with PersistentQueue(tmp_path / "orders", mode=request.param, clock=clock) as queue:
        queue.put(b"tomorrow", delay=86400)
        yield queue


def sleeping(threads: Threads, queue: PersistentQueue) -> list[bytes]:
    """Take in a thread; return a list that gets what it takes, once it sleeps."""
    taken: list[bytes] = []
    thread = threads.start(lambda: taken.append(queue.get()))
    wait_until(lambda: is_waiting(thread))
    return taken


def test_a_taker_notices_that_the_clock_was_set_to_when_a_message_is_due(
    taker: PersistentQueue, clock: FakeClock, threads: Threads
) -> None:
    """Within seconds, though it was to sleep for a day."""
    taken = sleeping(threads, taker)
    step(clock, 86400)
    wait_until(lambda: taken == [b"tomorrow"])


def test_a_taker_notices_that_the_clock_was_set_to_when_a_pause_ends(
    taker: PersistentQueue, clock: FakeClock, threads: Threads
) -> None:
    """As for a message."""
    taker.pause(until=START_NS / NS + 3 * 86400)
    step(clock, 2 * 86400)
    taken = sleeping(threads, taker)
    step(clock, 86400)
    wait_until(lambda: taken == [b"tomorrow"])


# -- The age of the oldest message -------------------------------------------------------------------------------------


def age(queue: PersistentQueue) -> tuple[float | None, float]:
    """Return how long the oldest message waits, and how far the clock was set back behind it."""
    stats = queue.stats()
    return stats.oldest_age_seconds, stats.clock_back_seconds


def test_messages_put_while_the_clock_was_ahead_grow_old_all_the_same(
    storage: SimulatedStorage, clock: FakeClock
) -> None:
    """Their age counts from when their handle first saw them, and from opening in the next one."""
    with open_queue(storage, clock=clock) as queue:
        queue.put(b"before")
        clock.advance(10)
        assert age(queue) == (10, 0)
        step(clock, YEAR_SECONDS)
        queue.put(b"ahead")
        step(clock, -YEAR_SECONDS)
        queue.put(b"behind")
        assert age(queue) == (10, 0), "the oldest one was put by a clock that was right"
        queue.get()
        assert age(queue) == (0, YEAR_SECONDS)
        clock.advance(3600)
        queue.put(b"later")
        assert age(queue) == (3600, YEAR_SECONDS - 3600)
        queue.get()
        assert age(queue) == (3600, YEAR_SECONDS - 3600), "it was there at the look before"
        queue.get()
        assert age(queue) == (0, YEAR_SECONDS - 3600)
        clock.advance(60)
        assert age(queue) == (60, YEAR_SECONDS - 3660)
    with open_queue(storage, clock=clock) as queue:
        clock.advance(100)
        assert age(queue) == (100, YEAR_SECONDS - 3760)
        queue.get()
        assert age(queue) == (None, 0)


def test_who_looks_sees_messages_grow_old_too(storage: SimulatedStorage, clock: FakeClock) -> None:
    """A watchdog that stays open tells what waits, whatever became of the clock."""
    with open_queue(storage, clock=clock) as queue, open_queue(storage, clock=clock, mode="read_only") as look:
        step(clock, YEAR_SECONDS)
        queue.put(b"ahead")
        step(clock, -YEAR_SECONDS)
        assert age(look) == (0, YEAR_SECONDS)
        for hour in range(1, 200):
            clock.advance(3600)
            queue.put(b"more")
            assert age(look) == (3600 * hour, YEAR_SECONDS - 3600 * hour)


def test_a_clock_that_was_set_back_a_little_makes_no_message_younger(
    storage: SimulatedStorage, clock: FakeClock
) -> None:
    """Its timestamp lies behind the clock again soon; the age is still what the handle knows."""
    with open_queue(storage, clock=clock) as queue:
        queue.put(b"a")
        assert age(queue) == (0, 0)
        step(clock, -5)
        clock.advance(20)
        assert age(queue) == (20, 0)


def test_the_age_of_one_of_many_messages_is_at_most_a_little_too_small(
    storage: SimulatedStorage, clock: FakeClock
) -> None:
    """Looks are forgotten when there are many of them: a bound, and near what it was."""
    with open_queue(storage, clock=clock) as queue:
        step(clock, YEAR_SECONDS)
        queue.put(b"first")
        step(clock, -YEAR_SECONDS)
        for _ in range(1000):
            clock.advance(10)
            queue.put(b"more")
            queue.stats()
        queue.get_many(500)
        known, back = age(queue)
        assert known is not None
        assert 5000 - 10000 / 32 - 10 <= known <= 5010
        assert back > 0


# -- Those that failed before ------------------------------------------------------------------------------------------


def test_a_released_message_waits_for_the_time_of_its_failure_again_if_the_clock_was_set_back(
    storage: SimulatedStorage, clock: FakeClock
) -> None:
    """Its release undoes the delivery, and leaves what was noted before: it comes late, as all that waits."""
    with open_queue(storage, clock=clock) as queue:
        queue.put(b"again")
        queue.receive().nack(delay=5)
        clock.advance(20)
        queue.receive().release()
        assert (queue.qsize(), queue.stats().delayed) == (1, 0)
    step(clock, -20)
    with open_queue(storage, clock=clock) as queue:
        with pytest.raises(Empty):
            queue.get_nowait()
        assert (queue.qsize(), queue.stats().delayed) == (0, 1)
        clock.advance(5)
        assert queue.get() == b"again"
