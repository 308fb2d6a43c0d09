"""What a forked child does with queues of its parent, step by step in one process: test_lifecycle.py really forks."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import pytest

from holdfast import ForkedError, PersistentQueue, Transaction
from holdfast.queue.threads import lifecycle, poller
from support.builders.clocks import FakeClock
from support.builders.transactions import open_queue
from support.storages.simulated_storage import SimulatedStorage


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Do what happens in the child; threads, which it does not have, end first."""
    monkeypatch.setattr(poller, "_pollers", {})
    monkeypatch.setattr(poller, "_lock", poller._lock)
    monkeypatch.setattr(lifecycle, "_open", weakref.WeakSet())

    def forget() -> None:
        for each in list(poller._pollers.values()):
            each.end()
        lifecycle._forget_all()
        poller._forget_all()

    return forget


def verbs_of(queue: PersistentQueue, tx: Transaction) -> list[Callable[[], object]]:
    """Return a few of every kind."""
    return [
        lambda: queue.put(b"x"),
        lambda: queue.get(timeout=0),
        queue.stats,
        queue.task_done,
        lambda: tx.put(b"x"),
        tx.commit,
    ]


def test_what_is_forgotten_is_not_touched_and_answers_that_it_was_forked(
    storage: SimulatedStorage, forked: Callable[[], None]
) -> None:
    """Handles are closed and nothing is written: not the batch that a transaction has begun either."""
    with open_queue(storage, mode="exclusive") as queue:
        queue.put_many([b"one", b"two"])
        queue.get(timeout=0)
    queue = open_queue(storage, mode="exclusive", clock=FakeClock())
    tx = queue.begin()
    tx.put_many([bytes(1000)] * 100)
    tx.ack(tx.receive(timeout=0))
    tree, count = storage.tree(), storage.mutation_count
    forked()
    for verb in verbs_of(queue, tx):
        with pytest.raises(ForkedError):
            verb()
    queue.close()
    assert (storage.tree(), storage.mutation_count) == (tree, count)
    assert poller._pollers == {}


def test_a_queue_that_nobody_has_used_is_forgotten_too(storage: SimulatedStorage, forked: Callable[[], None]) -> None:
    """It has no books yet."""
    queue = open_queue(storage, mode="exclusive", clock=FakeClock())
    forked()
    with pytest.raises(ForkedError):
        queue.receive(timeout=0)


class Handle:
    """A handle of the parent, which may fail to forget."""

    def __init__(self, *, fails: bool) -> None:
        self._fails = fails
        self.has_forgotten = False

    def forget_after_fork(self) -> None:
        """Note it, or fail."""
        if self._fails:
            raise RuntimeError("for good")
        self.has_forgotten = True


def test_one_that_cannot_forget_keeps_no_other_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are in no order; the error is told once all have been asked."""
    monkeypatch.setattr(lifecycle, "_open", weakref.WeakSet())
    handles = [Handle(fails=number % 2 == 1) for number in range(6)]
    for each in handles:
        lifecycle.watch(each)
    with pytest.raises(RuntimeError, match="for good"):
        lifecycle._forget_all()
    assert [each.has_forgotten for each in handles] == [True, False] * 3
