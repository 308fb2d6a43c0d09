"""Where the time of a call goes, for each case that misses its target: docs/benchmarks.md has the tables.

``python -m benchmarks.studies.profiles`` prints one for the C extension, with ``HOLDFAST_PURE=1`` one for Python alone.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from cProfile import Profile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import cast

import click

import holdfast
from benchmarks.cases import queue_cases, transaction_cases, work_queue_cases
from benchmarks.cases.queue_cases import EVERY_COMMIT, NEVER
from benchmarks.measuring import machine
from benchmarks.measuring.contestant import Body, Contestant
from benchmarks.measuring.load import BATCH, Load
from benchmarks.measuring.report import markdown
from benchmarks.measuring.rows import NOTHING, significant

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(holdfast.__file__).parent
ROUNDS = 3
"""Runs without the profiler, and with it."""

ROOMS_NAMED = 4
IMPLEMENTATION = "C" if holdfast.implementation == "c" else "Python alone"

Function = tuple[str, int, str]
"""File, line and name, as a profile says them; a built-in function has no file."""

Costs = Mapping[Function, tuple[int, int, float, float, Mapping[Function, tuple[int, int, float, float]]]]
"""Calls, primitive calls, seconds inside, seconds with what it called; and the same for each caller of the function."""


@dataclass(frozen=True)
class Case:
    """What is profiled.

    Attributes
    ----------
    contestant : callable
        Returns it, for a load.
    count, size : int
        Messages, and bytes of each.
    is_filled : bool
        Whether the messages are in the queue before.
    in_threads : bool
        Whether threads of a pool do the work: each has a profile of its own.
    timer : callable
        Which seconds the profile counts: those of the clock, or of the thread on the processor.
    """

    contestant: Callable[[Load], Contestant]
    count: int = 50_000
    size: int = 2_000
    is_filled: bool = False
    in_threads: bool = False
    timer: Callable[[], float] = time.perf_counter


def _durable_put(load: Load) -> Contestant:
    return queue_cases.put(load, EVERY_COMMIT, threads=8)


CASES = {
    "put": Case(lambda load: queue_cases.put(load, NEVER)),
    "put of 140 bytes": Case(lambda load: queue_cases.put(load, NEVER), size=140),
    "put_many of 100": Case(lambda load: queue_cases.put_many(load, NEVER)),
    "get": Case(lambda load: queue_cases.get(load, NEVER), is_filled=True),
    "get_many of 100": Case(lambda load: queue_cases.get_many(load, NEVER), is_filled=True),
    "receive + ack": Case(lambda load: queue_cases.receive(load, NEVER), is_filled=True),
    "put with a dedup_id": Case(work_queue_cases.identified_puts),
    "get of a priority": Case(work_queue_cases.prioritized_gets),
    "transaction of 1 put": Case(work_queue_cases.transactions_of_one),
    "put + prepare + commit, durable": Case(lambda load: transaction_cases.prepare_and_commit(load, 1), count=2_000),
    "durable put, 8 threads": Case(_durable_put, count=4_000, in_threads=True),
    "durable put, 8 threads: processor": Case(_durable_put, count=4_000, in_threads=True, timer=time.thread_time),
}

# -- Running -----------------------------------------------------------------------------------------------------------


@contextmanager
def staged(case: Case, load: Load, base: Path) -> Iterator[Body]:
    """Set up a case in a new folder, and yield what is measured."""
    with tempfile.TemporaryDirectory(dir=base) as folder:
        if case.is_filled:
            queue_cases.fill(Path(folder), load)
        with case.contestant(load).stage(Path(folder)) as body:
            os.sync()
            yield body


def microseconds(case: Case, load: Load, base: Path) -> tuple[float, float]:
    """Return what a message takes without a profiler, on the clock and of the processor: medians."""
    rounds = []
    for _ in range(ROUNDS):
        with staged(case, load, base) as body:
            clock, used = time.perf_counter(), time.process_time()
            body()
            rounds.append((time.perf_counter() - clock, time.process_time() - used))
    clock, used = map(median, zip(*rounds, strict=True))
    return clock / load.count * 1e6, used / load.count * 1e6


def profiles(case: Case, load: Load, base: Path) -> list[Costs]:
    """Return the profile of each thread that does the work."""
    with staged(case, load, base) as body:
        found = _profiles_of_pool(body, case.timer) if case.in_threads else [Profile()]
        if not case.in_threads:
            found[0].runcall(body)
        for profile in found:
            profile.snapshot_stats()  # not `create_stats`, which ends calls that the threads of a pool still wait in
        return [cast(Costs, profile.stats) for profile in found]


def _profiles_of_pool(body: Body, timer: Callable[[], float]) -> list[Profile]:
    """Profile the threads that a pool starts for a body; none since Python 3.12, which allows one profile at a time."""
    found: list[Profile] = []

    def begin(*_: object) -> None:
        sys.setprofile(None)
        if threading.current_thread().name.startswith("ThreadPoolExecutor"):
            found.append(Profile(timer))
            found[-1].enable()

    threading.setprofile(begin if sys.version_info < (3, 12) else None)
    try:
        body()
    finally:
        threading.setprofile(None)
    return found


# -- Dividing ----------------------------------------------------------------------------------------------------------

GROUPS = {
    "write": r"(posix\.p?writev?|holdfast\._core\.write)>",
    "read": r"posix\.p?readv?>",
    "sync": r"posix\.f(data)?sync>",
    "reserve space": r"posix\.(posix_fallocate|ftruncate)>",
    "frames and checksums": r"holdfast\._core\.|crc32c",
    "locks": r"'_thread\.R?[lL]ock'",
}
"""Columns of the table, and the names of built-in functions that count there; a name counts in the first that fits."""

FRAMES = ("format/checksum.py", "format/framing.py", "format/frame_runs.py", "groups/position_entry.py")
"""Modules of the twins in Python, and of what they are made of."""

BENCHMARKS = "benchmarks"
"""The room of the loop around the calls, and of the pool."""


def group_of(function: Function) -> str | None:
    """Return the column or the room of a function; None: it counts where it is called."""
    file, _, name = function
    path = Path(file)
    if file == "~":
        return next((group for group, names in GROUPS.items() if re.search(names, name)), None)
    if file == threading.__file__:
        return "locks"
    if "crc32c" in path.parts or file.endswith(FRAMES):
        return "frames and checksums"
    if path.is_relative_to(PACKAGE):
        return str(path.parent.relative_to(PACKAGE.parent)).removeprefix("holdfast/")
    return BENCHMARKS if path.is_relative_to(ROOT / "benchmarks") else None


def _nearest_group(function: Function, costs: Costs) -> str:
    """Return the group of a function, or of the one that calls it most, or of the one that calls that."""
    passed: set[Function] = set()
    while (group := group_of(function)) is None and function not in passed:
        passed.add(function)
        callers = costs[function][-1]
        function = max(callers, key=lambda caller: callers[caller][3], default=function)
    return group or BENCHMARKS


def seconds_by_group(profiles: Sequence[Costs]) -> Mapping[str, float]:
    """Return the seconds of profiles by column and by room."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for costs in profiles:
        for function, (_, _, inside, _, callers) in costs.items():
            counts_itself = group_of(function) is not None or not callers
            parts = {function: inside} if counts_itself else {caller: cost[2] for caller, cost in callers.items()}
            for place, part in parts.items():
                seconds[_nearest_group(place, costs)] += part
    return seconds


def percents(seconds: Mapping[str, float]) -> dict[str, int]:
    """Return whole percents whose sum is 100: those that lose most by rounding down are rounded up."""
    whole = sum(seconds.values())
    exact = {name: part / whole * 100 for name, part in seconds.items()}
    rounded = {name: int(share) for name, share in exact.items()}
    for name in sorted(exact, key=lambda name: rounded[name] - exact[name])[: 100 - sum(rounded.values())]:
        rounded[name] += 1
    return rounded


def cells(seconds: Mapping[str, float]) -> list[str]:
    """Return the columns of shares; there are none without a profile."""
    if not seconds:
        return [NOTHING] * (len(GROUPS) + 2)
    rooms = sorted(seconds.keys() - GROUPS.keys(), key=lambda room: -seconds[room])
    named = {name: seconds.get(name, 0.0) for name in (*GROUPS, *rooms[:ROOMS_NAMED])}
    shares = percents({**named, OTHER: sum(seconds[room] for room in rooms[ROOMS_NAMED:])})
    largest = ", ".join(f"{room} {shares[room]}" for room in rooms[:ROOMS_NAMED] if shares[room])
    return [*(str(shares[group]) for group in GROUPS), largest, str(shares[OTHER])]


# -- Printing ----------------------------------------------------------------------------------------------------------

NOTES = f"""
Shares are percents of the seconds inside functions, as cProfile counts them. It makes calls in Python look longer than
those in C: it adds its own time to each, and nothing to the work within one. So the shares of Python are upper bounds.

- µs are per message, without the profiler: the medians of {ROUNDS} runs. The profile is the quickest of {ROUNDS}.
- A built-in function without a column counts in the room that calls it. "{BENCHMARKS}" is the loop around the calls.
- "frames and checksums" are the functions of the C extension but its write, or their twins in Python.
- "locks" has no time in which a `with` waits for its lock: cProfile does not see that call. The room has it.
- Threads are profiled one by one and added up: on the clock most of them wait, so one row counts their processor time.
"""

OTHER = "other"
HEADINGS = ("case", "implementation", "µs, clock", "µs, processor", *GROUPS, "Python between, by room", OTHER)


def row(name: str, count: int | None, base: Path) -> list[str]:
    """Measure a case, profile it, and return its line of the table."""
    case = CASES[name]
    load = Load(count or case.count, case.size)
    figures = [significant(figure) for figure in microseconds(case, load, base)]
    found = [seconds_by_group(profiles(case, load, base)) for _ in range(ROUNDS)]
    return [name, IMPLEMENTATION, *figures, *cells(min(found, key=lambda seconds: sum(seconds.values())))]


@click.command()
@click.option("--case", "names", type=click.Choice(list(CASES)), multiple=True, help="One of the cases; default: all.")
@click.option("--count", type=click.IntRange(min=BATCH), help="Messages of each run, rounded down to whole batches.")
@click.option("--dir", "base", type=click.Path(path_type=Path), default=ROOT / "build", help="Folder on the disk.")
def main(names: tuple[str, ...], count: int | None, base: Path) -> None:
    """Print where the time of a call goes, as Markdown."""
    base.mkdir(parents=True, exist_ok=True)
    whole_batches = count and count - count % BATCH
    table = [HEADINGS, *(row(name, whole_batches, base) for name in names or CASES)]
    print(*(f"- {fact}" for fact in machine.facts(base)), NOTES, *markdown(table), sep="\n")


if __name__ == "__main__":
    main()
