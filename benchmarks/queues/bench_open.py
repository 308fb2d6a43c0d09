"""Opening a queue with a long backlog, in a process that has just begun."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from shutil import rmtree
from statistics import median

import pytest

from benchmarks.measuring.load import Load
from benchmarks.measuring.race import Benchmark
from benchmarks.measuring.report import Report
from benchmarks.measuring.reported_timer import ReportedTimer
from benchmarks.measuring.rows import Row, spread
from benchmarks.processes import fresh_process

timer = ReportedTimer()

ROUNDS = 5
SECONDS_MAX = 0.2
RESIDENT_MB_MAX = 60


@pytest.mark.benchmark(timer=timer)
@pytest.mark.parametrize("ending", ["closed", "killed"])
def test_opening_a_long_backlog_and_the_first_get(
    benchmark: Benchmark, place: Path, report: Report, sized: Callable[[int, int], Load], ending: str
) -> None:
    """From before the queue is opened to after the first payload; memory is the most that was ever resident."""
    load = sized(1_000_000, 140)
    readings: list[dict[str, float]] = []

    def fill() -> None:
        rmtree(place / "queue", ignore_errors=True)
        fresh_process.run("fill", place, load.count, load.size, ending, dies=ending == "killed")

    def open_and_get() -> None:
        readings.append(json.loads(fresh_process.run("open", place, load.size)))
        timer.report(readings[-1]["seconds"])

    benchmark.pedantic(open_and_get, setup=fill, rounds=ROUNDS)
    if benchmark.stats is None:
        return
    milliseconds = [reading["seconds"] * 1e3 for reading in readings]
    resident = [reading["after_bytes"] / 1e6 for reading in readings]
    before = [reading["before_bytes"] / 1e6 for reading in readings]
    benchmark.extra_info.update(resident_mb=max(resident), resident_before_mb=median(before))
    title = f"open with {load.count:,} of {load.size} bytes + first get, writer {ending}"
    report.add(
        Row(
            f"{title}: time",
            spread(milliseconds, 1, " ms"),
            target=f"< {SECONDS_MAX * 1e3:g} ms",
            met=median(milliseconds) < SECONDS_MAX * 1e3,
        )
    )
    report.add(
        Row(
            f"{title}: memory",
            spread(resident, 1, " MB resident"),
            f"interpreter + import: {median(before):.1f} MB",
            target=f"< {RESIDENT_MB_MAX} MB",
            met=max(resident) < RESIDENT_MB_MAX,
        )
    )
