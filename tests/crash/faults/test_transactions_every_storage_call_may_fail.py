"""Every single storage call of a transaction fails once, or for ever: errors are ours, and it is all or nothing.

``HOLDFAST_TEST_CRASH_FULL=1`` lets every call fail, and not every few only, which move from run to run of the
parameters.
"""

import errno
import logging
import os
from collections.abc import Callable
from contextlib import suppress

import pytest

from holdfast import CommitUnknownError, Empty, FlushPolicy, HoldfastError, PersistentQueue, PoisonedError
from support.builders.handles import handle_of
from support.models.transaction_oracle import decide_all, judge, look, opened, told, work_on
from support.storages.faults import FaultPlan
from support.storages.simulated_storage import SimulatedStorage
from support.workloads.transaction_runs import Fate, Moment, TransactionRun
from support.workloads.transaction_scenarios import SCENARIOS, Scenario

FULL = bool(os.environ.get("HOLDFAST_TEST_CRASH_FULL"))
STRIDE = 1 if FULL else 13

FAULTS: dict[str, Callable[[int], FaultPlan]] = {
    "EIO once": lambda at: FaultPlan(at, errno.EIO),
    "EIO for ever": lambda at: FaultPlan(at, errno.EIO, forever=True),
    "ENOSPC once": lambda at: FaultPlan(at, errno.ENOSPC),
    "ENOSPC for ever": lambda at: FaultPlan(at, errno.ENOSPC, forever=True),
    "short write once": lambda at: FaultPlan(at, errno.ENOSPC, short_write=True),
    "short write, then no room": lambda at: FaultPlan(at, errno.ENOSPC, short_write=True, forever=True),
}
UNKNOWN = (CommitUnknownError, PoisonedError)


@pytest.fixture(autouse=True)
def _silence(caplog: pytest.LogCaptureFixture) -> None:
    """Thousands of failures are logged; one of ours would drown in it."""
    caplog.set_level(logging.CRITICAL, "holdfast")


class FaultyRun(TransactionRun):
    """A run whose storage fails, and that believes what the calls say.

    After "unknown" and "poisoned" it opens the queues again. What it could not do it leaves.
    """

    def __init__(self, policy: FlushPolicy, plan: FaultPlan) -> None:
        super().__init__(policy)
        self.plan = plan
        self._struck_before = 0

    # -- Calls that may fail -----------------------------------------------------------------------------------------

    def open(self, **modes: str) -> None:
        """Open queues, as far as that works."""
        for name, mode in (modes or {"a": "exclusive"}).items():
            self.offsets.setdefault(name, {})
            self._log_order.setdefault(name, [])
            self.modes[name] = mode
            with suppress(HoldfastError):
                super().open(**{name: mode})
            self.look_at_what_a_fault_has_left()

    def close(self, *names: str) -> None:
        """Close queues; one whose closing fails is closed all the same."""
        for name in names or tuple(self.queues):
            queue = self.queues.pop(name, None)
            if queue is None:
                continue
            with suppress(HoldfastError):
                queue.close()
                self._is_durable(name)
            self._forget(name)

    def kill(self) -> None:
        """Closing is what comes nearest: the faults go on in the same storage."""
        self.close()

    def put(self, name: str, *sizes: int) -> None:
        """Put a plain batch."""
        if name in self.queues:
            self._attempt(lambda: super(FaultyRun, self).put(name, *sizes), Fate.ABSENT, Fate.COMMITTED)

    def begin(self, key: str, **what: object) -> None:
        """Begin a transaction; one that cannot do all it should is aborted."""
        for queue in self.queues.values() if self.storage.faults is None else ():
            with suppress(Empty):
                queue.receive(timeout=0).release()  # the first one makes the group, which is not about transactions
        self.storage.faults = self.plan  # nor is what comes before
        names = {name for each in what.values() if isinstance(each, dict) for name in each}
        if names <= set(self.queues):
            self._attempt(lambda: super(FaultyRun, self).begin(key, **what), Fate.ABSENT, Fate.ABSENT)  # type: ignore[arg-type]

    def commit(self, key: str) -> None:
        """Commit a transaction, prepared or not."""
        if key in self._transactions:
            self._attempt(lambda: super(FaultyRun, self).commit(key), self._fates[key], Fate.COMMITTED)

    def prepare(self, key: str, id: str | None = None) -> None:
        """Prepare a transaction."""
        if key in self._transactions:
            self._attempt(lambda: super(FaultyRun, self).prepare(key, id), Fate.ABSENT, Fate.IN_DOUBT)

    def abort(self, key: str) -> None:
        """Abort a transaction; one that is prepared may stay so."""
        if key in self._transactions:
            self.under_way = key
            before = self._fates[key]
            self._attempt(lambda: super(FaultyRun, self).abort(key), before | Fate.ABSENT, Fate.ABSENT)

    def commit_prepared(self, key: str) -> None:
        """Commit a prepared transaction by its id, if it came to be prepared."""
        if self._is_here(key):
            self._attempt(lambda: super(FaultyRun, self).commit_prepared(key), Fate.IN_DOUBT, Fate.COMMITTED)

    def abort_prepared(self, key: str) -> None:
        """Abort a prepared transaction by its id, if it came to be prepared."""
        if self._is_here(key):
            self.under_way = key
            self._attempt(lambda: super(FaultyRun, self).abort_prepared(key), Fate.IN_DOUBT | Fate.ABSENT, Fate.ABSENT)

    def _is_here(self, key: str) -> bool:
        return self._fates.get(key) is Fate.IN_DOUBT and self.works[key].queues <= set(self.queues)

    def _attempt(self, call: Callable[[], None], failed: Fate, done: Fate) -> None:
        """Make a call; where it fails the work is as ``failed``, and where nobody knows, perhaps ``done``."""
        try:
            call()
        except (HoldfastError, Empty) as error:
            key = self.under_way
            is_unknown = isinstance(error, UNKNOWN)
            if key is not None:
                fate = failed | done if is_unknown else failed
                self._fates[key] = self._powerless[key] = fate
                for name in self.works[key].puts if Fate.COMMITTED in fate else ():
                    self._log_order[name].append(key)
                tx = self._transactions.pop(key, None)
                if tx is not None and not is_unknown and Fate.IN_DOUBT not in fate:
                    with suppress(HoldfastError):
                        tx.abort()
            if is_unknown:
                self.reopen()
        self.look_at_what_a_fault_has_left()

    def reopen(self) -> None:
        """Do what the error says: close everything, and open it again."""
        modes = {name: self.modes[name] for name in self.queues}
        self.close()
        self.open(**modes)

    # -- Judging -----------------------------------------------------------------------------------------------------

    def look_at_what_a_fault_has_left(self) -> None:
        """See whether a handle that continues after a fault shows what it should."""
        struck, self._struck_before = self.plan.fired_count > self._struck_before, self.plan.fired_count
        if struck and not self.plan.forever and not self._transactions and self.queues:
            if any(map(is_poisoned, self.queues.values())):
                self.reopen()
            readers = {name: queue for name, queue in self.queues.items() if queue.group == "default"}
            try:
                seen = look(readers, self.offsets)
            except UNKNOWN:
                return
            judge(self, seen, self.moment(), self.moment(), killed=True)

    def moment(self) -> Moment:
        """Return what holds now."""
        order = {name: tuple(works) for name, works in self._log_order.items()}
        return Moment(0, "now", dict(self._fates), dict(self._powerless), order)

    def check(self, storage: SimulatedStorage, *, killed: bool) -> None:
        """Open what is left without faults, judge it, and go on."""
        storage.faults = None
        names = list(self.modes)
        moment = self.moment()
        with opened(storage, self.policy, names, {}) as queues:
            seen = look(queues, told(self, moment))
        verdict = judge(self, seen, moment, moment, killed=killed)
        if Fate.IN_DOUBT in verdict.explanations[0].values():
            for commit in (True, False):
                decide_all(storage.crash_keeping_all(), self, verdict, commit=commit, names=names)
        work_on(storage, self, verdict, seen)


def is_poisoned(queue: PersistentQueue) -> bool:
    """Whether a side of a queue refuses to go on."""
    writer = handle_of(queue).write_side._writer if handle_of(queue).write_side is not None else None
    books = handle_of(queue).read_side.progress_store if handle_of(queue).read_side is not None else None
    poisons = [each._poison for each in (writer, books._positions if books is not None else None) if each is not None]
    return any(each.cause is not None for each in poisons)


def run_with(scenario: Scenario, policy: FlushPolicy, plan: FaultPlan) -> FaultyRun:
    """Run a scenario with a fault, close what is open, and judge what is left, with power and without."""
    run = FaultyRun(policy, plan)
    scenario(run)
    without_power = run.storage.crash_dropping_unsynced()
    run.close()
    run.check(run.storage.crash_keeping_all(), killed=True)
    run.check(without_power, killed=False)
    return run


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_a_transaction_is_all_or_nothing_whatever_storage_call_fails(
    scenario: Scenario, fault: str, record_property: Callable[[str, object], None]
) -> None:
    """The caller gets an error of ours; handles that go on show what they said, and so do those that come after."""
    policy = FlushPolicy.every_commit()
    number = SCENARIOS.index(scenario) + list(FAULTS).index(fault)
    at, count, struck = 1 + number % 5, 0, True
    while struck:
        plan = FAULTS[fault](at)
        try:
            run_with(scenario, policy, plan)
        except BaseException as error:
            error.add_note(f"{scenario.__name__}, {fault}, call {at}")
            raise
        struck = plan.fired_count > 0
        count += struck
        at += STRIDE
    assert count, "the fault has to strike in every part of the run"
    record_property("failed calls", count)
    print(f" {count} failed calls")
