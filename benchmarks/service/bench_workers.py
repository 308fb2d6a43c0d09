"""How many messages a second the workers of a service handle, with a handler that does nothing."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from time import perf_counter

import pytest

from benchmarks.cases.queue_cases import EVERY_COMMIT
from benchmarks.measuring.load import BATCH, DATA_FILE_BYTES, Load
from benchmarks.measuring.race import WARMUP_ROUNDS, Benchmark
from benchmarks.measuring.report import Report
from benchmarks.measuring.rows import NOTHING, Row, significant, spread
from holdfast import FlushPolicy, QueueService, TypedQueue

RECORDS = 100_000
RECORDS_TO_PROCESSES = 20_000
SIZE = 500
ROUNDS = 5

BY_TIME = FlushPolicy.every(seconds=0.05)

PER_SECOND_MIN = 30_000
"""What a quiet machine with two cores has to do in four threads."""


handle = len
"""Does nothing, and can be imported by other processes."""


def _fill(queue: TypedQueue[bytes], load: Load) -> None:
    for _ in range(load.batches):
        queue.put_many([load.payload] * BATCH)


def _wait_until_done(queue: TypedQueue[bytes]) -> None:
    while queue.stats().depth:
        time.sleep(0.001)


def _by_hand(queue: TypedQueue[bytes]) -> None:
    """Take batches in this thread, and acknowledge each."""
    for batch in queue.consume_many(BATCH, max_wait=0, stop_when_empty=True):
        for message in batch:
            handle(message.body)


class _Shop:
    """A service whose consumer runs, with a queue that is paused while it is filled."""

    def __init__(self, folder: Path, flush: FlushPolicy, *, concurrency: int = 1, processes: int = 0) -> None:
        self._service = QueueService(folder, catalog=False)
        self.queue = self._service.queue("orders", type=bytes, flush=flush, data_file_bytes=DATA_FILE_BYTES)
        self._service.consumer(self.queue, concurrency=concurrency, processes=processes)(handle)
        self._thread = threading.Thread(target=self._service.run)

    def __enter__(self) -> _Shop:
        self.queue.put_many([b"so that everything has begun"] * BATCH)
        self._thread.start()
        _wait_until_done(self.queue)
        self.queue.pause()
        return self

    def __exit__(self, *_: object) -> None:
        self._service.stop()
        self._thread.join()
        self._service.close()

    def work(self) -> None:
        """Handle everything that is there."""
        self.queue.resume()
        _wait_until_done(self.queue)


@pytest.mark.parametrize(
    ("how", "flush", "options", "records", "at_least"),
    [
        ("4 threads", BY_TIME, {"concurrency": 4}, RECORDS, PER_SECOND_MIN),
        ("4 threads", EVERY_COMMIT, {"concurrency": 4}, RECORDS, None),
        ("2 processes", BY_TIME, {"processes": 2}, RECORDS_TO_PROCESSES, None),
    ],
    ids=["threads", "threads-synced", "processes"],
)
def test_workers_whose_handler_does_nothing(
    *,
    benchmark: Benchmark,
    place: Path,
    report: Report,
    sized: Callable[[int, int], Load],
    how: str,
    flush: FlushPolicy,
    options: dict[str, int],
    records: int,
    at_least: int | None,
) -> None:
    """From the moment at which the queue, full, hands out again; beside a loop in one thread over batches."""
    load = sized(records, SIZE)
    stack = ExitStack()
    by_hand_seconds: list[float] = []

    def by_hand(folder: Path) -> float:
        with QueueService(folder, catalog=False) as service:
            queue = service.queue("orders", type=bytes, flush=flush, data_file_bytes=DATA_FILE_BYTES)
            _fill(queue, load)
            os.sync()
            started = perf_counter()
            _by_hand(queue)
            return perf_counter() - started

    def set_up() -> tuple[tuple[_Shop], dict[str, object]]:
        folder = place / str(len(by_hand_seconds))
        folder.mkdir()
        by_hand_seconds.append(by_hand(folder / "by hand"))
        shop = stack.enter_context(_Shop(folder / "workers", flush, **options))
        _fill(shop.queue, load)
        os.sync()
        return (shop,), {}

    with stack:
        benchmark.pedantic(
            lambda shop: shop.work(),
            setup=set_up,
            teardown=lambda shop: stack.close(),
            rounds=ROUNDS,
            warmup_rounds=WARMUP_ROUNDS,
        )
    if benchmark.stats is None:
        return
    seconds: list[float] = benchmark.stats.stats.data
    loop_seconds = by_hand_seconds[WARMUP_ROUNDS:]
    per_second = load.count / median(seconds)
    benchmark.extra_info["records_per_second"] = per_second
    report.add(
        Row(
            f"workers in {how}, handler does nothing, {flush}, {SIZE} bytes",
            f"{significant(per_second)}/s",
            f"a loop over batches of {BATCH}: {significant(load.count / median(loop_seconds))}/s",
            spread([loop / work for loop, work in zip(loop_seconds, seconds, strict=True)]),
            NOTHING if at_least is None else f"≥ {at_least:,}/s",
            None if at_least is None else per_second >= at_least,
        )
    )
