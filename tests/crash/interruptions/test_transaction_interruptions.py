"""KeyboardInterrupt wherever it can hit the end of a transaction: after closing and opening it is all or nothing.

``HOLDFAST_TEST_CRASH_FULL=1`` interrupts at every point, and not at every few.
"""

import logging
import os
from collections.abc import Callable
from contextlib import suppress

import pytest

from holdfast import FlushPolicy, HoldfastError
from support.models.transaction_oracle import decide_all, judge, look, opened, told, work_on
from support.processes.interruptions import interrupt, without_hanging
from support.storages.simulated_storage import SimulatedStorage
from support.workloads.transaction_runs import LARGE, Fate, Moment, TransactionRun

FULL = bool(os.environ.get("HOLDFAST_TEST_CRASH_FULL"))
STRIDE = 1 if FULL else 17

POLICIES = [FlushPolicy.every_commit(), FlushPolicy.never()]


@pytest.fixture(autouse=True)
def _silence(caplog: pytest.LogCaptureFixture) -> None:
    """Poisoning is logged, hundreds of times here."""
    caplog.set_level(logging.CRITICAL, "holdfast")


def _one(run: TransactionRun) -> None:
    run.open(a="exclusive")
    run.put("a", 40, 50, 60)


def _two(run: TransactionRun) -> None:
    run.open(a="exclusive", b="exclusive")
    run.put("a", 40, 50, 60)
    run.put("b", 40, 50)


def puts_and_acks(run: TransactionRun) -> Callable[[], object]:
    """Commit both."""
    _one(run)
    run.begin("t", puts={"a": (30, 700)}, acks={"a": 2})
    return lambda: run.commit("t")


def acks(run: TransactionRun) -> Callable[[], object]:
    """Commit acknowledgements."""
    _one(run)
    run.begin("t", acks={"a": 2})
    return lambda: run.commit("t")


def large(run: TransactionRun) -> Callable[[], object]:
    """Commit by adoption."""
    _one(run)
    run.begin("t", puts={"a": (LARGE, LARGE)}, acks={"a": 1})
    return lambda: run.commit("t")


def prepare(run: TransactionRun) -> Callable[[], object]:
    """Prepare both."""
    _one(run)
    run.begin("t", puts={"a": (30,)}, acks={"a": 2})
    return lambda: run.prepare("t", "t")


def prepare_acks(run: TransactionRun) -> Callable[[], object]:
    """Prepare acknowledgements."""
    _one(run)
    run.begin("t", acks={"a": 2})
    return lambda: run.prepare("t", "t")


def commit_prepared(run: TransactionRun) -> Callable[[], object]:
    """Commit what was prepared."""
    prepare(run)()
    return lambda: run.commit("t")


def commit_prepared_acks(run: TransactionRun) -> Callable[[], object]:
    """Commit prepared acknowledgements."""
    prepare_acks(run)()
    return lambda: run.commit("t")


def abort_prepared(run: TransactionRun) -> Callable[[], object]:
    """Abort what was prepared."""
    prepare(run)()
    return lambda: run.abort("t")


def abort_open(run: TransactionRun) -> Callable[[], object]:
    """Abort what was not."""
    _one(run)
    run.begin("t", puts={"a": (LARGE, LARGE)}, acks={"a": 1})
    return lambda: run.abort("t")


def two_queues(run: TransactionRun) -> Callable[[], object]:
    """Commit over two queues, both of which put and acknowledge."""
    _two(run)
    run.begin("t", puts={"a": (30,), "b": (40,)}, acks={"a": 1, "b": 1})
    return lambda: run.commit("t")


def from_one_to_the_other(run: TransactionRun) -> Callable[[], object]:
    """Commit over two queues, where one only acknowledges."""
    _two(run)
    run.begin("t", puts={"b": (40,)}, acks={"a": 1})
    return lambda: run.commit("t")


ENDINGS = (
    puts_and_acks,
    acks,
    large,
    prepare,
    prepare_acks,
    commit_prepared,
    commit_prepared_acks,
    abort_prepared,
    abort_open,
    two_queues,
    from_one_to_the_other,
)
ENDS_IN = {prepare: Fate.IN_DOUBT, prepare_acks: Fate.IN_DOUBT, abort_prepared: Fate.ABSENT, abort_open: Fate.ABSENT}


def check(run: TransactionRun, storage: SimulatedStorage, before: Moment, done: Fate, *, killed: bool) -> None:
    """Open what is left, judge it, decide what is in doubt in both ways, and go on working."""
    order = {name: (*works, *(("t",) if "t" not in works else ())) for name, works in before.log_order.items()}
    order = {name: tuple(key for key in works if name in run.works[key].puts) for name, works in order.items()}
    after = Moment(
        0, "", {**before.killed, "t": done}, {**before.powerless, "t": done}, order if done is Fate.COMMITTED else {}
    )
    names = list(run.modes)
    with opened(storage, run.policy, names, {}) as queues:
        seen = look(queues, told(run, before))
    verdict = judge(run, seen, before, after, killed=killed)
    if Fate.IN_DOUBT in verdict.explanations[0].values():
        for commit in (True, False):
            decide_all(storage.crash_keeping_all(), run, verdict, commit=commit, names=names)
    work_on(storage, run, verdict, seen)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # one that hits a generator's closing
@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize("ending", ENDINGS, ids=lambda ending: ending.__name__)
def test_a_transaction_is_all_or_nothing_wherever_its_end_is_interrupted(
    ending: Callable[[TransactionRun], Callable[[], object]], policy: FlushPolicy
) -> None:
    """After closing, after a kill, after a loss of power; no lock stays locked, and a later flush changes nothing."""
    at = 1 + POLICIES.index(policy)
    count = 0
    while True:
        run = TransactionRun(policy)
        call = ending(run)
        before = run.segments[-1].moments[-1]
        try:
            if not interrupt(call, at):
                break
            killed, powerless = run.storage.crash_keeping_all(), run.storage.crash_dropping_unsynced()
            for queue in run.queues.values():
                without_hanging(lambda queue=queue: [queue.prepared(), queue.flush()])  # type: ignore[misc]
            later = run.storage.crash_dropping_unsynced()
            for queue in run.queues.values():
                without_hanging(lambda queue=queue: closed(queue))  # type: ignore[misc]
            done = ENDS_IN.get(ending, Fate.COMMITTED)
            check(run, killed, before, done, killed=True)
            check(run, run.storage.crash_keeping_all(), before, done, killed=True)
            check(run, powerless, before, done, killed=False)
            check(run, later, before, done, killed=False)
        except BaseException as error:
            error.add_note(f"{ending.__name__}, {policy}, point {at}")
            raise
        at += STRIDE
        count += 1
    for queue in run.queues.values():
        queue.close()
    assert count > 1, "nothing was interrupted"
    print(f" {count} points")


def closed(queue) -> None:  # type: ignore[no-untyped-def]
    """Close a queue, which may say that it is broken."""
    with suppress(HoldfastError):
        queue.close()
