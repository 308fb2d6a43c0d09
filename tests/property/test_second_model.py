"""A second model, written from the documentation alone, judges random histories, and those of the first model.

It also judges the recorded runs of ``tests/crash/prefixes/test_every_prefix_recovers.py`` and a run of
``test_deliveries_against_model.py``. It does not follow what ``test_queue_against_model.py`` and
``test_transactions_against_model.py`` do: it knows a loss of power under ``every_commit`` only, one queue in a
transaction, one handle at a time that takes, and no ``put_stream``, joint commits or reservations.
"""

from collections.abc import Callable

import pytest

from proof.second_model.facts import DisagreementError, Now
from proof.second_model.history import Answer, Call, Seen
from proof.second_model.judge import Judge
from proof.second_model.runs import judged_history
from proof.second_model.witness import watching
from support.workloads.work_runs import WorkRun

HISTORIES = range(12)
STEPS = 80
FIRST_MODEL_SEEDS = range(2)
FIRST_MODEL_STEPS = 120
NOW = Now(1_700_000_000_000_000_000, 1_000_000_000_000)


@pytest.mark.parametrize("seed", HISTORIES)
def test_random_histories_are_what_the_documentation_says(seed: int) -> None:
    """Every answer is allowed, with restarts, kills and losses of power in between, also in the middle of a call."""
    run = judged_history(seed, STEPS)
    assert run.call_count > STEPS / 2
    assert run.trace is None, f"seed {seed}\n{run.trace}"


@pytest.mark.parametrize("seed", FIRST_MODEL_SEEDS)
def test_histories_of_the_first_model_are_judged_the_same(seed: int) -> None:
    """What the first model of a work queue allows the second one allows too, on the same calls."""
    with watching() as watch:
        run = WorkRun(seed)
        for _ in range(FIRST_MODEL_STEPS):
            run.step()
        run.queue.close()
    assert watch.disagreements == []
    assert watch.call_count > FIRST_MODEL_STEPS
    assert watch.lost_count == 0


def put_two(judge: Judge) -> None:
    """Put two messages."""
    for offset, payload in enumerate((b"a", b"b")):
        judge.told(Call("put", NOW, {"payload": payload}), Answer(offset))


def out_of_order(judge: Judge) -> None:
    """Take the second one first."""
    judge.told(Call("get", NOW), Answer([b"b"]))


def lost(judge: Judge) -> None:
    """Find nothing, though there are messages."""
    judge.told(Call("get", NOW), Answer(error="Empty"))


def twice(judge: Judge) -> None:
    """Get one again that is done."""
    judge.told(Call("get", NOW), Answer([b"a"]))
    judge.told(Call("get", NOW), Answer([b"a"]))


def uncounted(judge: Judge) -> None:
    """Get a delivery that says it was not handed out."""
    judge.told(Call("receive", NOW), Answer([Seen(0, b"a", 0, 1)]))


def stale(judge: Judge) -> None:
    """Acknowledge twice, and hear nothing."""
    judge.told(Call("receive", NOW), Answer([Seen(0, b"a", 1, 1)]))
    judge.told(Call("ack", NOW, {"receipts": [1]}), Answer())
    judge.told(Call("ack", NOW, {"receipts": [1]}), Answer())


def purged_in_hand(judge: Judge) -> None:
    """Purge one that is in hand."""
    judge.told(Call("receive", NOW), Answer([Seen(0, b"a", 1, 1)]))
    judge.told(Call("purge", NOW), Answer(2))


def left_by_a_purge(judge: Judge) -> None:
    """Purge one of two that are ready."""
    judge.told(Call("purge", NOW), Answer(1))


def back_after_a_purge(judge: Judge) -> None:
    """Get one again that is purged."""
    judge.told(Call("purge", NOW), Answer(2))
    judge.told(Call("get", NOW), Answer([b"a"]))


def purged_when_closed(judge: Judge) -> None:
    """Purge a queue that is closed, and hear nothing."""
    judge.told(Call("close", NOW), Answer())
    judge.told(Call("purge", NOW), Answer(2))


def above_a_bound(judge: Judge) -> None:
    """Put one more than a bound that was set."""
    judge.told(Call("configure", NOW, {"settings": {"maxsize": 2}}), Answer())
    judge.told(Call("put", NOW, {"payload": b"c"}), Answer(2))


def bound_forgotten(judge: Judge) -> None:
    """Put one more than that behind a loss of power."""
    judge.told(Call("configure", NOW, {"settings": {"maxsize": 2}}), Answer())
    judge.told(Call("power_loss", NOW), Answer())
    judge.told(Call("open", NOW, {"given": {}}), Answer())
    judge.told(Call("put", NOW, {"payload": b"c"}), Answer(2))


def bound_that_nobody_set(judge: Judge) -> None:
    """Find the queue full behind a change that was refused."""
    judge.told(Call("configure", NOW, {"settings": {"maxsize": 2}}), Answer(error="ConfigError"))
    judge.told(Call("put", NOW, {"payload": b"c"}), Answer(error="Full"))


def another_setting(judge: Judge) -> None:
    """Open with another value than the one that is set."""
    judge.told(Call("configure", NOW, {"settings": {"lease_seconds": 4}}), Answer())
    judge.told(Call("close", NOW), Answer())
    judge.told(Call("open", NOW, {"given": {"lease_seconds": 5}}), Answer())


SETTINGS = [above_a_bound, bound_forgotten, bound_that_nobody_set, another_setting]
PURGES = [purged_in_hand, left_by_a_purge, back_after_a_purge, purged_when_closed]


@pytest.mark.parametrize("wrong", [out_of_order, lost, twice, uncounted, stale, *PURGES, *SETTINGS])
def test_the_judge_refuses_what_the_documentation_does_not_allow(wrong: Callable[[Judge], None]) -> None:
    """A judge that allows everything would prove nothing."""
    judge = Judge()
    put_two(judge)
    with pytest.raises(DisagreementError):
        wrong(judge)
