"""Has a worker move events from one queue to another, kills it again and again, and counts what came out at the end."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from examples.demo.events import enrich
from holdfast import Empty, PersistentQueue, verify
from holdfast.cli.demo.evidence import clause, recovery
from holdfast.cli.demo.victim import Victim, plan_kills, watch

DELAY_SECONDS_MAX = 0.005
"""Longest wait between the progress that makes a kill due and the kill: it may hit any step of the work."""


class Pipeline:
    """The two queues, and what is known of each event.

    Parameters
    ----------
    directory : Path
        Holds the queues and the journal.
    events : sequence of bytes
        What has to move; the event at index *n* gets offset *n* in the first queue.

    Attributes
    ----------
    moved : Counter of int
        How often the event of each offset came out of the second queue.
    altered : set of int
        Offsets whose event came out as anything but the enriched one.
    begun : Counter of int
        How often the worker took each offset into a transaction.
    taken_again : set of int
        Offsets that it took again though their transaction had committed.
    left_count : int
        Messages still in the first queue at the end.
    damage_count : int
        Damaged places that ``verify`` found in the files of both queues.
    kill_count : int
        How often the worker was killed.
    opening_seconds : list of float
        How long each opening of a queue took that followed a kill.
    """

    def __init__(self, directory: Path, events: Sequence[bytes]) -> None:
        self._first, self._second = directory / "detected", directory / "enriched"
        self._journal = directory / "worker.journal"
        self._events = events
        self._committed: set[int] = set()
        self.moved: Counter[int] = Counter()
        self.altered: set[int] = set()
        self.begun: Counter[int] = Counter()
        self.taken_again: set[int] = set()
        self.left_count = 0
        self.damage_count = 0
        self.kill_count = 0
        self.opening_seconds: list[float] = []

    def run(self, kill_count: int, dice: random.Random) -> None:
        """Put all events into the first queue, and let the worker move them into the second."""
        with PersistentQueue(self._first) as first:
            first.put_many(self._events)
        program = ["-m", "examples.demo.processes.worker", self._first, self._second, self._journal, os.getpid()]
        kills = plan_kills(dice, kill_count, len(self._events), DELAY_SECONDS_MAX)
        with closing(Victim("worker", program, self._journal, kills, self._take)) as worker:
            watch([worker], lambda: f"{worker.done_count:5,} moved")
            self.kill_count = worker.kill_count

    def _take(self, words: list[str]) -> None:
        """Take in one line of the worker's journal."""
        match words:
            case ["opened", seconds, _]:
                self.opening_seconds.append(float(seconds))
            case ["begun", offset]:
                self.begun[int(offset)] += 1
                self.taken_again |= {int(offset)} & self._committed
            case ["moved", offset]:
                self._committed.add(int(offset))

    def count(self) -> None:
        """Look at what is in the files, whatever the worker says that it did."""
        with PersistentQueue(self._first, mode="read_only") as first:
            self.left_count = first.stats().depth
        with PersistentQueue(self._second) as second:
            while True:
                try:
                    message = second.receive(timeout=0)
                except Empty:
                    break
                self._count(int(message.headers["source-offset"]), message.payload)
                message.ack()
        self.damage_count = sum(len(verify(path).damage) for path in (self._first, self._second))

    def _count(self, offset: int, payload: bytes) -> None:
        self.moved[offset] += 1
        if offset >= len(self._events) or payload != enrich(self._events[offset]):
            self.altered.add(offset)

    @property
    def lost(self) -> set[int]:
        """Offsets whose event is not in the second queue."""
        return set(range(len(self._events))) - set(self.moved)

    @property
    def doubled(self) -> set[int]:
        """Offsets whose event is there more than once."""
        return {offset for offset, count in self.moved.items() if count > 1}

    @property
    def violations(self) -> list[str]:
        """Every promise that was broken, one clause each; empty where all were kept."""
        broken = [
            clause("lost on the way", self.lost),
            clause("doubled on the way", self.doubled),
            clause("altered on the way", self.altered),
            clause("taken again after their transaction had committed", self.taken_again),
            f"{self.left_count} left in the first queue" if self.left_count else "",
            f"{self.damage_count} damaged places in the files" if self.damage_count else "",
        ]
        return [each for each in broken if each]

    def rows(self) -> list[tuple[str, str, str]]:
        """Return the table: name, figure, remark."""
        undone = sum(self.begun.values()) - len(self.begun)
        openings = f"{len(self.opening_seconds)} openings after a kill"
        return [
            ("moved", f"{len(self.moved):,}", "distinct, out of the second queue"),
            ("lost", f"{len(self.lost):,}", "must be 0"),
            ("doubled", f"{len(self.doubled):,}", "must be 0"),
            ("altered", f"{len(self.altered):,}", "must be 0"),
            ("taken again after commit", f"{len(self.taken_again):,}", "must be 0"),
            ("left in the first queue", f"{self.left_count:,}", "must be 0"),
            ("damage found by verify", f"{self.damage_count:,}", "must be 0"),
            ("transactions undone", f"{undone:,}", "killed before they had committed, and done again"),
            ("recovery, median / max", recovery(self.opening_seconds), openings),
            ("killed", f"{self.kill_count}", "worker"),
        ]
