"""Which workloads are explored, and how thoroughly: all short ones, then longer ones that are drawn.

A *task* is a piece of the search that any process can do alone, the same each time: all workloads that begin in one
way, or a number of drawn ones. So a search can be spread over processes, and broken off and taken up again.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from proof.crash_states.explorer import Explorer, Tally
from proof.crash_states.life import Life, Place
from proof.crash_states.opening import POLICIES, draw_from, no_watcher, same_identifiers
from proof.crash_states.workloads import BEGINNINGS, EXHAUSTIVE, RANDOM, Workload


@dataclass(frozen=True)
class Care:
    """How closely a workload is looked at.

    Attributes
    ----------
    samples : int or None
        As for :func:`proof.crash_states.crashes.crashes`.
    instants : int or None
        At how many instants it is crashed, where it has more: its last one is among them; None: at all.
    """

    samples: int | None = None
    instants: int | None = None


CARE_BY_LENGTH = (Care(), Care(), Care(8), Care(2), Care(0, 6))
"""By the number of actions, the last for longer ones too; what comes before the last action is another workload."""

BRIEF = (Care(0),)
"""One crash at each instant."""

PAST_CARE = Care(2)
DRAWN_CARE = Care(1)

DRAWN_LENGTHS = (5, 12)

FIRST_ACTIONS = 2
"""So many actions of a workload are given by its task."""


@dataclass(frozen=True)
class Task:
    """A piece of the search.

    Attributes
    ----------
    beginning, policy : str
        Which life, and under which flush policy.
    first : tuple of str
        The actions with which its workloads begin.
    depth : int
        How many actions they have at the most; 0: that one alone.
    seed : int or None
        Of drawn workloads, which have no first actions.
    count : int
        How many of them are drawn.
    """

    beginning: str
    policy: str
    first: Workload = ()
    depth: int = 0
    seed: int | None = None
    count: int = 20

    def __str__(self) -> str:
        if self.seed is not None:
            return f"{self.beginning}, {self.policy}: {self.count} of seed {self.seed}"
        return f"{self.beginning}, {self.policy}: {' '.join(self.first)}, up to {self.depth} actions"


class FoundError(AssertionError):
    """A state that recovery answers wrongly; says how to come there again."""


def exhaustive_tasks(depth: int) -> Iterator[Task]:
    """Yield what explores all workloads of up to so many actions."""
    for beginning in BEGINNINGS:
        for policy in POLICIES:
            yield Task(beginning, policy)
            for first in EXHAUSTIVE if depth else ():
                yield Task(beginning, policy, (first,), depth=1)
                for second in EXHAUSTIVE if depth > 1 else ():
                    yield Task(beginning, policy, (first, second), depth=depth)


def drawn_tasks(seed: int) -> Iterator[Task]:
    """Yield what explores drawn workloads, for ever."""
    while True:
        for beginning in BEGINNINGS:
            for policy in POLICIES:
                yield Task(beginning, policy, seed=seed)
        seed += 1


def run(task: Task, care: Sequence[Care] = CARE_BY_LENGTH) -> Tally:
    """Do a piece of the search; raise FoundError where a state is answered wrongly."""
    search = Search(task, care)
    with _quiet():
        search.begin()
        if task.seed is None:
            search.all_behind(task.first)
        else:
            search.drawn(task.seed)
    return search.tally


@contextmanager
def _quiet() -> Iterator[None]:
    """No thread, no chance, and no word of what each recovery has found."""
    logger = logging.getLogger("holdfast")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with same_identifiers(), no_watcher():
            yield
    finally:
        logger.setLevel(level)


class Search:
    """One task, and the care for workloads by their length."""

    def __init__(self, task: Task, care: Sequence[Care] = CARE_BY_LENGTH) -> None:
        self.task = task
        self._care = care
        self.tally = Tally()
        self._explorer = Explorer(POLICIES[task.policy], self.tally)
        self._past = Life(POLICIES[task.policy])

    def begin(self) -> None:
        """Live the past of all lives of the task."""
        draw_from("the past")
        BEGINNINGS[self.task.beginning](self._past)

    def all_behind(self, workload: Workload) -> None:
        """Explore the last action of a workload, and then all that may follow it; without any, how it begins."""
        if not workload:
            self._explore(self._past, ("the past",), (0, -1), PAST_CARE)
        life = self._begin()
        try:
            place = life.place() if workload else (0, -1)
            for name in workload:
                if not EXHAUSTIVE[name].may(life):
                    return
                place = life.place()
                EXHAUSTIVE[name].do(life)
            self._explore(life, workload, place, self._care[min(len(workload), len(self._care) - 1)])
            following = [name for name, action in EXHAUSTIVE.items() if action.may(life)]
        finally:
            life.end()
        if len(workload) < self.task.depth:
            for name in following:
                self.all_behind((*workload, name))

    def alone(self, workload: Workload) -> None:
        """Explore one workload from its beginning, thoroughly."""
        with _quiet():
            self.begin()
            life = self._begin()
            place = life.place()
            try:
                for name in workload:
                    RANDOM[name].do(life)
                self._explore(life, workload, place, Care())
            finally:
                life.end()

    def drawn(self, seed: int) -> None:
        """Explore drawn workloads, each from its beginning."""
        rng = random.Random(f"{seed} {self.task.policy} {self.task.beginning}")
        for _ in range(self.task.count):
            life = self._begin()
            place: Place = life.place()
            workload: list[str] = []
            try:
                for _ in range(rng.randint(*DRAWN_LENGTHS)):
                    name = rng.choice([name for name, action in RANDOM.items() if action.may(life)])
                    workload.append(name)
                    RANDOM[name].do(life)
                self._explore(life, tuple(workload), place, DRAWN_CARE)
            except FoundError:
                raise
            except BaseException as error:
                error.add_note(f"doing {' '.join(workload)}; {self.task}")
                raise
            finally:
                life.end()

    def _begin(self) -> Life:
        """Return a life that has just begun."""
        draw_from("life")
        life = self._past.twin()
        life.open()
        return life

    def _explore(self, life: Life, workload: Workload, place: Place, care: Care) -> None:
        self.tally.workloads += 1
        rng = random.Random(f"{self.task.policy} {self.task.beginning} {workload}")
        try:
            self._explorer.explore(life, place, rng, samples=care.samples, instants=care.instants)
        except Exception as error:
            where = "; ".join(getattr(error, "__notes__", ()))
            again = f"--beginning {self.task.beginning} --policy {self.task.policy} --workload '{' '.join(workload)}'"
            raise FoundError(f"{type(error).__name__}: {error}\n{where}\nagain: {again}") from error
