"""Kills owners and others, stops them for a while, and replaces who was killed; watches that all others get on."""

from __future__ import annotations

import os
import random
import signal
import statistics
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from holdfast import verify
from holdfast.persistence.filesystem.storage import OsStorage
from holdfast.persistence.ownership.owner_lock import read_owner_note
from proof.successions.journal import Call, read
from proof.successions.judge import FAILED, Judge, Violation
from proof.successions.worker import Job, journals_of, queue_of, stacks_of
from support.processes.children import Child

WEDGED, DAMAGED = "wedged", "damaged"

PAUSE_SECONDS = 0.15
OWNER_SHARE, STOP_SHARE, MAY_NOT_OWN_SHARE, FORKED_SHARE = 0.5, 0.2, 0.2, 0.2
STOPS_SECONDS = (0.02, 0.3, 1.0, 3.0, 6.0)
"""For how long a process is stopped; some are longer than leases and hellos."""

STOPS_WEIGHTS = (30, 30, 20, 15, 5)
EACH_GETS_ON = 5
"""After so many kills all have to get on."""

_POLL_SECONDS = 0.005


class BrokenError(AssertionError):
    """A run has found broken promises."""

    def __init__(self, seed: int, violations: list[Violation]) -> None:
        counts = Counter(each.kind for each in violations)
        shown = "\n".join(map(str, violations[:10]))
        super().__init__(f"seed {seed}: {dict(counts)}\n{shown}")
        self.kinds = set(counts)


@dataclass(frozen=True)
class Plan:
    """How a run goes.

    Attributes
    ----------
    kills : int
        How many processes are killed.
    seed : int
        Of all choices.
    processes, queues : int
        How many there are.
    servers : int
        How many processes only own, beside those.
    lease_seconds : float
        Of each group.
    wedged_seconds : float
        Who makes no call for so long, though no process is stopped, is wedged.
    """

    kills: int
    seed: int
    processes: int = 8
    queues: int = 1
    servers: int = 0
    lease_seconds: float = 2.0
    wedged_seconds: float = 30.0


@dataclass
class Tally:
    """What a run has covered."""

    kills: int = 0
    owners_killed: int = 0
    stops: int = 0
    owners_stopped: int = 0
    forked: int = 0
    servers: int = 0
    over_two: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    messages_put: int = 0
    excused: int = 0
    successions_seconds: list[float] = field(default_factory=list)

    def covered(self) -> dict[str, int | str]:
        """Return its figures."""
        median = statistics.median(self.successions_seconds) if self.successions_seconds else 0.0
        longest = max(self.successions_seconds, default=0.0)
        return {
            "kills": self.kills,
            "of them of owners": self.owners_killed,
            "stops": self.stops,
            "of these of owners": self.owners_stopped,
            "calls returned": sum(self.calls.values()),
            "processes that were forked": self.forked,
            "processes that only owned": self.servers,
            "transactions committed": self.calls["commit"],
            "of them over two queues": self.over_two,
            "messages put": self.messages_put,
            "messages explained by a get in flight": self.excused,
            "first put after an owner was killed, median": f"{1000 * median:.0f} ms, longest {longest:.1f} s",
        }


@dataclass
class Worker:
    """A process that works."""

    number: int
    child: Child
    job: Job
    stopped_until: float | None = None

    def gets_on(self, before: Mapping[str, int], sizes: Mapping[str, int]) -> bool:
        """Whether it has threads, and the journal of each of them has grown."""
        mine = [name for name in sizes if name.startswith(f"{self.number}.") and "main" not in name]
        return bool(mine) and all(sizes[name] > before.get(name, 0) for name in mine)


class Reign:
    """One run.

    Parameters
    ----------
    place : Path
        An empty directory.
    plan : Plan
        How it goes.
    """

    def __init__(self, place: Path, plan: Plan) -> None:
        self._place = place
        self._plan = plan
        self._choice = random.Random(plan.seed)
        self._workers: list[Worker] = []
        self._all: list[Worker] = []
        self._ended: dict[int, float] = {}
        self._owners_ended: list[tuple[float, int]] = []
        self.tally = Tally()
        journals_of(place).mkdir()

    def run(self) -> Tally:
        """Kill as often as planned, then judge; raises BrokenError."""
        try:
            self._begin()
            while self.tally.kills < self._plan.kills:
                self._pause(self._choice.uniform(0, 2 * PAUSE_SECONDS))
                self._strike()
                if self.tally.kills % EACH_GETS_ON == 0:
                    self._check_each_gets_on()
            self._check_each_gets_on()
            self._end()
        except _WedgedError as wedged:
            raise BrokenError(self._plan.seed, [wedged.violation]) from None
        finally:
            for worker in self._all:
                if worker.child.is_alive():
                    self._signal(worker, signal.SIGKILL)
                    worker.child.wait()
        self._judge()
        return self.tally

    # -- Processes ---------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        for _ in range(self._plan.processes):
            self._workers.append(self._start())
        self._check_each_gets_on()  # so the queues are there
        for number in range(self._plan.servers):
            self._workers.append(self._start(serves=number % self._plan.queues))

    def _start(self, *, is_draining: bool = False, serves: int | None = None) -> Worker:
        number = len(self._all)
        can_own = number % self._plan.processes == 0 or self._choice.random() >= MAY_NOT_OWN_SHARE
        job = Job(
            self._place,
            number,
            self._choice.randrange(2**32),
            queues=self._plan.queues,
            threads=self._choice.choice((1, 1, 2)),
            can_own=can_own or is_draining,
            lease_seconds=self._plan.lease_seconds,
            is_draining=is_draining,
            is_forked=not is_draining and self._choice.random() < FORKED_SHARE,
            serves=serves,
        )
        worker = Worker(number, Child(job), job)
        with suppress(ProcessLookupError, PermissionError):  # it does so, too: whichever is first
            os.setpgid(worker.child.pid, worker.child.pid)
        self._all.append(worker)
        self.tally.servers += serves is not None
        self.tally.forked += job.is_forked and serves is None
        return worker

    def _owner(self) -> Worker | None:
        """Return the owner of one of the queues, if it lives."""
        note = read_owner_note(OsStorage(), queue_of(self._place, self._choice.randrange(self._plan.queues)))
        if note is None:
            return None
        with suppress(ProcessLookupError):
            group = os.getpgid(note.pid)  # a forked child may be the owner
            return next((each for each in self._workers if each.child.pid == group), None)
        return None

    @staticmethod
    def _signal(worker: Worker, number: signal.Signals) -> None:
        """Signal a process, and the child that it has forked."""
        with suppress(ProcessLookupError):
            os.killpg(worker.child.pid, number)

    def _strike(self) -> None:
        """Kill or stop a process."""
        owner = self._owner()
        choose_owner = owner is not None and self._choice.random() < OWNER_SHARE
        target = owner if choose_owner and owner is not None else self._choice.choice(self._workers)
        if self._choice.random() < STOP_SHARE:
            self._stop(target)
            self.tally.owners_stopped += target is owner
            return
        self._kill(target)
        if target is owner:
            self.tally.owners_killed += 1
            self._owners_ended.append((self._ended[target.number], target.number))
        self._workers[self._workers.index(target)] = self._start(serves=target.job.serves)

    def _kill(self, worker: Worker) -> None:
        self._ended[worker.number] = time.monotonic()
        self._signal(worker, signal.SIGKILL)
        worker.child.wait()
        worker.stopped_until = None
        self.tally.kills += 1
        self._check_status(worker, -signal.SIGKILL)

    def _check_status(self, worker: Worker, expected: int) -> None:
        if worker.child.wait() != expected:
            raise _ended(worker)

    def _stop(self, worker: Worker) -> None:
        seconds = self._choice.choices(STOPS_SECONDS, STOPS_WEIGHTS)[0]
        self._signal(worker, signal.SIGSTOP)
        worker.stopped_until = max(worker.stopped_until or 0.0, time.monotonic() + seconds)
        self.tally.stops += 1

    def _go_on(self, worker: Worker) -> None:
        if worker.stopped_until is not None:
            self._signal(worker, signal.SIGCONT)
            worker.stopped_until = None

    def _pause(self, seconds: float) -> None:
        """Wait, and let those go on that were stopped for long enough."""
        deadline = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            for each in self._workers:
                if each.stopped_until is not None and each.stopped_until <= now:
                    self._go_on(each)
            if now >= deadline:
                return
            time.sleep(min(_POLL_SECONDS, deadline - now))

    # -- Getting on --------------------------------------------------------------------------------------------------

    def _check_each_gets_on(self) -> None:
        """Return once each thread of each process has noted something; raises if one does not in time."""
        for each in self._workers:
            self._go_on(each)
        before = self._sizes()
        deadline = time.monotonic() + self._plan.wedged_seconds
        while True:
            sizes = self._sizes()
            left = [each for each in self._workers if each.job.serves is None and not each.gets_on(before, sizes)]
            if not left:
                return
            for each in left:
                if not each.child.is_alive():
                    raise _ended(each)
            if time.monotonic() > deadline:
                names = ", ".join(str(each.number) for each in left)
                raise _WedgedError(self._wedged(f"workers {names} made no call in {self._plan.wedged_seconds:g} s"))
            time.sleep(_POLL_SECONDS)

    def _sizes(self) -> dict[str, int]:
        with os.scandir(journals_of(self._place)) as entries:
            return {entry.name: entry.stat().st_size for entry in entries}

    def _wedged(self, text: str) -> Violation:
        """Have all processes say where their threads are."""
        living = [each for each in self._all if each.child.is_alive()]
        for each in living:
            self._signal(each, signal.SIGUSR1)
        time.sleep(1)
        owner = self._owner()
        stacks = [
            f"worker {each.number} ({'owner, ' if each is owner else ''}pid {each.child.pid})\n"
            f"{stacks_of(self._place, each.number).read_text()}"
            for each in living
        ]
        return Violation(WEDGED, "\n".join([text, *stacks]))

    # -- The end -----------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        """Have half of them end by themselves, kill the others, and drain the queues; the last ones may own."""
        order = sorted(self._choice.sample(self._workers, len(self._workers)), key=lambda each: each.job.can_own)
        for number, worker in enumerate(order):
            if number % 2:
                self._kill(worker)
                self.tally.kills -= 1  # not one of the planned ones
                continue
            os.kill(worker.child.pid, signal.SIGTERM)
            self._wait_for_end(worker)
        self._workers = []
        self._wait_for_end(self._start(is_draining=True))

    def _wait_for_end(self, worker: Worker) -> None:
        deadline = time.monotonic() + self._plan.wedged_seconds + 5 * self._plan.lease_seconds
        while worker.child.is_alive():
            if time.monotonic() > deadline:
                raise _WedgedError(self._wedged(f"worker {worker.number} does not end"))
            time.sleep(_POLL_SECONDS)
        self._check_status(worker, 0)

    def _judge(self) -> None:
        violations: list[Violation] = []
        calls = list(read(journals_of(self._place)))
        self._count(calls)
        judge = Judge(calls, self._ended, self._plan.lease_seconds)
        judge.judge()
        violations += judge.violations
        self.tally.excused += judge.excused
        for number in range(self._plan.queues):
            report = verify(queue_of(self._place, number))
            if not report.ok:
                violations.append(Violation(DAMAGED, str(report)))
        if violations:
            raise BrokenError(self._plan.seed, violations)

    def _count(self, calls: list[Call]) -> None:
        """Take note of what was done, and how soon puts returned after an owner was killed."""
        returned = [each for each in calls if each.has_returned]
        self.tally.calls.update(each.verb for each in returned)
        self.tally.over_two = sum(each.is_over_two for each in returned)
        self.tally.messages_put = sum(len(each.keys) for each in returned)
        ends = sorted(each.end for each in returned if each.verb == "put")
        for ended, _ in self._owners_ended:
            after = next((end for end in ends if end > ended), None)
            if after is not None:
                self.tally.successions_seconds.append(after - ended)


class _WedgedError(Exception):
    """A process makes no progress, or has ended."""

    def __init__(self, violation: Violation) -> None:
        super().__init__(violation.text)
        self.violation = violation


def _ended(worker: Worker) -> _WedgedError:
    return _WedgedError(Violation(FAILED, f"worker {worker.number} has ended by itself with {worker.child.wait()}"))
