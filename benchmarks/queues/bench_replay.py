"""Going back to a time: moving a group over ten thousand data files, and the first message of a read from there."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from time import perf_counter
from unittest.mock import patch

from benchmarks.cases.queue_cases import NEVER
from benchmarks.measuring.race import Benchmark
from benchmarks.measuring.report import Report
from benchmarks.measuring.rows import Row, spread
from holdfast import PersistentQueue
from holdfast.clock import SystemClock

FILES = 10_000
FILE_BYTES = 16 * 2**10
MESSAGE_BYTES = 5_000
"""Three of them fill a data file."""

BEGUN_NS = 1_700_000_000 * 10**9
SEEKS = 20
SECONDS_MAX = 0.1


class SteppingClock(SystemClock):
    """A clock that is a second ahead each time that it is asked for the time."""

    def __init__(self) -> None:
        self._now_ns = BEGUN_NS

    def time_ns(self) -> int:
        self._now_ns += 10**9
        return self._now_ns


def fill(queue: PersistentQueue) -> None:
    """Put until there are so many data files, which a group keeps."""
    queue.groups.create("keeps")
    while queue.stats().file_count < FILES:
        for _ in range(1000):
            queue.put(bytes(MESSAGE_BYTES))


def test_going_back_to_a_time(benchmark: Benchmark, place: Path, report: Report) -> None:
    """Random times, of a queue that is open in this process."""
    clock, chosen = SteppingClock(), random.Random(1)
    with PersistentQueue(
        place / "queue", mode="exclusive", data_file_bytes=FILE_BYTES, flush=NEVER, clock=clock
    ) as queue:
        with patch.object(os, "fsync", lambda fd: None), patch.object(os, "fdatasync", lambda fd: None):
            fill(queue)
        times = [datetime.fromtimestamp(chosen.randint(BEGUN_NS, clock.time_ns()) / 1e9, UTC) for _ in range(SEEKS)]
        left = iter(times)
        benchmark.pedantic(lambda: queue.groups.seek("default", next(left)), rounds=SEEKS - 1, warmup_rounds=1)
        reads = [_seconds(lambda: next(queue.read(time))) for time in times]  # noqa: B023  # it is called at once
    if benchmark.stats is None:
        return
    seconds: list[float] = benchmark.stats.stats.data
    report.add(
        Row(
            f"seek to a time, {FILES:,} data files",
            spread([each * 1e3 for each in seconds], 1, " ms"),
            target=f"< {SECONDS_MAX * 1e3:g} ms",
            met=median(seconds) < SECONDS_MAX,
        )
    )
    report.add(
        Row(f"read from a time, {FILES:,} data files: first message", spread([each * 1e3 for each in reads], 1, " ms"))
    )


def _seconds(call: Callable[[], object]) -> float:
    begun = perf_counter()
    call()
    return perf_counter() - begun
