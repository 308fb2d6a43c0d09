"""Reserving, committing and giving back are all or nothing, wherever a crash or a failing disk comes in between.

``HOLDFAST_TEST_CRASH_FULL=1`` lets every call fail, and not every third, which move from fault to fault.
"""

import errno
import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from holdfast import CommitUnknownError, HoldfastError, PersistentQueue, PoisonedError
from holdfast.queue.options.queue_options import Mode
from holdfast.queue.prepared.reservations import Reservation
from support.builders.clocks import FakeClock
from support.owners.machine_link import machine_links
from support.storages.faults import FaultPlan
from support.storages.simulated_storage import SimulatedStorage

COUNT = 120
PAYLOAD = b"x" * 400
ROOT = Path("/q")
STRIDE = 1 if os.environ.get("HOLDFAST_TEST_CRASH_FULL") else 3

FAULTS = {
    "EIO": lambda at: FaultPlan(at, errno.EIO),
    "ENOSPC": lambda at: FaultPlan(at, errno.ENOSPC),
    "a short write": lambda at: FaultPlan(at, errno.ENOSPC, short_write=True),
}


@pytest.fixture(autouse=True)
def _silence(caplog: pytest.LogCaptureFixture) -> None:
    """Hundreds of failures are logged; one of ours would drown in it."""
    caplog.set_level(logging.CRITICAL, "holdfast")


@dataclass(frozen=True)
class State:
    """What is held, by id, and what is finished."""

    held: tuple[tuple[str, tuple[int, ...]], ...] = ()
    finished: frozenset[int] = frozenset()


def offsets(reservation: Reservation) -> tuple[int, ...]:
    """Return the offsets that a reservation holds."""
    return tuple(offset for first, count, _, _ in reservation.runs for offset in range(first, first + count))


def opened(storage: SimulatedStorage, mode: Mode = "exclusive") -> PersistentQueue:
    """Open the queue, with data files as small as they can be."""
    return PersistentQueue(ROOT, mode=mode, storage=storage, data_file_bytes=16 * 2**10, clock=FakeClock())


def filled() -> SimulatedStorage:
    """Return a disk with a closed queue of several data files."""
    storage = SimulatedStorage()
    with opened(storage) as queue:
        for _ in range(COUNT // 20):
            queue.put_many([PAYLOAD] * 20)
    return storage


def state_of(storage: SimulatedStorage) -> State:
    """Open what is left, look, and take the rest; nothing may be both held and there."""
    with opened(storage) as queue:
        held = [(each.id, offsets(each)) for each in queue.reservations.held()]
        for each in queue.reservations.held():
            read = [row.offset for row in queue.reservations.read(each, pytest.fail)]
            assert tuple(read) == offsets(each)
        rest = queue.reservations.take()
        free = set(offsets(rest)) if rest is not None else set()
        taken = [offset for _, each in held for offset in each]
        assert len(taken) == len(set(taken))
        assert not free & set(taken)
        assert queue.stats().depth == len(free) + len(taken)
    return State(tuple(sorted(held)), frozenset(range(COUNT)) - free - set(taken))


@dataclass
class Run:
    """Reserves, commits and gives back; notes what holds behind each step."""

    storage: SimulatedStorage
    state: State = field(default_factory=State)
    moments: list[tuple[int, State]] = field(default_factory=list)
    may_be: tuple[State, ...] = ()

    def __post_init__(self) -> None:
        self.note(self.state)

    def note(self, state: State) -> None:
        """Note what holds now that a step has returned."""
        self.state, self.may_be = state, ()
        self.moments.append((len(self.storage.log), state))

    def steps(self, queue: PersistentQueue) -> Iterator[None]:
        """Do everything; stops between two steps."""
        first = self.take(queue, 50)
        yield
        self.commit(queue, first)
        yield
        second = self.take(queue, 45)
        yield
        self.abort(queue, second)
        yield
        third = self.take(queue, 30)
        yield
        fourth = self.take(queue, 100)
        yield
        self.commit(queue, fourth)
        yield
        self.commit(queue, third)
        yield

    def take(self, queue: PersistentQueue, count: int) -> Reservation:
        """Reserve what comes next, which is known."""
        known = {offset for _, each in self.state.held for offset in each} | self.state.finished
        expected = tuple(sorted(set(range(COUNT)) - known))[:count]
        has_begun = bool(queue.groups.list())
        name = f"{queue.reservations.id_prefix('reserved')}{expected[0]}" if has_begun else ""
        after = State(tuple(sorted((*self.state.held, (name, expected)))), self.state.finished)
        self.may_be = (after,)
        reservation = queue.reservations.take(max_messages=count)
        assert reservation is not None
        assert offsets(reservation) == expected
        self.note(State(tuple(sorted((*self.state.held, (reservation.id, expected)))), self.state.finished))
        return reservation

    def commit(self, queue: PersistentQueue, reservation: Reservation) -> None:
        """Finish what is held."""
        after = State(self._without(reservation), self.state.finished | set(offsets(reservation)))
        self.may_be = (after,)
        queue.reservations.commit(reservation)
        self.note(after)

    def abort(self, queue: PersistentQueue, reservation: Reservation) -> None:
        """Give back what is held."""
        after = State(self._without(reservation), self.state.finished)
        self.may_be = (after,)
        queue.reservations.abort(reservation)
        self.note(after)

    def _without(self, reservation: Reservation) -> tuple[tuple[str, tuple[int, ...]], ...]:
        return tuple(each for each in self.state.held if each[0] != reservation.id)


@pytest.mark.parametrize("mode", ["exclusive", "shared"])
@pytest.mark.parametrize("keeps", [True, False], ids=["killed", "power lost"])
def test_every_crash_shows_a_step_done_or_not_done(keeps: bool, mode: Mode) -> None:
    """At each storage call: with what was written, and with no more than what was synced."""
    storage = filled()
    begin = len(storage.log)
    run = Run(storage)
    with machine_links(), opened(storage, mode) as queue:
        for _ in run.steps(queue):
            pass
    count = 0
    for at, crashed in enumerate(storage.replay()):
        if at < begin:
            continue
        allowed = [state for operation, state in run.moments if operation <= at][-1:]
        allowed += [state for operation, state in run.moments if operation > at][:1]
        left = crashed.crash_keeping_all() if keeps else crashed.crash_dropping_unsynced()
        assert state_of(left) in allowed, f"operation {at}: {storage.log[at - 1]!r:.120}"
        count += 1
    assert count > 40


@pytest.mark.parametrize("fault", FAULTS)
def test_every_storage_call_may_fail(fault: str) -> None:
    """The error is ours; the handle continues as if the step had not been tried, or says that nobody knows."""
    at, struck, count = list(FAULTS).index(fault) % STRIDE + 1, True, 0
    while struck:
        storage = filled()
        run = Run(storage)
        plan = FAULTS[fault](at)
        queue = opened(storage)
        storage.faults = plan
        is_unknown = False
        try:
            for _ in run.steps(queue):
                pass
        except (CommitUnknownError, PoisonedError):
            is_unknown = True
        except HoldfastError:
            go_on(queue, run.state)
        struck = plan.fired_count > 0
        storage.faults = None
        with suppress(HoldfastError):
            queue.close()
        allowed = [run.state, *(run.may_be if is_unknown else ())]
        for left in (storage.crash_keeping_all(), storage.crash_dropping_unsynced()):
            found = state_of(left)
            assert any(same(found, state) for state in allowed), (fault, at, found, allowed)
        count += struck
        at += STRIDE
    assert count > 10 / STRIDE


def go_on(queue: PersistentQueue, state: State) -> None:
    """Reserve what a failed step has left, and give it back: nothing that is held or finished is among it."""
    with suppress(PoisonedError):
        taken = queue.reservations.take()
        if taken is not None:
            known = {offset for _, each in state.held for offset in each} | state.finished
            assert not known & set(offsets(taken))
            queue.reservations.abort(taken)


def same(found: State, state: State) -> bool:
    """Whether two states are the same; of a group that had not begun the ids were not known."""
    if found.finished != state.finished or len(found.held) != len(state.held):
        return False
    pairs = zip(found.held, state.held, strict=True)
    return all(a[1] == b[1] and (not b[0] or a[0] == b[0]) for a, b in pairs)
