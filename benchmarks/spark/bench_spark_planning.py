"""What Spark has to know before it reads: planning a snapshot, and a batch of a drain, before a backlog of any length.

No Java is needed: Spark calls the same code in a Python process of its own. docs/spark-drain.md.
"""

from __future__ import annotations

import random
from pathlib import Path
from statistics import median
from time import perf_counter

import pytest

from benchmarks.cases.long_backlog import DATA_FILE_BYTES, fill_all_steps, lengthen
from benchmarks.measuring.race import Benchmark
from benchmarks.measuring.report import Report
from benchmarks.measuring.rows import Row, spread
from holdfast import PersistentQueue

FILE_COUNTS = [10**9 // DATA_FILE_BYTES + 1, 10**10 // DATA_FILE_BYTES + 1, 10**11 // DATA_FILE_BYTES + 1, 10_000]
"""1, 10, 100 GB; and what the target is for."""

ROUNDS = 5
SNAPSHOT_SECONDS_MAX = 2.0
BATCH_BYTES = 8 * 2**20
"""Several of them stand in the data files that are real."""


@pytest.fixture
def backlog(request: pytest.FixtureRequest, place: Path) -> Path:
    """Return a queue of so many data files."""
    pytest.importorskip("pyspark", reason="pyspark is missing: install holdfast[spark]")
    path = place / "queue"
    fill_all_steps(path, random.Random(1).randbytes(2000))
    lengthen(path, request.param)
    return path


@pytest.mark.parametrize("backlog", FILE_COUNTS, ids=str, indirect=True)
def test_planning_before_a_backlog(benchmark: Benchmark, backlog: Path, report: Report) -> None:
    """The snapshot lists all data files, as it reads them all; a batch looks at those that it takes."""
    file_count = len(list((backlog / "data").iterdir()))
    benchmark.pedantic(lambda: _plan_snapshot(backlog), rounds=ROUNDS, warmup_rounds=1)
    batches = _seconds_of_batches(backlog, ROUNDS)
    if benchmark.stats is None:
        return
    seconds: list[float] = benchmark.stats.stats.data
    title = f"Spark, planning, {file_count:,} data files, {file_count * DATA_FILE_BYTES / 1e9:,.0f} GB"
    has_target = file_count == FILE_COUNTS[-1]
    report.add(
        Row(
            f"{title}: reading all",
            spread([each * 1e3 for each in seconds], 1, " ms"),
            target=f"< {SNAPSHOT_SECONDS_MAX:g} s" if has_target else Row.target,
            met=median(seconds) < SNAPSHOT_SECONDS_MAX if has_target else None,
        )
    )
    report.add(Row(f"{title}: batch of {BATCH_BYTES // 2**20} MiB", spread([each * 1e3 for each in batches], 2, " ms")))
    benchmark.extra_info.update(file_count=file_count, batch_seconds=batches)


def _plan_snapshot(path: Path) -> None:
    from holdfast.spark.data_source import HoldfastDataSource
    from holdfast.spark.reading.schema import SCHEMA

    HoldfastDataSource({"path": str(path)}).reader(SCHEMA).partitions()


def _seconds_of_batches(path: Path, count: int) -> list[float]:
    """Return how long it takes to reserve a batch and to find out what its tasks read; the group has begun by then."""
    from holdfast.arrow.draining.plan import plan_drain
    from holdfast.persistence.format.report import Damage

    seconds = []
    with PersistentQueue(path, mode="shared") as queue:
        for _ in range(1 + count):
            started = perf_counter()
            reservation = queue.reservations.take(max_bytes=BATCH_BYTES)
            assert reservation is not None
            plan_drain(queue, reservation, 2, damage := list[Damage]()).to_text()
            assert damage == []
            seconds.append(perf_counter() - started)
            queue.reservations.commit(reservation)
        assert queue.recovery.lost_count == 0
    return seconds[1:]
