"""Whoever stands in where nobody owns the write side: when he comes, why he leaves, and what he cannot do."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from holdfast import FlushPolicy, StorageError
from holdfast.persistence.filesystem.locks import try_acquire
from holdfast.queue.engine.queue_handle import QueueHandle
from holdfast.queue.options.queue_options import Options
from holdfast.queue.server import visitor as module
from holdfast.queue.server.visitor import Visitor
from support.builders.clocks import FakeClock
from support.builders.requested import DATA_FILE_BYTES, DIRECTORY, ROOT, queue_in
from support.processes.threads import wait_until
from support.storages.refusals import refusing
from support.storages.simulated_storage import SimulatedStorage

POLICY = FlushPolicy.every_commit()


class PassingClock(FakeClock):
    """A clock on which a wait is over at once."""

    def wait(self, event: threading.Event, seconds: float | None) -> bool:
        self.advance(seconds or 0.0)
        return event.is_set()


@pytest.fixture
def clock() -> FakeClock:
    """Time passes while somebody waits."""
    return PassingClock()


@pytest.fixture
def visitor(storage: SimulatedStorage, clock: FakeClock) -> Iterator[Visitor]:
    """One of a handle that submits to a queue which nobody owns; it visits when it is told to, in the test's thread."""
    queue_in(storage, POLICY).close()
    storage.make_directory(DIRECTORY.requests)
    handle = QueueHandle(
        storage, clock, ROOT, Options("submit", "default", {"flush": POLICY, "data_file_bytes": DATA_FILE_BYTES})
    )
    made = Visitor(handle)
    yield made
    made.stop()
    handle.close()


def test_a_visitor_that_nothing_is_asked_of_leaves_and_lets_the_next_owner_in(
    storage: SimulatedStorage, visitor: Visitor
) -> None:
    """Soon."""
    visitor._run()
    assert (visitor.is_there, visitor.failure) == (False, None)
    owner = try_acquire(storage, DIRECTORY.write_lock)
    assert owner is not None
    owner.release()


@pytest.mark.parametrize("is_faster", [False, True], ids=["before", "meanwhile"])
def test_a_visitor_leaves_a_queue_alone_that_somebody_owns(
    storage: SimulatedStorage, visitor: Visitor, monkeypatch: pytest.MonkeyPatch, is_faster: bool
) -> None:
    """Its owner serves; that is no failure, also where he came while the visitor was on its way."""
    owner = try_acquire(storage, DIRECTORY.write_lock)
    assert owner is not None
    if is_faster:
        monkeypatch.setattr(module, "may_visit", lambda *_: True)
    visitor._run()
    assert (visitor.is_there, visitor.failure) == (False, None)
    owner.release()


def test_a_visitor_that_cannot_open_the_queue_says_why(storage: SimulatedStorage, visitor: Visitor) -> None:
    """And where it can, the next time, that is forgotten."""
    with refusing(storage, "open", "queue.json"):
        visitor._run()
    assert isinstance(visitor.failure, StorageError)
    visitor._run()
    assert visitor.failure is None


def test_a_visitor_that_cannot_look_for_requests_says_why_and_leaves(
    storage: SimulatedStorage, visitor: Visitor
) -> None:
    """Whoever has asked is told."""
    with refusing(storage, "list", "requests"):
        visitor._run()
    assert isinstance(visitor.failure, StorageError)
    assert not visitor.is_there


def test_a_visitor_that_cannot_leave_in_order_says_so(
    visitor: Visitor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What it has done is done."""
    really = QueueHandle.close

    def fail(self: QueueHandle) -> None:
        really(self)
        raise StorageError("the disk refuses", path="/q")

    with monkeypatch.context() as patched:
        patched.setattr(QueueHandle, "close", fail)
        visitor._run()
    assert "could not leave" in caplog.text
    assert visitor.failure is None


def test_a_visitor_leaves_for_somebody_who_comes_to_stay(
    storage: SimulatedStorage, visitor: Visitor, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long before it would by itself."""
    monkeypatch.setattr(module, "LINGER_SECONDS", 1000)
    monkeypatch.setattr(module.locks, "is_awaited", lambda *_: clock.monotonic() > began + 10)
    began = clock.monotonic()
    visitor._run()
    assert began + 10 < clock.monotonic() < began + 20


class TestInAThread:
    """On a clock that stands still a visitor stays until it is told to leave."""

    @pytest.fixture
    def clock(self) -> FakeClock:
        """It stands still."""
        return FakeClock()

    def test_one_that_is_there_is_not_called_twice_and_one_that_was_stopped_does_not_come(
        self, visitor: Visitor, clock: FakeClock
    ) -> None:
        """It hears of more that is asked."""
        visitor.call()
        wait_until(lambda: visitor.is_there)
        thread = visitor._thread
        visitor.call()
        assert visitor._thread is thread
        visitor.stop()
        assert not visitor.is_there
        visitor.call()
        assert visitor._thread is thread
        assert thread is not None
        assert not thread.is_alive()

    def test_in_a_forked_child_a_visit_is_the_parents(
        self, storage: SimulatedStorage, visitor: Visitor, clock: FakeClock
    ) -> None:
        """Copies of its handles are closed, and nothing is written, however often it is forgotten."""
        visitor.call()
        assert clock.wait_for_waiters()
        wait_until(lambda: visitor.is_there)
        thread = visitor._thread
        assert thread is not None
        tree, count = storage.tree(), storage.mutation_count
        visitor.forget()
        visitor.forget()
        assert not visitor.is_there
        visitor.call()
        assert visitor._thread is None
        visitor._more.set()  # ends the thread, which a child does not have
        thread.join(10)
        assert (storage.tree(), storage.mutation_count) == (tree, count)
