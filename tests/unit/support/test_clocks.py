"""The clock that stands still: nothing happens until the test says so."""

from __future__ import annotations

import threading
import time

import pytest

from holdfast.clock import Clock
from support.builders.clocks import START_NS, FakeClock


def wait_in_thread(clock: Clock, event: threading.Event, seconds: float | None) -> tuple[threading.Thread, list[bool]]:
    """Start a thread that waits; its answer appears in the list."""
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(clock.wait(event, seconds)), daemon=True)
    thread.start()
    return thread, answers


def test_time_stands_still() -> None:
    """Two looks see the same time on both clocks."""
    clock = FakeClock()
    before = clock.time_ns(), clock.monotonic()
    time.sleep(0.01)
    assert (clock.time_ns(), clock.monotonic()) == before
    assert clock.time_ns() == START_NS


def test_advance_moves_both_clocks() -> None:
    """Wall clock and monotonic clock go on by the same time."""
    clock = FakeClock(time_ns=5, monotonic=2.0)
    clock.advance(1.5)
    assert clock.time_ns() == 1_500_000_005
    assert clock.monotonic() == 3.5


def test_the_wall_clock_can_go_backwards_alone() -> None:
    """Setting the wall clock leaves the monotonic clock as it is."""
    clock = FakeClock()
    monotonic = clock.monotonic()
    clock.set_time_ns(17)
    assert clock.time_ns() == 17
    assert clock.monotonic() == monotonic


def test_advance_refuses_to_go_backwards() -> None:
    """The monotonic clock never does."""
    with pytest.raises(ValueError, match="set_time_ns"):
        FakeClock().advance(-1)


@pytest.mark.parametrize("is_set", [True, False])
def test_waiting_no_time_looks_at_the_event(is_set: bool) -> None:
    """Zero seconds return at once, with what the event says."""
    event = threading.Event()
    if is_set:
        event.set()
    assert FakeClock().wait(event, 0) is is_set


def test_a_set_event_needs_no_waiting() -> None:
    """Whatever the timeout, a set event returns at once."""
    event = threading.Event()
    event.set()
    assert FakeClock().wait(event, None)
    assert FakeClock().wait(event, 1000)


@pytest.mark.parametrize("seconds", [None, 0.001, 1000.0])
def test_a_waiter_wakes_when_the_event_is_set(seconds: float | None) -> None:
    """Setting the event ends the wait; real time alone does not, however short the timeout."""
    clock, event = FakeClock(), threading.Event()
    thread, answers = wait_in_thread(clock, event, seconds)
    assert clock.wait_for_waiters()
    thread.join(0.12)
    assert thread.is_alive()
    event.set()
    thread.join(5)
    assert answers == [True]


def test_a_waiter_gives_up_when_its_fake_time_is_over() -> None:
    """A nanosecond less is not enough, the full time is."""
    clock, event = FakeClock(), threading.Event()
    thread, answers = wait_in_thread(clock, event, 60.0)
    assert clock.wait_for_waiters()
    clock.advance(59.999_999_999)
    thread.join(0.12)
    assert thread.is_alive()
    clock.advance(0.000_000_001)
    thread.join(5)
    assert answers == [False]


def test_waiters_are_counted_while_they_wait() -> None:
    """A test can let time pass exactly when everybody stands."""
    clock, event = FakeClock(), threading.Event()
    assert not clock.wait_for_waiters(timeout=0.01)
    threads = [wait_in_thread(clock, event, 1.0)[0] for _ in range(3)]
    assert clock.wait_for_waiters(3)
    assert not clock.wait_for_waiters(4, timeout=0.01)
    event.set()
    for thread in threads:
        thread.join(5)
    assert not clock.wait_for_waiters(timeout=0.01)
