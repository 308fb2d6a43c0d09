"""How long a thread that ticks is kept from the interpreter beside a producer at full speed.

A call that keeps the interpreter while it writes is faster, and others wait: what that comes to is measured here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import pytest

from benchmarks.cases.queue_cases import NEVER, open_queue
from benchmarks.measuring.load import BATCH, Load
from benchmarks.measuring.race import Benchmark
from benchmarks.measuring.report import Report
from benchmarks.measuring.reported_timer import ReportedTimer
from benchmarks.measuring.rows import NOTHING, Row
from holdfast import PersistentQueue

timer = ReportedTimer()

ROUNDS = 5
TICK_SECONDS = 0.001
MORE_MS_MAX = 5.0
"""Than the longest pause of the same thread with no producer, in the same round."""

Work = Callable[[], object]


def _longest_pause(seconds: float) -> float:
    """Tick for so long; return the longest time between two ticks, in milliseconds."""
    longest, last = 0.0, time.perf_counter()
    end = last + seconds
    while last < end:
        time.sleep(TICK_SECONDS)
        now = time.perf_counter()
        longest = max(longest, now - last)
        last = now
    return longest * 1e3


@contextmanager
def _at_full_speed(work: Work) -> Iterator[None]:
    """Have another thread do its work again and again."""
    is_over = threading.Event()

    def repeat() -> None:
        while not is_over.is_set():
            work()

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _put(queue: PersistentQueue, load: Load) -> Work:
    def work() -> None:
        for _ in range(BATCH):
            queue.put(load.payload)

    return work


def _put_many(queue: PersistentQueue, load: Load) -> Work:
    return lambda: queue.put_many([load.payload] * BATCH)


def _loop(_: PersistentQueue, __: Load) -> Work:
    return lambda: sum(range(10_000))


@pytest.mark.parametrize(
    ("title", "make", "more_max"),
    [
        ("put, never(), 2,000 bytes", _put, MORE_MS_MAX),
        (f"put_many of {BATCH}, never(), 2,000 bytes", _put_many, MORE_MS_MAX),
        ("a loop of pure Python, no queue", _loop, None),
    ],
    ids=["put", "put_many", "python"],
)
@pytest.mark.benchmark(timer=timer)
def test_the_longest_pause_of_a_thread_that_ticks(
    *,
    benchmark: Benchmark,
    place: Path,
    report: Report,
    sized: Callable[[int, int], Load],
    title: str,
    make: Callable[[PersistentQueue, Load], Work],
    more_max: float | None,
) -> None:
    """It sleeps a millisecond each time; one round ticks alone, then beside the producer."""
    load = sized(20_000, 2_000)
    seconds = load.count / 10_000
    alone, beside = list[float](), list[float]()
    with open_queue(place, NEVER) as queue:
        work = make(queue, load)

        def measure() -> None:
            alone.append(_longest_pause(seconds))
            with _at_full_speed(work):
                beside.append(_longest_pause(seconds))
            queue.purge()
            timer.report(beside[-1] / 1e3)

        benchmark.pedantic(measure, rounds=ROUNDS)
    more = median(with_it - without for with_it, without in zip(beside, alone, strict=True))
    benchmark.extra_info["milliseconds"] = {"alone": alone, "beside": beside}
    report.add(
        Row(
            f"longest pause of a thread that ticks beside {title}",
            f"{median(beside):.1f} ms (the longest of all {max(beside):.1f})",
            floor=f"alone: {median(alone):.1f} ms",
            ratio=f"{more:+.1f} ms",
            target=NOTHING if more_max is None else f"≤ +{more_max:g} ms",
            met=None if more_max is None else more <= more_max,
        )
    )
