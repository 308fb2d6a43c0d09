"""Calls that must not outlive an open queue: closing refuses new ones, and waits for those in progress."""

from __future__ import annotations

import threading

import pytest

from holdfast import ClosedError
from holdfast.queue.threads.open_calls import OpenCalls


def test_a_closed_queue_refuses_calls() -> None:
    """Before that, a call returns what it does."""
    calls = OpenCalls("/q")
    assert calls.run(lambda: 7) == 7
    calls.close()
    with pytest.raises(ClosedError, match="/q is closed; open it again"):
        calls.run(lambda: pytest.fail("it was done"))


def test_closing_waits_for_a_call_of_another_thread() -> None:
    """The call can see that it should end."""
    calls, has_begun, may_end, order = OpenCalls("/q"), threading.Event(), threading.Event(), []

    def work() -> None:
        has_begun.set()
        while not calls.is_over:
            may_end.wait(0.001)
        may_end.wait(10)
        order.append("worked")

    def close() -> None:
        calls.close()
        order.append("closed")

    worker = threading.Thread(target=calls.run, args=(work,))
    worker.start()
    has_begun.wait(10)
    closer = threading.Thread(target=close)
    closer.start()
    closer.join(0.05)
    may_end.set()
    closer.join(10)
    worker.join(10)
    assert order == ["worked", "closed"]


def test_closing_inside_of_a_call_does_not_wait_for_itself() -> None:
    """As a signal handler does."""
    calls = OpenCalls("/q")
    calls.run(calls.close)
    assert calls.is_over


def test_a_call_inside_of_another_is_not_refused() -> None:
    """Closing waits for the whole; half of it would be neither done nor refused."""
    calls = OpenCalls("/q")

    def close_and_go_on() -> int:
        calls.close()
        return calls.run(lambda: 7)

    assert calls.run(close_and_go_on) == 7
    with pytest.raises(ClosedError):
        calls.run(lambda: 7)


def test_a_call_that_an_interruption_has_left_behind_lets_nothing_through() -> None:
    """It is over, though it was not taken off the list."""
    calls = OpenCalls("/q")
    calls.run(lambda: calls._calls.add(next(iter(calls._calls))._replace(lock=threading.Lock())))
    assert calls._calls
    calls.close()
    with pytest.raises(ClosedError):
        calls.run(lambda: pytest.fail("it was done"))


def test_closing_does_not_wait_for_a_call_that_has_failed() -> None:
    """An interruption ends it too."""
    calls = OpenCalls("/q")

    def fail() -> None:
        raise KeyboardInterrupt

    def call() -> None:
        with pytest.raises(KeyboardInterrupt):
            calls.run(fail)

    caller = threading.Thread(target=call)
    caller.start()
    caller.join(10)
    calls.close()
