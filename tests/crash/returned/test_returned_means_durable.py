"""Returned means durable: every public verb, in every mode that has it, under every flush policy.

The power is lost behind the call: all that was not synced goes, or a part of it, twenty times by chance. What the call
promised is there, where ``docs/durability.md`` says so; else all of it is there or nothing. What was there before is
there in any case. A kill takes nothing, and behind ``flush`` and ``close`` no policy loses anything.
"""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

import holdfast
from holdfast import Delivery, DeliveryBatch, PersistentQueue, QueuesTransaction, Transaction
from holdfast.queue.inspect.dead_letters import DeadLetters
from holdfast.queue.inspect.groups import Groups
from holdfast.queue.prepared.joint_commits import JointCommits
from holdfast.queue.prepared.reservations import Reservations
from support.workloads.promised_verbs import FIGURES, INSIDE, ROWS
from support.workloads.promises import BY_POLICY, NOT_SYNCED, Row, World, check, check_facts, losses

CLASSES = (
    PersistentQueue,
    Delivery,
    DeliveryBatch,
    Transaction,
    QueuesTransaction,
    DeadLetters,
    Groups,
    Reservations,
    JointCommits,
)


def public_verbs() -> set[str]:
    """Return all that can be called of what applications hold in hand, as ``Class.verb``."""
    names = {
        f"{each.__name__}.{name}"
        for each in CLASSES
        for name, value in inspect.getmembers(each, inspect.isfunction)
        if not name.startswith("_") or name in ("__exit__", "__iter__", "__len__")
    }
    return names - {"DeliveryBatch.__len__", "DeliveryBatch.__iter__"} | {"holdfast.transaction"}


def is_there(verb: str) -> bool:
    """Whether the package has it."""
    owner, name = verb.split(".")
    return hasattr(next((each for each in CLASSES if each.__name__ == owner), holdfast), name)


def test_every_public_verb_is_in_the_table() -> None:
    """Also those that will be added; and the table has none that is gone."""
    in_table = {verb for row in ROWS for verb in row.verbs}
    assert not public_verbs() - in_table - INSIDE - FIGURES
    assert not [verb for verb in in_table | INSIDE | FIGURES if not is_there(verb)]
    assert len({(row.name, row.verbs) for row in ROWS}) == len(ROWS)


CASES = [
    pytest.param(row, mode, policy, id=f"{row.name}-{mode}-{policy}")
    for row in ROWS
    for mode in row.modes
    for policy in row.policies
]


@pytest.mark.parametrize(("row", "mode", "policy"), CASES)
def test_what_a_call_promised_by_returning_is_there(row: Row, mode: str, policy: str, tmp_path: Path) -> None:
    """Whatever a loss of power takes of what was not synced; and a kill takes nothing."""
    world = World(policy, mode, tmp_path, row.options)
    before = row.view(world.start)
    try:
        facts = row.call(world)
        killed, lost = world.storage.crash_keeping_all(), list(losses(world.storage))
    finally:
        world.close()
    check(row.view(killed), before, facts, promised=True, when="killed")
    for number, left in enumerate(lost):
        check(row.view(left), before, facts, promised=row.is_promised(policy), when=f"loss {number}")
    for number, left in enumerate(losses(world.storage, drawn_count=2)):
        check(row.view(left), before, facts, promised=row.survives != NOT_SYNCED, when=f"closed, loss {number}")


BY_COUNT = [row for row in ROWS if row.survives == BY_POLICY and "exclusive" in row.modes]


@pytest.mark.parametrize("policy", ["every", "never"])
@pytest.mark.parametrize("row", BY_COUNT, ids=lambda row: row.name)
def test_what_a_policy_leaves_for_later_is_there_once_enough_calls_or_a_flush_came(
    row: Row, policy: str, tmp_path: Path
) -> None:
    """The policy that syncs every second commit has synced it behind two more, in either file."""
    world = World(policy, "exclusive", tmp_path, row.options)
    try:
        facts = row.call(world)
        if policy == "every":
            world.queue.put_many([b"later"])
            world.queue.put(b"later still")
            for number in range(2):
                world.queue.dead.discard(number)
        else:
            world.queue.flush()
        lost = list(losses(world.storage, drawn_count=4))
    finally:
        world.close()
    facts = {key: allowed for key, allowed in facts.items() if not str(key[1]).startswith("b'dead")}
    for number, left in enumerate(lost):
        check_facts(row.view(left), facts, f"loss {number}")
