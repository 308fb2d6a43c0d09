"""One storage call of a recovery fails: the opening says so, or does without; the next one shows what the first would.

It begins from what a kill leaves behind each change of an operation, and from what a loss of power does that takes all
it can. Equal disks are recovered once. Where the same line of the source is reached by the same way, a fault does the
same: so each place is tried with each fault on a few disks, and not on all of them.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from holdfast import Empty, PoisonedError
from proof.faults.expected import Expected
from proof.faults.in_operation import Ground, attempt
from proof.faults.kinds import FAULTS, Fault
from proof.faults.views import Key, View, Viewer, ViolationError, differences, fingerprint, look, other_process
from proof.faults.world import World, begin_life
from support.storages.simulated_storage import SimulatedStorage

PLACE_DISKS_MAX = 3
"""On so many disks each fault strikes in each place."""

Place = tuple[str, ...]


@dataclass(frozen=True)
class Left:
    """A disk that a crash has left in the middle of an operation."""

    ground: Ground
    disk: SimulatedStorage
    is_killed: bool
    changes_done: int

    def world(self) -> World:
        """Return a world with a copy of it."""
        begin_life("recovery")
        return World(self.disk.crash_keeping_all(), self.ground.policy, self.ground.paths)

    def expected(self) -> Expected:
        """Return what the operation may have done by then."""
        before, after = self.ground.before, self.ground.after
        either = self.ground.counted()
        for key in self.ground.operation.leaves:
            either[key] = {before.get(key), after.get(key)}
        expected = Expected((before, after), either)
        return expected.without(before, after) if self.ground.operation.may_be_in_part else expected

    def unopened(self) -> dict[Key, set[str | None]]:
        """Return what a group may say that nothing has opened since: till then its last changes may be lost."""
        before, after, base = self.ground.before, self.ground.after, self.ground.base
        groups = {key for key in before.keys() | after.keys() if key[1] == "group" and key[2] != "default"}
        return {key: {before.get(key), after.get(key), base.get(key)} for key in groups}

    def __str__(self) -> str:
        how = "killed" if self.is_killed else "power lost"
        return f"{self.ground.operation}, {self.ground.policy}, {how} behind change {self.changes_done}"


def lefts(ground: Ground) -> Iterator[Left]:
    """Yield what crashes leave of an operation."""
    for number, state in enumerate(ground.states):
        yield Left(ground, state, True, number)
        yield Left(ground, state.crash_dropping_unsynced(), False, number)


@dataclass(frozen=True)
class RecoveryCase:
    """One call of a recovery that fails."""

    left: Left
    fault: Fault
    call: int

    def __str__(self) -> str:
        return f"{self.left}, {self.fault} at call {self.call} of the recovery"


@dataclass
class Recoveries:
    """Goes through what crashes have left, and lets the calls of its recovery fail.

    Attributes
    ----------
    disk_count : int
        How many different disks were recovered.
    places : Counter
        How often each fault has struck in each place.
    """

    viewer: Viewer
    place_disks_max: int = PLACE_DISKS_MAX
    disk_count: int = 0
    places: Counter[tuple[Place, Fault]] = field(default_factory=Counter)
    _known: set[bytes] = field(default_factory=set)

    def cases(self, left: Left) -> list[RecoveryCase]:
        """Recover a disk where nothing fails, judge that, and return the cases that are worth trying on it."""
        key = fingerprint(left.disk, (str(left.ground.policy), str(left.ground.paths)))
        if key in self._known:
            return []
        self._known.add(key)
        self.disk_count += 1
        calls = self._recover(left)
        chosen: list[RecoveryCase] = []
        for fault in FAULTS:
            number = 0
            for verb, place in calls:
                if verb not in fault.verbs:
                    continue
                number += 1
                self.places[place, fault] += 1
                if self.places[place, fault] <= self.place_disks_max:
                    chosen.append(RecoveryCase(left, fault, number))
        return chosen

    def _recover(self, left: Left) -> list[tuple[str, Place]]:
        """Recover a disk; return the calls, each with its place. What is shown has to be on the disk."""
        calls: list[tuple[str, Place]] = []
        world = left.world()
        world.storage.before_verb = lambda verb, path: calls.append((verb, _place()))
        with other_process():
            try:
                world.open_all()
                world.storage.before_verb = None
                seen = look(world)
                powerless = world.storage.crash_dropping_unsynced()
            finally:
                world.close()
        kept = self.viewer.view(powerless, left.ground.policy, left.ground.paths)
        Expected((seen,), left.unopened()).check(kept, "shown, and not on the disk")
        if left.is_killed:
            left.expected().check(seen, "killed")
        return calls

    def run(self, case: RecoveryCase) -> None:
        """Run one case; raises ViolationError, or whatever else came out that is not ours."""
        left, ground, viewer = case.left, case.left.ground, self.viewer
        expected = viewer.view(left.disk, ground.policy, ground.paths)
        world = left.world()
        undone: View = expected
        with other_process():
            try:
                plan = world.storage.faults = case.fault.plan(case.call)
                error = attempt(world.open_all, case.fault)
                world.storage.faults = None
                if not plan.fired_count:
                    raise ViolationError("the fault did not strike: the recovery is not the same each time")
                powerless = world.storage.crash_dropping_unsynced()
                again = world.storage
                if error is None:
                    undone = look(world, is_settling=False)
                    for queue in world.queues.values():
                        queue.prepared()  # does what was decided, and could not be done in opening
                    seen = look(world)
                    if seen != expected:
                        again = world.storage.crash_keeping_all()
                        if not refuses(world):
                            same(seen, expected, "opened")
            finally:
                world.storage.faults = None
                world.close()
        if world.storage._locks:
            raise ViolationError("a lock is left behind")
        same(viewer.view(again, ground.policy, ground.paths), expected, "opened again")
        found = viewer.view(powerless, ground.policy, ground.paths)
        if (error is None or not left.is_killed) and not _is_undone(found, undone):
            Expected((expected,), left.unopened()).check(found, "power lost behind it")


def _is_undone(found: View, undone: View) -> bool:
    """Whether a loss of power leaves what an opening has shown that could not do what was decided.

    Of what is in doubt the puts may be there again: a file that was removed, and whose directory was not synced.
    """
    return {key: "in doubt" if key[1] == "prepared" else state for key, state in found.items()} == undone


def refuses(world: World) -> bool:
    """Whether a side says that it has to be opened again, which then does the rest of what was decided.

    So it is where a sync has failed in opening, or a write and taking it back: docs/durability.md, "A failed sync".
    """
    for queue in world.queues.values():
        for call in (partial(queue.put, b"more"), partial(queue.receive, timeout=0)):
            try:
                call()
            except Empty:
                pass
            except PoisonedError:
                return True
    return False


def _place() -> Place:
    """Return where a storage call comes from: the lines that are under way."""
    lines: list[str] = []
    frame = sys._getframe(2)
    while frame is not None and "holdfast" not in frame.f_code.co_filename:
        frame = frame.f_back  # type: ignore[assignment]
    while frame is not None and "holdfast" in frame.f_code.co_filename:
        lines.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
        frame = frame.f_back  # type: ignore[assignment]
    return tuple(lines)


def same(found: View, expected: View, what: str) -> None:
    """Raise ViolationError where two views differ."""
    if found != expected:
        raise ViolationError(f"{what}: {', '.join(differences(found, expected)[:6])}")
