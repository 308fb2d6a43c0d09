"""The children of one round: one that has a queue for itself, or two that share it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

from proof.real_processes.hand import Job
from proof.real_processes.ledger import Ledger
from proof.real_processes.reports import Reporter
from proof.real_processes.steps import FAILED, ViolationError

WORK = {
    "one": "one thread",
    "threads": "1 thread puts, 1 takes",
    "two": "2 processes share: 1 puts, 1 takes",
    "crowd": "8 threads put, 4 take",
}
SHAPES = tuple(WORK)
OPENED, ACKNOWLEDGES = "go", ("S", "G", "E")
TRACE_LINES_MAX = 400


class FailedError(AssertionError):
    """A run has found a broken promise: says which, with its seed and what the children said last."""

    def __init__(self, violation: ViolationError, where: str, crew: Crew) -> None:
        trace = "\n".join(" ".join(line)[:300] for line in crew.last_said())
        super().__init__(f"{where}: {violation}\n{trace}")
        self.kind = violation.kind


@dataclass
class Crew:
    """Starts the children that work on one queue, round after round, and has its ledger judge what they say.

    Attributes
    ----------
    path : Path
        The queue.
    shape : str
        One of ``SHAPES``.
    choice : random.Random
        Where the children's seeds come from.
    may_lose_disk : bool
        Whether the disk may go away under them.
    loose : Path or None
        The control: a file that they append to without a sync.
    backlog_max : int
        How many messages they let the queue have.
    syncs_may_fail : bool
        Whether the disk goes away by itself.
    ledger : Ledger
        What is known of the queue.
    said : list of lines
        What the children of this round have said; ``said_before`` the last lines of those before.
    """

    path: Path
    shape: str
    choice: random.Random
    may_lose_disk: bool = False
    loose: Path | None = None
    backlog_max: int = 150
    syncs_may_fail: bool = False
    ledger: Ledger = field(init=False)
    said: list[list[str]] = field(default_factory=list)
    said_before: list[list[str]] = field(default_factory=list)
    _number: int = 0
    _takers: list[Reporter] = field(default_factory=list)
    _putters: list[Reporter] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ledger = Ledger(in_order=self.shape != "crowd", is_shared=self.shape == "two")

    def start(self, policy: str) -> None:
        """Begin a round; who puts alone comes once who takes alone has looked at all there is."""
        self._policy = policy
        self._begin(["policy", policy])
        self._takers, self._putters = [], []
        if self.shape != "two":
            self._takers.append(self._child(self.shape))
            return
        self._takers.append(self._child("takes"))
        if self._takers[0].wait_for(OPENED):
            self._putters.append(self._child("puts", looks=False))

    def _begin(self, *lines: list[str]) -> None:
        self.said, self.said_before = [*lines], self.last_said()

    def last_said(self) -> list[list[str]]:
        """Return the last lines of this round and those before: a round whose opening was cut off is judged later."""
        said = [line for line in (*self.said_before, *self.said) if line[0] != "n"]
        return said[-TRACE_LINES_MAX:]

    def present(self) -> list[Reporter]:
        """Return the children that live, in a random order."""
        children = [*self._takers[-1:], *self._putters[-1:]]
        return self.choice.sample(children, len(children))

    def replace(self) -> Reporter:
        """Start another one for one of two sides, whose child is killed first; return that."""
        side, shape = self.choice.choice([(self._putters, "puts"), (self._takers, "takes")])
        killed = side[-1]
        killed.kill()
        side.append(self._child(shape, looks=False))
        return killed

    def look(self) -> None:
        """Have a child open the queue and say what is there; the first one makes the queue."""
        self._begin()
        self._policy = "every_commit"
        self._takers, self._putters = [self._child("one")], []
        self._takers[0].wait_for(OPENED)
        self.judge()

    def stop(self) -> None:
        """Kill who still lives: nobody is going to judge this round."""
        for child in (*self._takers, *self._putters):
            child.kill()

    def judge(self) -> int:
        """Kill who lives and judge what all have said; return how many there were."""
        first, *later = self._takers
        work = self.ledger.open(self._end(first))  # nobody put meanwhile
        for each in self._putters:
            self.ledger.read(self._end(each))
        self.ledger.follow(work)
        for each in later:
            self.ledger.read(self._end(each))
        return len(self._takers) + len(self._putters)

    def said_by_each(self) -> list[list[list[str]]]:
        """Return what each child of this round has said."""
        begins = [number for number, line in enumerate(self.said) if line[0] == "--"]
        return [self.said[begin:end] for begin, end in zip(begins, [*begins[1:], None], strict=True)]

    def _child(self, shape: str, *, looks: bool = True) -> Reporter:
        self._number += 1
        seed = self.choice.randrange(2**32)
        job = Job(
            self.path,
            shape,
            self._policy,
            seed,
            self._number,
            looks,
            self.may_lose_disk,
            self.loose,
            self.backlog_max,
            self.syncs_may_fail,
        )
        return Reporter(job)

    def _end(self, child: Reporter) -> list[list[str]]:
        child.kill()
        lines = child.lines()
        self.said += [["--", "child", str(child.pid)], *lines]
        last = next((line for line in reversed(lines) if line[0] in ("e", "X")), [])
        if not child.was_killed() and not (self.may_lose_disk and last[:1] == ["e"]):
            raise ViolationError(FAILED, f"child {child.pid} ended before it was killed: {' '.join(last)}")
        return lines
