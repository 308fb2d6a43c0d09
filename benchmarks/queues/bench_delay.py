"""Messages that wait for their time: how late they come, and what a long row of them costs."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from shutil import rmtree
from statistics import median, quantiles

import pytest

from benchmarks.cases.queue_cases import NEVER, open_queue
from benchmarks.measuring.load import BATCH, Load
from benchmarks.measuring.race import Benchmark
from benchmarks.measuring.report import Report
from benchmarks.measuring.reported_timer import ReportedTimer
from benchmarks.measuring.rows import Row, significant, spread
from benchmarks.processes import fresh_process

timer = ReportedTimer()

Sized = Callable[[int, int], Load]

DELAYED = 300
WAIT_SECONDS = (0.01, 0.05)
LATE_MS_MAX = 20
ANSWER_SECONDS_MAX = 30.0

ROUNDS = 3
RESIDENT_MB_MAX = 300


@pytest.mark.benchmark(timer=timer)
def test_how_late_a_delayed_message_comes(benchmark: Benchmark, place: Path, report: Report, sized: Sized) -> None:
    """One at a time, to a consumer that sits in ``receive`` and has nothing else to do."""
    load = sized(DELAYED, 140)
    waits = random.Random(load.count)
    answers: SimpleQueue[int] = SimpleQueue()

    with open_queue(place, NEVER) as queue:

        def consume() -> None:
            for _ in range(load.count):
                delivery = queue.receive()
                answers.put(time.time_ns())
                delivery.ack()

        def lateness_seconds() -> float:
            due_ns = time.time_ns() + round(waits.uniform(*WAIT_SECONDS) * 1e9)
            queue.put(load.payload, not_before=due_ns / 1e9)
            return (answers.get(timeout=ANSWER_SECONDS_MAX) - due_ns) / 1e9

        consumer = threading.Thread(target=consume)
        consumer.start()
        benchmark.pedantic(lambda: timer.report(max(0.0, lateness_seconds())), rounds=load.count)
        consumer.join(ANSWER_SECONDS_MAX)
    if benchmark.stats is None:
        return
    milliseconds = [seconds * 1e3 for seconds in benchmark.stats.stats.data]
    middle, p99 = median(milliseconds), quantiles(milliseconds, n=100)[-1]
    benchmark.extra_info["milliseconds_late"] = {"median": middle, "p99": p99}
    report.add(
        Row(
            "delayed message, consumer waiting: lateness, never()",
            f"median {middle:.2f} ms, p99 {p99:.2f} ms",
            target=f"median < {LATE_MS_MAX} ms",
            met=middle < LATE_MS_MAX,
        )
    )


@pytest.mark.benchmark(timer=timer)
def test_opening_a_long_row_of_delayed_messages(
    benchmark: Benchmark, place: Path, report: Report, sized: Sized
) -> None:
    """To the first answer that there is nothing yet; then all of them become due at once and are taken."""
    load = sized(1_000_000, 140)
    readings: list[dict[str, float]] = []

    def fill() -> None:
        rmtree(place / "queue", ignore_errors=True)
        fresh_process.run("delay", place, load.count, load.size)

    def open_and_wake() -> None:
        readings.append(json.loads(fresh_process.run("wake", place, load.count)))
        timer.report(readings[-1]["open_seconds"])

    benchmark.pedantic(open_and_wake, setup=fill, rounds=ROUNDS)
    if benchmark.stats is None:
        return
    opened = [reading["opened_bytes"] / 1e6 for reading in readings]
    after = [reading["after_bytes"] / 1e6 for reading in readings]
    before = [reading["before_bytes"] / 1e6 for reading in readings]
    take_seconds = [reading["take_seconds"] for reading in readings]
    benchmark.extra_info.update(
        resident_mb=max(opened), taken_resident_mb=max(after), take_seconds=median(take_seconds)
    )
    title = f"open with {load.count:,} delayed of {load.size} bytes + first look"
    report.add(Row(f"{title}: time", spread([reading["open_seconds"] for reading in readings], 2, " s")))
    report.add(
        Row(
            f"{title}: memory",
            spread(opened, 1, " MB resident"),
            f"interpreter + import: {median(before):.1f} MB",
            target=f"< {RESIDENT_MB_MAX} MB",
            met=max(opened) < RESIDENT_MB_MAX,
        )
    )
    title = f"get_many of {BATCH} of {load.count:,} that became due, never()"
    report.add(
        Row(
            title,
            f"{significant(load.count / median(take_seconds))}/s; {spread(after, 1, ' MB resident')}",
            target=f"< {RESIDENT_MB_MAX} MB",
            met=max(after) < RESIDENT_MB_MAX,
        )
    )
