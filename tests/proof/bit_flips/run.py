"""Runs all flips, or every so many of them, and counts what came of them."""

from __future__ import annotations

import gc
import logging
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from holdfast import PersistentQueue
from proof.bit_flips.oracle import Judge
from proof.bit_flips.places import SAMPLE_BYTES, Region, regions
from support.builders.small_queues import tiny_files_allowed
from support.storages.simulated_storage import SimulatedStorage

THOROUGH_EVERY = 8
"""In data files, where it has nothing to do with the damage, what is in doubt is decided after every eighth flip."""

COLLECT_EVERY = 150
SHOWN_MAX = 20


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the log still, the process's watcher alive between the queues, and the collector out of the way."""
    logging.disable(logging.CRITICAL)
    gc.disable()
    try:
        with tiny_files_allowed(), PersistentQueue("/kept-open", mode="exclusive", storage=SimulatedStorage()):
            yield
    finally:
        gc.enable()
        logging.disable(logging.NOTSET)


@dataclass(frozen=True)
class Violation:
    """One flip that broke a promise; ``title`` is that of the queue."""

    title: str
    path: Path
    at: int
    bit: int
    part: str
    why: str

    def __str__(self) -> str:
        return f"bit {self.bit} of byte {self.at} of {self.path} ({self.part}; the queue has {self.title}): {self.why}"


class Flips:
    """All flips of some queues, each with its judge.

    Attributes
    ----------
    violations : list of Violation
        Empty where every promise holds.
    """

    def __init__(self, *judges: Judge) -> None:
        self.violations: list[Violation] = []
        self._judges = judges
        self._counts: Counter[tuple[str, str]] = Counter()
        self._seconds = 0.0
        self._every = 1

    @property
    def count(self) -> int:
        """How many bits were flipped."""
        return self._total("flips")

    def run(self, *, every: int = 1, first: int = 0, only: str = "") -> None:
        """Flip every ``every``-th bit from number ``first`` on, of files whose path contains ``only``."""
        started = time.perf_counter()
        self._every = every
        number = -1
        for judge in self._judges:
            victim, contents = judge.victim, judge.victim.files()
            for region in regions(victim):
                if only not in str(region.path) or not victim.flips(region.path):
                    continue
                for at, bit in region.bits():
                    number += 1
                    if number % every == first % every:
                        self._flip(judge, region, contents[region.path], at, bit, number // every)
        self._seconds += time.perf_counter() - started

    def _flip(self, judge: Judge, region: Region, content: bytes, at: int, bit: int, number: int) -> None:
        storage = judge.victim.copy()
        file = storage.open(region.path)
        file.write_at((bytes((content[at] ^ 1 << bit,)),), at)
        file.sync()
        file.close()
        self._counts[region.kind, "flips"] += 1
        if number % COLLECT_EVERY == 0:
            gc.collect()
        try:
            verdict = judge.judge(region, storage, thorough=number % THOROUGH_EVERY == 0)
        except Exception as error:  # of any kind: no flip may make anything raise what the caller cannot expect
            name = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
            self.violations.append(Violation(judge.victim.title, region.path, at, bit, region.part, f"{name}{error}"))
            self._counts[region.kind, "violations"] += 1
            return
        self._counts[region.kind, "detected" if verdict.detected else "harmless"] += 1
        self._counts[region.kind, "lost"] += verdict.lost_count

    def covered(self) -> dict[str, int | str]:
        """Return its figures."""
        names = {
            "flips": "flips",
            "detected": "detected",
            "harmless": "without a meaning",
            "lost": "lost messages, all named",
        }
        return {text: self._total(name) for name, text in names.items()}

    def _total(self, name: str) -> int:
        return sum(count for (_, what), count in self._counts.items() if what == name)

    def lines(self) -> Iterator[str]:
        """Yield what was covered, and the verdict."""
        columns = ("flips", "detected", "harmless", "lost", "violations")
        yield f"{'file':32}" + "".join(f"{name:>12}" for name in columns)
        for kind in sorted({kind for kind, _ in self._counts}):
            yield f"{kind:32}" + "".join(f"{self._counts[kind, name]:12,}" for name in columns)
        yield f"{'all':32}" + "".join(f"{self._total(name):12,}" for name in columns)
        yield (
            "detected: verify reported it. harmless: nothing was said, and everything was shown. "
            "lost: messages that flips cost, each named exactly by verify, and by the reader where it was waited for"
        )
        share = "every bit that means something" if self._every == 1 else f"one in {self._every} of those bits"
        yield f"{share}; of padding, reserved space and lock files one bit in {SAMPLE_BYTES} bytes"
        for violation in self.violations[:SHOWN_MAX]:
            yield f"violation: {violation}"
        rate = self.count / self._seconds if self._seconds else 0.0
        yield (
            f"{'FAILED' if self.violations else 'ok'}: {self.count:,} bits flipped in {self._seconds:.0f} s "
            f"({rate:.0f}/s), {len(self.violations):,} violations"
        )
