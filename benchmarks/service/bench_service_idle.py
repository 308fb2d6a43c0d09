"""What a service costs that has nothing to do, and how soon it wakes up."""

from __future__ import annotations

import random
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from queue import SimpleQueue
from statistics import median, quantiles

import pytest

from benchmarks.cases.queue_cases import EVERY_COMMIT
from benchmarks.measuring.load import Load
from benchmarks.measuring.race import Benchmark
from benchmarks.measuring.report import Report
from benchmarks.measuring.reported_timer import ReportedTimer
from benchmarks.measuring.rows import Row, significant
from benchmarks.processes import idle_process
from benchmarks.processes.fresh_process import ROOT, STAMP_BYTES, STOP
from holdfast import FlushPolicy, QueueService
from holdfast.queue.options.queue_options import Mode

timer = ReportedTimer()

QUEUES = 200
QUIET_SECONDS = 10.0
QUIET_SECONDS_QUICK = 2.0
CONCURRENCY = 4
RESIDENT_MB_MAX = 200
HANDLES_MAX = 5
QUEUES_CORE_PERCENT_MAX = 2.0
CORE_PERCENT_MAX = 0.5

WAKES = 100
PAUSE_SECONDS_MAX = 0.3
"""Between two puts: long enough for a consumer that polls to have come to its longest pause."""

SECONDS_LIMIT = 30.0
"""For one answer between threads, and for the other process to end."""

BY_TIME = FlushPolicy.every(seconds=0.05)

Ping = Callable[[], int]
"""Puts one message and returns the nanoseconds until it was taken."""


@pytest.fixture
def quiet_seconds(request: pytest.FixtureRequest) -> float:
    """Return for how long the processor time of a process that does nothing is looked at."""
    return QUIET_SECONDS_QUICK if request.config.getoption("quick") else QUIET_SECONDS


def test_many_idle_queues(*, benchmark: Benchmark, place: Path, report: Report, quiet_seconds: float) -> None:
    """Each was used once; in a fresh process."""
    figures: dict[str, float] = {}
    benchmark.pedantic(lambda: figures.update(idle_process.run("many", place, QUEUES, quiet_seconds)))
    if benchmark.stats is None:
        return
    benchmark.extra_info.update(figures)
    resident_mb, handles = figures["resident_bytes"] / 1e6, figures["handles"]
    title, percent = f"{QUEUES} idle queues of a service", figures["core_percent"]
    report.add(
        Row(
            f"{title}: memory",
            f"{resident_mb:.0f} MB, threads: {figures['threads']:.0f} more; opened in {figures['open_seconds']:.2f} s",
            target=f"< {RESIDENT_MB_MAX} MB",
            met=resident_mb < RESIDENT_MB_MAX,
        )
    )
    report.add(
        Row(
            f"{title}: file descriptors",
            f"{handles:.2f} each",
            target=f"< {HANDLES_MAX} each",
            met=handles < HANDLES_MAX,
        )
    )
    report.add(_core_row(title, percent, QUEUES_CORE_PERCENT_MAX))


@pytest.mark.parametrize(
    ("where", "mode"),
    [("in the owner's process", "exclusive"), ("in another process", "shared")],
    ids=["exclusive", "shared"],
)
def test_an_idle_consumer(
    *, benchmark: Benchmark, place: Path, report: Report, quiet_seconds: float, where: str, mode: Mode
) -> None:
    """One that waits in ``receive()``; the processor time of its whole process."""
    figures: dict[str, float] = {}
    with QueueService(place, mode=mode) as service:
        queue = service.queue("orders", type=bytes)
        queue.put(b"message")
        if mode == "exclusive":
            service.close()
        benchmark.pedantic(lambda: figures.update(idle_process.run("wait", place, mode, quiet_seconds)))
    if benchmark.stats is None:
        return
    benchmark.extra_info.update(figures)
    report.add(_core_row(f"idle consumer {where}", figures["core_percent"], CORE_PERCENT_MAX))


def test_an_idle_worker(*, benchmark: Benchmark, place: Path, report: Report, quiet_seconds: float) -> None:
    """``service.run()`` with one consumer that has handled a message; the processor time of its whole process."""
    figures: dict[str, float] = {}
    benchmark.pedantic(lambda: figures.update(idle_process.run("work", place, CONCURRENCY, quiet_seconds)))
    if benchmark.stats is None:
        return
    benchmark.extra_info.update(figures)
    title = f"idle worker, service.run() with {CONCURRENCY} threads"
    report.add(_core_row(title, figures["core_percent"], CORE_PERCENT_MAX))


def _core_row(title: str, percent: float, percent_max: float) -> Row:
    target = f"< {percent_max:g} %"
    return Row(f"{title}: of a core", f"{percent:.2f} %", target=target, met=percent < percent_max)


# -- Waking up -------------------------------------------------------------------------------------------------------


def _stamped() -> bytes:
    return time.monotonic_ns().to_bytes(STAMP_BYTES, "little")


@contextmanager
def _same_process(place: Path, flush: FlushPolicy) -> Iterator[Ping]:
    answers: SimpleQueue[int] = SimpleQueue()
    with QueueService(place, mode="exclusive") as service:
        queue = service.queue("orders", type=bytes, flush=flush)

        def consume() -> None:
            while True:
                with queue.receive() as delivery:
                    now, stamp = time.monotonic_ns(), delivery.body[:STAMP_BYTES]
                    if stamp == STOP:
                        return
                    answers.put(now - int.from_bytes(stamp, "little"))

        consumer = threading.Thread(target=consume)
        consumer.start()

        def ping() -> int:
            queue.put(_stamped())
            return answers.get(timeout=SECONDS_LIMIT)

        try:
            yield ping
        finally:
            queue.put(STOP)
            consumer.join()


@contextmanager
def _other_process(place: Path, flush: FlushPolicy) -> Iterator[Ping]:
    with QueueService(place, mode="shared") as service:
        queue = service.queue("orders", type=bytes, flush=flush)
        command = idle_process.command("answer", place)
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as consumer:
            assert consumer.stdout is not None
            answers = consumer.stdout
            assert answers.readline() == "ready\n"

            def ping() -> int:
                queue.put(_stamped())
                return int(answers.readline())

            try:
                yield ping
            finally:
                queue.put(STOP)
                try:
                    consumer.wait(SECONDS_LIMIT)
                finally:
                    consumer.kill()


@pytest.mark.benchmark(timer=timer)
@pytest.mark.parametrize("flush", [BY_TIME, EVERY_COMMIT], ids=["every", "every_commit"])
@pytest.mark.parametrize(
    ("where", "milliseconds_max", "connected"),
    [("of the same process", 2, _same_process), ("of another process", 20, _other_process)],
    ids=["same", "other"],
)
def test_a_put_wakes_an_idle_consumer(
    *,
    benchmark: Benchmark,
    place: Path,
    report: Report,
    sized: Callable[[int, int], Load],
    where: str,
    milliseconds_max: int,
    connected: Callable[[Path, FlushPolicy], AbstractContextManager[Ping]],
    flush: FlushPolicy,
) -> None:
    """From the beginning of the put, its sync included, to the message in hand."""
    wakes = sized(WAKES, STAMP_BYTES).count
    pauses = random.Random(wakes)
    with connected(place, flush) as ping:
        benchmark.pedantic(
            lambda: timer.report(ping() / 1e9),
            setup=lambda: time.sleep(pauses.uniform(0.5, 1) * PAUSE_SECONDS_MAX),
            rounds=wakes,
            warmup_rounds=3,
        )
    if benchmark.stats is None:
        return
    milliseconds = [seconds * 1e3 for seconds in benchmark.stats.stats.data]
    middle, p99 = median(milliseconds), quantiles(milliseconds, n=100)[-1]
    benchmark.extra_info["milliseconds"] = {"median": middle, "p99": p99}
    report.add(
        Row(
            f"a put wakes an idle consumer {where}, {flush}",
            f"median {significant(middle)} ms, p99 {significant(p99)} ms",
            target=f"median < {milliseconds_max} ms",
            met=middle < milliseconds_max,
        )
    )
