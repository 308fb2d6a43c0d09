"""What a handle tells the owner by itself, and the thread that does: there only while there is something to tell."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from holdfast import RetryableError
from holdfast.queue.client import upkeep as module
from holdfast.queue.client.upkeep import Upkeep
from holdfast.queue.protocol.messages import Arrived
from support.processes.threads import wait_until

THREAD, OTHER = b"12345678", b"abcdefgh"


class FakeMembership:
    """Notes what the owner is told; the first ``failures`` times it does not answer."""

    def __init__(self, failures: int = 0) -> None:
        self.told: list[Any] = []
        self.failures = failures
        self.on_ask: Any = lambda: None

    def ask(self, request: Any) -> None:
        if self.failures:
            self.failures -= 1
            raise RetryableError("no owner")
        self.told.append(request)
        self.on_ask()


class FakeChores:
    """Is due at these times, one after another."""

    def __init__(self, *due: float) -> None:
        self.due = list(due)
        self.count = 0

    def do_due(self, now: float) -> float:
        self.count += 1
        return self.due.pop(0) if self.due else math.inf


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LINGER_SECONDS", 0.02)
    monkeypatch.setattr(module, "_TROUBLE_SECONDS", 0.02)


def upkeep_of(membership: FakeMembership) -> Upkeep:
    """Return an upkeep of it."""
    return Upkeep(membership)  # type: ignore[arg-type]


def test_an_answer_is_acknowledged_once_for_all_requests_of_its_thread() -> None:
    """The last one says it for those before; without more to tell there is no thread."""
    membership = FakeMembership()
    upkeep = upkeep_of(membership)
    for count in (1, 2, 3):
        upkeep.answered(THREAD, count, 0.1)
    wait_until(lambda: bool(membership.told))
    assert membership.told == [Arrived(THREAD, 3)]
    wait_until(lambda: upkeep._thread is None)
    upkeep.answered(OTHER, 1, 0.0)
    wait_until(lambda: membership.told[1:] == [Arrived(OTHER, 1)])
    upkeep.stop()


def test_what_is_answered_while_the_owner_is_told_of_others_is_told_too() -> None:
    """Of the same thread and of another one."""
    membership = FakeMembership()
    upkeep = upkeep_of(membership)

    def answer_more() -> None:
        membership.on_ask = lambda: None
        upkeep.answered(THREAD, 2, 0.01)
        upkeep.answered(OTHER, 5, 0.02)

    membership.on_ask = answer_more
    upkeep.answered(THREAD, 1, 0.0)
    wait_until(lambda: len(membership.told) == 3)
    assert membership.told == [Arrived(THREAD, 1), Arrived(THREAD, 2), Arrived(OTHER, 5)]
    upkeep.stop()


def test_a_request_that_was_given_up_is_released_after_ten_minutes_and_delays_no_other() -> None:
    """Until then its thread may try it again."""
    membership = FakeMembership()
    upkeep = upkeep_of(membership)
    upkeep.given_up(THREAD, 1)
    wait_until(lambda: upkeep._due < math.inf)
    assert upkeep._due > time.monotonic() + 590
    upkeep.answered(OTHER, 1, 0.0)
    wait_until(lambda: membership.told == [Arrived(OTHER, 1)])
    upkeep.stop()


def test_an_owner_that_does_not_answer_is_told_later() -> None:
    """Nothing is forgotten."""
    membership = FakeMembership(failures=2)
    upkeep = upkeep_of(membership)
    upkeep.answered(THREAD, 1, 0.0)
    wait_until(lambda: membership.told == [Arrived(THREAD, 1)])
    upkeep.stop()


def test_an_error_of_any_kind_does_not_end_it(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged, and all is tried again: else no lease of this handle was extended any more."""
    membership = FakeMembership()
    membership.on_ask = _fail_once(membership)
    upkeep = upkeep_of(membership)
    upkeep.answered(THREAD, 1, 0.0)
    wait_until(lambda: len(membership.told) == 2)
    assert "MemoryError" in caplog.text
    upkeep.stop()


def _fail_once(membership: FakeMembership) -> Callable[[], None]:
    def fail() -> None:
        membership.on_ask = lambda: None
        raise MemoryError

    return fail


def test_chores_are_done_when_they_are_due() -> None:
    """And at each wake-up."""
    upkeep, chores = upkeep_of(FakeMembership()), FakeChores(time.monotonic() + 0.05)
    upkeep.chores = chores
    upkeep.wake()
    wait_until(lambda: chores.count >= 2)
    upkeep.stop()


def test_work_that_comes_while_the_thread_ends_is_not_missed() -> None:
    """Whoever sees a thread that is still there has set the flag before, and the thread looks at it last."""
    upkeep = upkeep_of(FakeMembership())
    own = upkeep._thread = threading.current_thread()
    assert upkeep._may_end()
    upkeep._thread = own
    upkeep._more.set()
    assert not upkeep._may_end()
    assert upkeep._thread is own

    other = threading.Thread()

    class Racing:
        """Another thread is started between the look and the lock."""

        def __enter__(self) -> None:
            upkeep._thread = other

        def __exit__(self, *_: object) -> None: ...

    upkeep._lock = Racing()  # type: ignore[assignment]
    assert upkeep._may_end()
    assert upkeep._thread is other


def test_only_one_thread_is_started() -> None:
    """Others that wake it meanwhile find it."""
    upkeep = upkeep_of(FakeMembership())
    started = threading.Thread()

    class Racing:
        """Another thread has come first."""

        def __enter__(self) -> None:
            upkeep._thread = started

        def __exit__(self, *_: object) -> None: ...

    upkeep._lock = Racing()  # type: ignore[assignment]
    upkeep.wake()
    assert upkeep._thread is started


def test_its_end_does_not_wait_for_an_owner_that_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of the session closes its connection."""
    monkeypatch.setattr(module, "ENDING_SECONDS", 0.02)
    membership, asks, ends = FakeMembership(), threading.Event(), threading.Event()
    membership.on_ask = lambda: (asks.set(), ends.wait(30))
    upkeep = upkeep_of(membership)
    upkeep.answered(THREAD, 1, 0.0)
    assert asks.wait(30)
    upkeep.stop()
    thread = upkeep._thread
    assert thread is not None
    assert thread.is_alive()
    ends.set()
    thread.join()


def test_nothing_is_done_behind_the_end() -> None:
    """Neither in a forked child."""
    for end in (Upkeep.stop, Upkeep.forget):
        upkeep = upkeep_of(FakeMembership())
        end(upkeep)
        upkeep.answered(THREAD, 1, 0.0)
        assert upkeep._thread is None


def test_the_thread_is_not_woken_for_what_it_comes_in_time_for_anyway() -> None:
    """A take in a loop would wake it each time."""
    upkeep = upkeep_of(FakeMembership())
    now = time.monotonic()
    upkeep.chores = chores = FakeChores(now + 60, now + 60, math.inf)
    upkeep.wake_by(now + 50)
    wait_until(lambda: chores.count == 1 and upkeep._due < math.inf)
    upkeep.wake_by(now + 61)
    assert not upkeep._more.is_set()
    upkeep.wake_by(now + 59)
    wait_until(lambda: chores.count == 2)
    upkeep.stop()


def test_a_thread_that_found_no_memory_is_replaced_by_the_next_wake(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else no lease of this handle was extended any more."""
    unhandled: list[object] = []
    monkeypatch.setattr(threading, "excepthook", unhandled.append)
    upkeep, chores = upkeep_of(FakeMembership()), FakeChores(time.monotonic() + 60)
    upkeep.chores = chores
    with monkeypatch.context() as patched:
        patched.setattr(upkeep._more, "wait", Mock(side_effect=MemoryError))
        upkeep.wake()
        wait_until(lambda: len(unhandled) == 1)
    count = chores.count
    upkeep.wake()
    wait_until(lambda: chores.count > count)
    upkeep.stop()
