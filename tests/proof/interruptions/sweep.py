"""Interrupts an operation at its points, one after the other, each in a world of its own."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

from holdfast import FlushPolicy
from proof.interruptions.operations import Operation, World, made
from proof.interruptions.verdict import judge
from support.processes.interruptions import HangError, Kind, Point, guarded, interrupted, points_of, without_hanging

GIVE_UP_SECONDS = 1.0


@dataclass
class Swept:
    """What a sweep has covered, and what it has found.

    Attributes
    ----------
    judged : Counter of Kind
        Points that were interrupted and judged.
    violations : list of str
        What was wrong, and at which point.
    missed_count : int
        Points that were not come to, because a background thread had done something first.
    """

    name: str
    judged: Counter[Kind] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    missed_count: int = 0


def find_points(operation: Operation, policy: FlushPolicy) -> list[Point]:
    """Return all points of an operation."""
    world = made(operation, policy)
    points = points_of(lambda: operation.call(world))
    world.close()
    return points


def sweep(operation: Operation, policy: FlushPolicy, points: list[Point]) -> Swept:
    """Interrupt an operation at each of these points."""
    swept = Swept(f"{operation.name}, {policy}")
    for point in points:
        world = made(operation, policy)
        try:
            with guarded():
                if _is_judged(operation, world, point):
                    swept.judged[point.kind] += 1
                else:
                    swept.missed_count += 1
        except (Exception, HangError) as failure:
            swept.judged[point.kind] += 1
            swept.violations.append(f"{point}: {type(failure).__name__}: {failure}")
            with suppress(Exception):
                without_hanging(world.close, GIVE_UP_SECONDS)
    return swept


def _is_judged(operation: Operation, world: World, point: Point) -> bool:
    """Interrupt an operation at a point and judge it; False where a background thread has done something first."""
    error = interrupted(lambda: operation.call(world), point)
    if error is None:
        world.settle_first()
        world.close()
        return False
    judge(operation, world)
    return True


def promised(points: list[Point]) -> list[Point]:
    """Return the points at which an interruption can be."""
    return [each for each in points if each.kind is not Kind.ELSEWHERE]
