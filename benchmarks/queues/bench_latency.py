"""How long after a put the message is in the hands of a consumer that waits for it. For information: no target."""

from __future__ import annotations

import random
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from statistics import median, quantiles

import pytest

from benchmarks.cases.queue_cases import EVERY_COMMIT, NEVER, open_queue
from benchmarks.measuring.load import Load
from benchmarks.measuring.race import Benchmark
from benchmarks.measuring.report import Report
from benchmarks.measuring.reported_timer import ReportedTimer
from benchmarks.measuring.rows import Row, significant
from benchmarks.processes import fresh_process
from benchmarks.processes.fresh_process import STAMP_BYTES, STOP
from holdfast import FlushPolicy, PersistentQueue
from holdfast.queue.options.queue_options import Mode

timer = ReportedTimer()

PINGS = 500
PAUSE_SECONDS_MAX = 0.01
"""Between two puts; of random length, so that no beat of the consumer is met or missed each time."""

Ping = Callable[[], int]
"""Puts one message and returns the nanoseconds until it was taken."""

SECONDS_LIMIT = 30.0
"""For one answer between threads, and for the other process to end."""


def _stamped(load: Load) -> bytes:
    return time.monotonic_ns().to_bytes(STAMP_BYTES, "little") + load.payload[STAMP_BYTES:]


@contextmanager
def _between_threads(place: Path, load: Load, flush: FlushPolicy, mode: Mode = "exclusive") -> Iterator[Ping]:
    answers: SimpleQueue[int] = SimpleQueue()

    def consume(queue: PersistentQueue) -> None:
        while (stamp := queue.get()[:STAMP_BYTES]) != STOP:
            answers.put(time.monotonic_ns() - int.from_bytes(stamp, "little"))

    with open_queue(place, flush, mode) as queue:
        consumer = threading.Thread(target=consume, args=(queue,))
        consumer.start()

        def ping() -> int:
            queue.put(_stamped(load))
            return answers.get(timeout=SECONDS_LIMIT)

        try:
            yield ping
        finally:
            queue.put(STOP)
            consumer.join()


@contextmanager
def _between_processes(place: Path, load: Load, flush: FlushPolicy) -> Iterator[Ping]:
    with open_queue(place, flush, "shared") as queue:
        policy = "every_commit" if flush.syncs_every_commit else "never"
        command = fresh_process.command("relay", place, policy)
        with subprocess.Popen(command, cwd=fresh_process.ROOT, stdout=subprocess.PIPE, text=True) as consumer:
            assert consumer.stdout is not None
            answers = consumer.stdout
            assert answers.readline() == "ready\n"

            def ping() -> int:
                queue.put(_stamped(load))
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
@pytest.mark.parametrize("flush", [NEVER, EVERY_COMMIT], ids=["never", "every_commit"])
@pytest.mark.parametrize(
    ("between", "connected"),
    [
        ("two threads", _between_threads),
        ("two threads that share", partial(_between_threads, mode="shared")),
        ("two processes that share", _between_processes),
    ],
    ids=["threads", "sharing-threads", "sharing-processes"],
)
def test_put_to_get_latency(
    *,
    benchmark: Benchmark,
    place: Path,
    report: Report,
    sized: Callable[[int, int], Load],
    between: str,
    connected: Callable[[Path, Load, FlushPolicy], AbstractContextManager[Ping]],
    flush: FlushPolicy,
) -> None:
    """One message at a time, to a consumer that sits in ``get``."""
    load = sized(PINGS, 140)
    pauses = random.Random(load.count)

    with connected(place, load, flush) as ping:
        benchmark.pedantic(
            lambda: timer.report(ping() / 1e9),
            setup=lambda: time.sleep(pauses.uniform(0.1, 1) * PAUSE_SECONDS_MAX),
            rounds=load.count,
            warmup_rounds=20,
        )
    if benchmark.stats is None:
        return
    microseconds = [seconds * 1e6 for seconds in benchmark.stats.stats.data]
    middle, p99 = median(microseconds), quantiles(microseconds, n=100)[-1]
    benchmark.extra_info["microseconds"] = {"median": middle, "p99": p99}
    title = f"put → get between {between}, {flush}"
    report.add(Row(title, f"median {significant(middle)} µs, p99 {significant(p99)} µs"))
