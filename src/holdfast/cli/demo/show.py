"""The demo from its one end to the other: starts the processes, has them killed, and judges what they have noted."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from holdfast import PersistentQueue, verify
from holdfast.cli.demo.evidence import Evidence
from holdfast.cli.demo.orders import digest, order
from holdfast.cli.demo.victim import Victim, plan_kills, watch

ORDERS_PER_SECOND = 50
ORDERS_MIN = 20
SECONDS_PER_KILL = 2
"""Of each process: often enough to be watched, and seldom enough for work between two kills."""

DELAY_SECONDS_MAX = 0.03
"""Longest wait between an answer that makes a kill due and the kill: it may hit any step of the work."""

QUEUE = "orders"

ROLES = ("producer", "consumer 1", "consumer 2")
"""The processes that share it. Whichever opens it first is the owner, until it is killed."""


@dataclass(frozen=True)
class Plan:
    """What one demo does.

    Attributes
    ----------
    seed : int
        Decides when to kill.
    order_count : int
        How many orders go through the queue.
    kill_count : int
        How often each process is killed.
    """

    seed: int
    order_count: int
    kill_count: int


def plan_for(seconds: float, seed: int | None) -> Plan:
    """Return a plan that takes about so many seconds, with a seed of its own if there is none."""
    seed = random.randrange(10**6) if seed is None else seed
    return Plan(seed, max(ORDERS_MIN, round(seconds * ORDERS_PER_SECOND)), max(1, round(seconds / SECONDS_PER_KILL)))


def run(directory: Path, plan: Plan, say: Callable[[str], None], check: Callable[[], None]) -> Evidence:
    """Let all processes work until every order came out; return what they have noted, and what is in the files.

    Raises
    ------
    ChildFailedError
        A process ended by itself before its work was done, or hangs.
    """
    evidence = Evidence([digest(order(number)) for number in range(plan.order_count)])
    queue = directory / QUEUE
    dice = random.Random(plan.seed)

    def victim(role: str) -> Victim:
        journal = directory / f"{role.replace(' ', '-')}.journal"
        module = f"holdfast.cli.demo.{role.partition(' ')[0]}"
        program = ["-P", "-m", module, queue, journal, plan.order_count, os.getpid()]
        kills = plan_kills(dice, plan.kill_count, plan.order_count, DELAY_SECONDS_MAX)
        return Victim(role, program, journal, kills, evidence.take)

    with ExitStack() as started:
        victims = [started.enter_context(closing(victim(role))) for role in ROLES]
        watch(
            victims,
            lambda: f"{len(evidence.put):6,} put, {len(evidence.acked):6,} acknowledged",
            say=say,
            check=check,
        )
        evidence.kill_counts = {each.role: each.kill_count for each in victims}
        evidence.owner_kill_count = sum(each.owner_kill_count for each in victims)
    with PersistentQueue(queue, mode="read_only") as look:
        evidence.left_count = look.stats().depth
    evidence.damage_count = len(verify(queue).damage)
    return evidence
