"""A short run of ``python -m proof.successions``, and histories that its judge must not let pass."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from proof.successions.journal import CUT, Call
from proof.successions.judge import AGAIN, DOUBLED, FAILED, HALF, INVENTED, LOST, ORDER, TWO_HANDS, Judge
from proof.successions.reign import Plan, Reign

SEED = int(os.environ.get("HOLDFAST_TEST_SEED", "20240521"))
LEASE_SECONDS = 10.0


@pytest.mark.timeout(240)
def test_killed_and_stopped_owners_of_a_shared_queue_lose_double_and_wedge_nothing(tmp_path: Path) -> None:
    """Six processes put, take and commit over two queues, and one owns; most of the killed ones own a queue then."""
    tally = Reign(tmp_path, Plan(kills=10, seed=SEED, processes=6, queues=2, servers=1, lease_seconds=1.0)).run()
    assert tally.kills >= 10
    assert tally.over_two > 0
    assert tally.servers > 0
    assert tally.owners_killed > 0
    assert tally.messages_put > 100


def _put(journal: str, begin: float, end: float, *keys: str, first: int = 0) -> Call:
    return Call(journal, 1, "put", 0, begin, [f"0:{key}" for key in keys], end=end, outcome="", first=first)


def _take(journal: str, begin: float, end: float, *taken: tuple[str, int]) -> Call:
    return Call(journal, 2, "take", 0, begin, end=end, outcome="", taken=[(f"0:{key}", at, 1) for key, at in taken])


def _settle(journal: str, verb: str, begin: float, end: float, *keys: str, outcome: str = "") -> Call:
    receipts = [(journal, 2, f"0:{key}") for key in keys]
    return Call(journal, 3, verb, 0, begin, receipts=receipts, end=end, outcome=outcome)


def _commit(journal: str, begin: float, takes: str, puts: str, outcome: str) -> Call:
    receipts = [(journal, 2, f"0:{takes}")]
    return Call(journal, 4, "commit", 0, begin, [f"0:{puts}"], receipts, end=begin + 1, outcome=outcome, first=9)


def _over_two(journal: str, takes: str, puts: str, outcome: str, detail: str = "") -> Call:
    call = Call(journal, 6, "commit", 0, 4, [f"1:{puts}"], [(journal, 2, f"0:{takes}")], end=5, outcome=outcome)
    call.is_over_two, call.detail = True, detail
    return call


def _get(journal: str, begin: float, *keys: str, outcome: str = "", queue: int = 0) -> Call:
    taken = [(f"{queue}:{key}", -1, 0) for key in keys]
    return Call(journal, 5, "get", queue, begin, count=1, end=begin + 1, outcome=outcome, taken=taken)


GONE = "commit 0 was begun with another owner of queue 1, which is gone"
PUT = _put("1.0", 0, 1, "a")

SOUND = {
    "put, taken, acknowledged": [PUT, _take("2.0", 2, 3, ("a", 0)), _settle("2.0", "ack", 4, 5, "a")],
    "given back, and taken by another": [
        PUT, _take("2.0", 2, 3, ("a", 0)), _settle("2.0", "release", 4, 5, "a"), _get("3.0", 6, "a"),
    ],
    "its lease ended": [
        PUT, _take("2.0", 2, 3, ("a", 0)), _get("3.0", 13, "a"),
        _settle("2.0", "ack", 14, 15, "a", outcome="LeaseExpiredError"),
    ],
    "its process was killed": [PUT, _take("7.0", 2, 3, ("a", 0)), _get("3.0", 6, "a")],
    "a get was cut off": [PUT, _get("7.0", 2, outcome=CUT)],
    "a put was cut off, and is there": [_put("7.0", 0, 1, "a"), _get("3.0", 6, "a")],
    "a transaction was cut off, and happened": [
        PUT, _take("7.0", 2, 3, ("a", 0)), _commit("7.0", 4, "a", "b", CUT), _get("3.0", 6, "b"),
    ],
    "a transaction was cut off, and did not happen": [
        PUT, _take("7.0", 2, 3, ("a", 0)), _commit("7.0", 4, "a", "b", CUT), _get("3.0", 6, "a"),
    ],
    "a transaction over two queues": [
        PUT, _take("2.0", 2, 3, ("a", 0)), _over_two("2.0", "a", "b", ""), _get("3.0", 6, "b", queue=1),
    ],
    "the owner that was to decide one was killed": [
        PUT, _take("2.0", 2, 3, ("a", 0)), _over_two("2.0", "a", "b", "TransactionStateError", GONE),
        _get("3.0", 6, "a"),
    ],
}  # fmt: skip

BROKEN = {
    LOST: [PUT],
    DOUBLED: [PUT, _take("2.0", 2, 3, ("a", 0), ("a", 1)), _settle("2.0", "ack", 4, 5, "a")],
    AGAIN: [PUT, _take("2.0", 2, 3, ("a", 0)), _settle("2.0", "ack", 4, 5, "a"), _take("3.0", 6, 7, ("a", 0))],
    TWO_HANDS: [PUT, _take("2.0", 2, 3, ("a", 0)), _take("3.0", 4, 5, ("a", 0)), _settle("3.0", "ack", 6, 7, "a")],
    HALF: [
        PUT, _take("7.0", 2, 3, ("a", 0)), _commit("7.0", 4, "a", "b", CUT), _get("3.0", 6, "b"), _get("4.0", 8, "a"),
    ],
    ORDER: [PUT, _put("2.0", 2, 3, "b"), _get("3.0", 4, "a"), _get("4.0", 6, "b")],
    FAILED: [
        PUT, _take("2.0", 2, 3, ("a", 0)), _settle("2.0", "nack", 4, 5, "a", outcome="LeaseExpiredError"),
        _get("3.0", 14, "a"),
    ],
    INVENTED: [_get("3.0", 6, "a")],
}  # fmt: skip

BROKEN_OVER_TWO = {
    LOST: [PUT, _take("2.0", 2, 3, ("a", 0)), _over_two("2.0", "a", "b", ""), _get("7.0", 5, outcome=CUT)],
    HALF: [
        PUT, _take("7.0", 2, 3, ("a", 0)), _over_two("7.0", "a", "b", CUT), _get("3.0", 6, "b", queue=1),
        _get("4.0", 8, "a"),
    ],
    FAILED: [
        PUT, _take("2.0", 2, 3, ("a", 0)), _over_two("2.0", "a", "b", "TransactionStateError"), _get("3.0", 8, "a"),
    ],
}  # fmt: skip


def _judged(calls: list[Call]) -> set[str]:
    judge = Judge(calls, {7: 5.0}, LEASE_SECONDS)
    judge.judge()
    return {each.kind for each in judge.violations}


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_history_passes(name: str) -> None:
    """What happens at kills and at the ends of leases breaks no promise."""
    assert _judged(SOUND[name]) == set()


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_promise_is_named(kind: str) -> None:
    """Each kind has a history that is sound but for this."""
    assert _judged(BROKEN[kind]) == {kind}


@pytest.mark.parametrize("kind", BROKEN_OVER_TWO)
def test_a_broken_promise_of_a_commit_over_two_queues_is_named(kind: str) -> None:
    """Half of it, in either queue; a get in flight excuses what its own queue misses only."""
    assert _judged(BROKEN_OVER_TWO[kind]) == {kind}
