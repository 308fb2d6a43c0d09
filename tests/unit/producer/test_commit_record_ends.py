"""When pending commit records end: those of the queue's own files as it rolls, those of other queues elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import holdfast
from holdfast import FlushPolicy, PersistentQueue
from holdfast.queue.producer import commit_record_ends
from support.builders.clocks import FakeClock
from support.builders.handles import handle_of
from support.builders.transactions import kill, open_queue
from support.storages.simulated_storage import SimulatedStorage
from support.workloads.half_commits import ASIDE, HUB, decided

PENDING_MAX = 256
ROLLS = 8
"""Messages of a quarter of a data file: at least one roll among them."""


@contextmanager
def calls_of(storage: SimulatedStorage) -> Iterator[list[Path]]:
    """Give a list that collects the path of each storage call in the block."""
    seen: list[Path] = []
    storage.before_verb = lambda _, path: seen.append(path)
    try:
        yield seen
    finally:
        storage.before_verb = None


def pending_count(queue: PersistentQueue) -> int:
    """Return how many commit records of a queue are pending."""
    return len(handle_of(queue).require_write_side().pending_commit_records)


def commit_over(hub: PersistentQueue, aside: PersistentQueue) -> None:
    """Receive and acknowledge in one queue and put into both; the log of ``hub`` decides."""
    transaction = holdfast.transaction(hub, aside)
    transaction.put(hub, b"new")
    transaction.put(aside, b"new")
    transaction.ack(aside, transaction.receive(aside, timeout=0))
    transaction.commit()


def committed() -> SimulatedStorage:
    """Return what a kill leaves behind a commit over two queues that has returned."""
    storage, clock = SimulatedStorage(), FakeClock()
    hub, aside = open_queue(storage, HUB, clock=clock), open_queue(storage, ASIDE, clock=clock)
    aside.put(b"one")
    commit_over(hub, aside)
    return kill(storage, hub, aside)


@pytest.mark.parametrize("crash", [decided, committed])
def test_after_a_kill_a_put_makes_no_call_outside_of_its_own_queue(crash: Callable[[], SimulatedStorage]) -> None:
    """The other queue was opened first, and owns what the commit record waits for; not even a roll looks there."""
    storage, clock = crash(), FakeClock()  # no time passes, so there is nothing in the background
    with open_queue(storage, ASIDE, clock=clock) as aside, open_queue(storage, HUB, clock=clock) as hub:
        assert pending_count(hub) == 1
        with calls_of(storage) as seen:
            hub.put(b"small")
            for _ in range(ROLLS):
                hub.put(bytes(16_000))
        assert handle_of(hub).files.names()[-1].sequence > 2
        assert len(seen) > ROLLS
        assert [path for path in seen if not path.is_relative_to(HUB)] == []
        assert pending_count(hub) == 1, "carried"
        aside.put(b"goes on")


def test_a_roll_ends_what_needs_its_own_files_and_carries_what_needs_others() -> None:
    """Where all handles live in one process too; closing ends the rest."""
    storage, clock = SimulatedStorage(), FakeClock()
    with open_queue(storage, HUB, clock=clock) as hub, open_queue(storage, ASIDE, clock=clock) as aside:
        hub.put(b"one")
        aside.put(b"one")
        with hub.transaction() as transaction:
            transaction.ack(transaction.receive(timeout=0))
            transaction.put(b"two")
        commit_over(hub, aside)
        assert pending_count(hub) == 2
        with calls_of(storage) as seen:
            for _ in range(ROLLS):
                hub.put(bytes(16_000))
        assert pending_count(hub) == 1
        assert [path for path in seen if not path.is_relative_to(HUB)] == []
        with calls_of(storage) as seen:
            hub.close()
        assert any(path.is_relative_to(ASIDE) for path in seen)
    with open_queue(storage, HUB, clock=clock) as hub:
        assert pending_count(hub) == 0


def test_adopting_a_batch_makes_no_call_outside_of_its_own_queue() -> None:
    """It leaves a data file as a roll does."""
    storage, clock = SimulatedStorage(), FakeClock()
    with open_queue(storage, HUB, clock=clock) as hub, open_queue(storage, ASIDE, clock=clock) as aside:
        aside.put(b"one")
        commit_over(hub, aside)
        with calls_of(storage) as seen, hub.transaction() as transaction:
            transaction.put_many([bytes(4000)] * 8)
        assert [path for path in seen if not path.is_relative_to(HUB)] == []
        assert pending_count(hub) == 2


def test_the_number_of_pending_records_of_other_queues_is_bounded() -> None:
    """The commit that makes them too many ends them, outside of the append lock."""
    storage, clock = SimulatedStorage(), FakeClock()
    policy = FlushPolicy.never()
    with (
        open_queue(storage, HUB, clock=clock, flush=policy) as hub,
        open_queue(storage, ASIDE, clock=clock, flush=policy) as aside,
    ):
        aside.put_many([b"one"] * 2 * PENDING_MAX)
        side = handle_of(hub).require_write_side()
        locked: list[bool] = []

        def watch(verb: str, path: Path) -> None:
            if verb == "sync" and path.is_relative_to(ASIDE / "groups"):
                locked.append(side._append_lock.locked())

        counts = []
        for _ in range(PENDING_MAX + 8):
            if pending_count(hub) == PENDING_MAX - 1:
                storage.before_verb = watch
            commit_over(hub, aside)
            counts.append(pending_count(hub))
        storage.before_verb = None
        assert max(counts) < PENDING_MAX
        assert min(counts[PENDING_MAX - 1 :]) < 8
        assert locked
        assert not any(locked)


def test_the_background_ends_records_of_other_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue that is put into does not keep them until it is closed."""
    monkeypatch.setattr(commit_record_ends, "_DEFERRED_SECONDS", 0.0)
    storage, clock = SimulatedStorage(), FakeClock()
    with open_queue(storage, HUB, clock=clock) as hub, open_queue(storage, ASIDE, clock=clock) as aside:
        aside.put(b"one")
        commit_over(hub, aside)
        deadline = time.monotonic() + 10
        while pending_count(hub) and time.monotonic() < deadline:
            clock.advance(1)
            time.sleep(0.01)
        assert pending_count(hub) == 0


def test_the_background_tries_now_and_then_and_rests_in_between() -> None:
    """What it could not end it tries again with the next commit; without any there is nothing to come back for."""
    storage, clock = SimulatedStorage(), FakeClock()
    with open_queue(storage, HUB, clock=clock) as hub, open_queue(storage, ASIDE, clock=clock) as aside:
        ends, now = handle_of(hub).require_write_side()._record_ends, time.monotonic()
        assert not ends.end_deferred(now + 10)
        aside.put(b"one")
        commit_over(hub, aside)
        assert ends.end_deferred(now)
        assert pending_count(hub) == 1
        assert not ends.end_deferred(now + 10)
        assert pending_count(hub) == 0


def test_a_group_that_was_never_used_has_nothing_to_sync() -> None:
    """A commit record may wait for the votes of another group only."""
    storage = SimulatedStorage()
    with open_queue(storage, HUB, clock=FakeClock()) as queue:
        count = storage.mutation_count
        handle_of(queue).group.sync()
        assert storage.mutation_count == count
