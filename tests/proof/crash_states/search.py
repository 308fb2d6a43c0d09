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

from proof.crash_states.counting import Tally
from proof.crash_states.explorer import Explorer
from proof.crash_states.life import Life
from proof.crash_states.lives.books import Place
from proof.crash_states.opening import FIRST_SESSION, POLICIES, draw_from, no_threads, same_identifiers
from proof.crash_states.workloads import (
    ALL,
    BEGINNINGS,
    BEGINNINGS_OF,
    DEPTHS,
    FAMILIES,
    FAMILY_DEPTH,
    OF_SHARED,
    RACES,
    Workload,
    action_named,
)
from support.builders.small_steps import small_steps
from support.owners.machine_link import machine_links


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

    def options(self) -> str:
        """Return how the command is told."""
        given = {"samples": self.samples, "instants": self.instants}
        return "".join(f" --{name} {value}" for name, value in given.items() if value is not None)


CARE_BY_LENGTH = (Care(), Care(), Care(8), Care(2), Care(0, 4))
"""By the number of actions, the last for longer ones too; what comes before the last action is another workload."""

FAMILY_CARE = (Care(2), Care(2), Care(0, 8), Care(0, 4))
"""The same where there are more actions: of families beside the core."""

BRIEF = (Care(0), Care(0), Care(0, 8))
"""One crash at each instant; of two actions, at up to eight of them."""

BRIEF_OF_FAMILIES = (Care(1), Care(1, 4), Care(1, 4))
"""A kill, a loss of all and another crash at each of up to four instants."""

BRIEF_OF_DRAWN = (Care(1, 20),)
"""The same at each of up to twenty instants: a drawn workload has some two hundred."""

PAST_CARE = Care(2)
DRAWN_CARE = (Care(1),)

RACE_CARE = Care(0, 10)

DRAWN_LENGTHS = (5, 12)

DRAWN_SHARE = 0.4
"""Of the actions, how many a drawn workload has to do with, so that some come together often; beside these always:"""

ALWAYS = ("put_many", "get", "kill")

RACE_CALLS_MAX = 1000
"""No action makes so many storage calls."""


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
    family : str
        The actions there are.
    race : str
        What the second group is made or deleted beside, at each of its storage calls in turn; empty: nothing.
    """

    beginning: str
    policy: str
    first: Workload = ()
    depth: int = 0
    seed: int | None = None
    count: int = 5
    family: str = "core"
    race: str = ""

    def __str__(self) -> str:
        if self.race:
            return f"{self.beginning}, {self.policy}: {self.race} at each call"
        if self.seed is not None:
            return f"{self.beginning}, {self.policy}: {self.count} of seed {self.seed}"
        return f"{self.beginning}, {self.policy}, {self.family}: {' '.join(self.first)}, up to {self.depth} actions"


class FoundError(AssertionError):
    """A state that recovery answers wrongly; says how to come there again."""


def exhaustive_tasks(depth: int) -> Iterator[Task]:
    """Yield what explores all workloads of up to so many actions, and all races."""
    for family, alphabet in FAMILIES.items():
        for beginning in BEGINNINGS_OF[family]:
            deepest = min(depth, DEPTHS.get((family, beginning), FAMILY_DEPTH)) if family != "core" else depth
            for policy in POLICIES:
                if family == "core":
                    yield Task(beginning, policy)
                for first in alphabet if deepest else ():
                    yield Task(beginning, policy, (first,), depth=deepest, family=family)
    yield from race_tasks() if depth else ()


def race_tasks() -> Iterator[Task]:
    """Yield what explores all races."""
    for policy in POLICIES:
        for call in RACES:
            yield Task("used", policy, race=f"{call}/create")
            yield Task("shared", policy, race=f"{call}/delete")
        yield Task("sparse", policy, race="compact/create")
        yield Task("merged", policy, race="compact/delete")


def drawn_tasks(seed: int) -> Iterator[Task]:
    """Yield what explores drawn workloads, for ever."""
    while True:
        for beginning in BEGINNINGS:
            for policy in POLICIES:
                yield Task(beginning, policy, seed=seed)
        seed += 1


def run(task: Task, care: Sequence[Care] | None = None) -> Tally:
    """Do a piece of the search; raise FoundError where a state is answered wrongly."""
    usual = FAMILY_CARE if task.family != "core" else CARE_BY_LENGTH if task.seed is None else DRAWN_CARE
    search = Search(task, care or usual)
    with _quiet():
        search.begin()
        if task.race:
            search.race(task.race)
        elif task.seed is None:
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
        with same_identifiers(), no_threads(), small_steps():
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
        actions = FAMILIES[self.task.family]
        if not workload:
            self._explore(self._past, ("the past",), (0, -1), PAST_CARE, 0)
        care = self._care[min(len(workload), len(self._care) - 1)]
        since = max(0, len(workload) - 1)
        with self._answering(workload, since, care), self._living() as life:
            place = (0, -1)
            for number, name in enumerate(workload, 1):
                if not actions[name].may(life):
                    return
                if number == len(workload):
                    place = life.mark()
                actions[name].do(life)
            following = [name for name, action in actions.items() if action.may(life)]
        self._explore(life, workload, place, care, since)
        if len(workload) < self.task.depth:
            for name in following:
                self.all_behind((*workload, name))

    def alone(self, workload: Workload, since: int, care: Care) -> None:
        """Explore one workload behind so many of its actions."""
        with _quiet():
            self.begin()
            with self._answering(workload, since, care), self._living() as life:
                place = (0, -1)
                for number, name in enumerate(workload):
                    if number == since:
                        place = life.mark()
                    action_named(name).do(life)
            self._explore(life, workload, place, care, since)

    def race(self, race: str) -> None:
        """Explore a race at each storage call of what it is a race with."""
        for at in range(1, RACE_CALLS_MAX):
            name = f"{race}@{at}"
            with self._answering((name,), 0, RACE_CARE), self._living() as life:
                action = action_named(name)
                if not action.may(life):
                    return
                place = life.mark()
                count = life.race_count
                action.do(life)
                if life.race_count == count:
                    return
            self._explore(life, (name,), place, RACE_CARE, 0)

    def drawn(self, seed: int) -> None:
        """Explore drawn workloads, each from its beginning."""
        care = self._care[-1]
        rng = random.Random(f"{seed} {self.task.policy} {self.task.beginning}")
        for _ in range(self.task.count):
            workload: list[str] = []
            with self._answering(workload, 0, care), self._living() as life:
                place = life.mark()
                known = FAMILIES["giving"] if self.task.beginning in OF_SHARED else ALL
                some = [name for name in known if name in ALWAYS or rng.random() < DRAWN_SHARE]
                for _ in range(rng.randint(*DRAWN_LENGTHS)):
                    name = rng.choice([name for name in some if ALL[name].may(life)])
                    workload.append(name)
                    ALL[name].do(life)
            self._explore(life, tuple(workload), place, care, 0)

    @contextmanager
    def _living(self) -> Iterator[Life]:
        """Begin a life, and end it: while its queues are open, they answer what others ask in this process."""
        draw_from("life")
        life = self._past.twin()
        with machine_links(first=FIRST_SESSION) as life.machines:
            try:
                life.open()
                yield life
            finally:
                life.end()

    def _explore(self, life: Life, workload: Workload, place: Place, care: Care, since: int) -> None:
        self.tally.workloads += 1
        rng = random.Random(f"{self.task.policy} {self.task.beginning} {workload}")
        with self._answering(workload, since, care):
            self._explorer.explore(life, place, rng, samples=care.samples, instants=care.instants)

    @contextmanager
    def _answering(self, workload: Sequence[str], since: int, care: Care) -> Iterator[None]:
        """Say how to come again to whatever is answered wrongly: in the life already, or by a recovery."""
        try:
            yield
        except Exception as error:
            where = "; ".join(getattr(error, "__notes__", ()))
            again = (
                f"--beginning {self.task.beginning} --policy {self.task.policy} --workload '{' '.join(workload)}' "
                f"--since {since}{care.options()}"
            )
            raise FoundError(f"{type(error).__name__}: {error}\n{where}\nagain: {again}") from error
