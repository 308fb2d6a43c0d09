"""Transactions, cut off after every single change of the disk, and their recovery too: all or nothing each time.

The crash model: docs/durability.md; the oracle: tests/support/models/transaction_oracle.py.
``HOLDFAST_TEST_CRASH_FULL=1`` runs each scenario under every flush policy and not under one in turn, has every kind of
crash at each point and not one in turn, crashes the recovery from every point at which something is being decided and
not from one, and adds more random losses of power: hours, not a minute.
"""

import logging
import os
import random
from collections.abc import Callable

import pytest

from holdfast import FlushPolicy
from holdfast.queue.options.queue_options import Mode
from support.models.crash_oracle import fingerprint
from support.models.transaction_oracle import Seen, Verdict, decide_all, judge, look, opened, told, work_on
from support.owners.machine_link import machine_links
from support.storages.simulated_storage import SimulatedStorage
from support.workloads.transaction_runs import Fate, Moment, TransactionRun
from support.workloads.transaction_scenarios import SCENARIOS, Scenario

FULL = bool(os.environ.get("HOLDFAST_TEST_CRASH_FULL"))
POLICIES = (FlushPolicy.every_commit(), FlushPolicy.every(commits=2), FlushPolicy.never())
RANDOM_CRASHES = 6 if FULL else 1
RECOVERIES = 10**6 if FULL else 1  # points of each run whose recovery is crashed at each of its operations
NEARLY_ALL = 0.9
SHARED: dict[str, Mode] = {"a": "shared", "b": "shared"}
SHARED_FIRST_EVERY = 5

Point = tuple[Moment, Moment]


def cases(turn: int) -> list[tuple[Scenario, FlushPolicy]]:
    """Return which scenarios run under which policies: under all of them, or under one in turn."""
    return [
        (scenario, policy)
        for number, scenario in enumerate(SCENARIOS)
        for turn_of_policy, policy in enumerate(POLICIES)
        if FULL or (number + turn) % len(POLICIES) == turn_of_policy
    ]


def name_of(value: object) -> str:
    """Return how a parameter is called."""
    return getattr(value, "__name__", str(value))


@pytest.fixture(autouse=True)
def _silence(caplog: pytest.LogCaptureFixture) -> None:
    """Thousands of recoveries say what they did; a failure would drown in it."""
    caplog.set_level(logging.CRITICAL, "holdfast")


def record(scenario: Scenario, policy: FlushPolicy, *, is_shared: bool = False) -> TransactionRun:
    """Run a scenario without a crash: through owners, if it is shared, which die with the queues."""
    run = TransactionRun(policy, is_shared=is_shared)
    with machine_links():
        scenario(run)
        if run.queues:
            run.kill()
            run.segments.pop()
    return run


class Explorer:
    """Recovers crashed disks and judges what they show; disks that hold the same durable bytes count once."""

    def __init__(self, run: TransactionRun, rng: random.Random) -> None:
        self.run = run
        self.rng = rng
        self.point_count = 0
        self.crash_count = 0
        self.distinct_count = 0
        self._seen: dict[bytes, Seen] = {}

    def names(self) -> list[str]:
        """Return the queues, now in the one order and now in the other."""
        names = list(self.run.modes)
        return names if self.crash_count % 2 else names[::-1]

    def check(self, crashed: SimulatedStorage, point: Point, *, killed: bool) -> None:
        """Recover one crashed disk, judge it, decide what is in doubt in both ways, and go on working."""
        self.crash_count += 1
        key = b"" if killed else fingerprint(crashed)
        known = self._seen.get(key)
        if known is not None:
            judge(self.run, known, *point, killed=killed)
            return
        self.distinct_count += 1
        seen, verdict = self.see(crashed, point, killed=killed)
        if not killed:
            self._seen[key] = seen
        names = list(seen.waiting)
        if Fate.IN_DOUBT in verdict.explanations[0].values():
            decide_all(crashed.crash_keeping_all(), self.run, verdict, commit=True, names=names)
            decide_all(crashed.crash_keeping_all(), self.run, verdict, commit=False, names=names)
        work_on(crashed, self.run, verdict, seen)

    def see(self, crashed: SimulatedStorage, point: Point, *, killed: bool) -> tuple[Seen, Verdict]:
        """Recover a crashed disk and judge it; the queues are closed again.

        Now and then owners of shared queues come first: they recover the log, and no group is open then.
        """
        if self.crash_count % SHARED_FIRST_EVERY == 0:
            with machine_links(), opened(crashed, self.run.policy, self.names(), SHARED):
                pass
        with opened(crashed, self.run.policy, self.names(), {}) as queues:
            seen = look(queues, told(self.run, point[0]))
        return seen, judge(self.run, seen, *point, killed=killed)

    def check_recovery(self, crashed: SimulatedStorage, point: Point, *, killed: bool) -> None:
        """Crash the recovery at each of its operations, and recover again, in the one order and in the other."""
        count, first = 0, self.names()
        for names in (first, first[::-1])[: len(first)]:
            recovered = crashed.crash_keeping_all()
            with opened(recovered, self.run.policy, names, {}):
                count = len(recovered.log)
            for number, storage in enumerate(recovered.replay()):
                again = [storage.crash_dropping_unsynced(), storage.random_crash(self.rng)]
                again += [storage.crash_keeping_all()] if number <= count else []
                for left in again:
                    self.crash_count += 1
                    is_kept = len(again) > 2 and left is again[-1]
                    self._see_once(left, point, killed=killed, is_kept=is_kept)

    def _see_once(self, left: SimulatedStorage, point: Point, *, killed: bool, is_kept: bool) -> None:
        key = b"" if is_kept else fingerprint(left)
        known = self._seen.get(key)
        if known is not None:
            judge(self.run, known, *point, killed=False)
            return
        self.distinct_count += 1
        seen, _ = self.see(left, point, killed=killed and is_kept)
        if not is_kept:
            self._seen[key] = seen


@pytest.mark.parametrize("is_shared", [False, True], ids=["exclusive", "shared"])
@pytest.mark.parametrize(("scenario", "policy"), cases(0), ids=name_of)
def test_a_transaction_is_all_or_nothing_after_a_crash_at_any_storage_call(
    scenario: Scenario, policy: FlushPolicy, is_shared: bool, record_property: Callable[[str, object], None]
) -> None:
    """A kill, a power loss that takes all it can, and random ones; then both verdicts for what is in doubt."""
    run = record(scenario, policy, is_shared=is_shared)
    explorer = Explorer(run, random.Random(f"{scenario.__name__} {policy}"))
    for turn, (storage, before, under_way, where) in enumerate(run.crash_points()):
        explorer.point_count += 1
        flavour = "kill"
        try:
            if FULL or turn % 3 == 0:
                explorer.check(storage.crash_keeping_all(), (before, under_way), killed=True)
            flavour = "unsynced dropped"
            if FULL or turn % 3 == 1:
                explorer.check(storage.crash_dropping_unsynced(), (before, under_way), killed=False)
            for number in range(RANDOM_CRASHES if FULL or turn % 3 == 2 else 0):
                flavour = f"random crash {number}"
                left = storage.random_crash(explorer.rng, keep=NEARLY_ALL if number % 2 else 0.5)
                explorer.check(left, (before, under_way), killed=False)
        except BaseException as error:
            error.add_note(f"{scenario.__name__}, {policy}: {flavour} {where}")
            raise
    tell(record_property, explorer)


@pytest.mark.parametrize(("scenario", "policy"), cases(1), ids=name_of)
def test_a_transaction_is_all_or_nothing_after_a_crash_at_any_storage_call_of_its_recovery(
    scenario: Scenario, policy: FlushPolicy, record_property: Callable[[str, object], None]
) -> None:
    """Recovery does what decisions say and follows other queues' verdicts: it can be cut off anywhere, too."""
    run = record(scenario, policy)
    rng = random.Random(f"{policy} {scenario.__name__}")
    explorer = Explorer(run, rng)
    points = list(run.crash_points_of_interest())
    chosen = set(rng.sample(points, min(RECOVERIES, len(points))))
    for number, (storage, before, under_way, where) in enumerate(run.crash_points()):
        if number not in chosen:
            continue
        explorer.point_count += 1
        try:
            explorer.check_recovery(storage.random_crash(rng, keep=NEARLY_ALL), (before, under_way), killed=False)
            explorer.check_recovery(storage.crash_keeping_all(), (before, under_way), killed=True)
        except BaseException as error:
            error.add_note(f"{scenario.__name__}, {policy}: in recovery from a crash {where}")
            raise
    tell(record_property, explorer)


def tell(record_property: Callable[[str, object], None], explorer: Explorer) -> None:
    """Leave counts in the test report, and show them with ``pytest -s``."""
    result = f"{explorer.point_count} points, {explorer.crash_count} crashes, {explorer.distinct_count} states"
    record_property("explored", result)
    print(f" {result}")
