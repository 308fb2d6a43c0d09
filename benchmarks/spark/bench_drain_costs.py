"""What a drain costs, and whose it is: the clock and the processor, beside Parquet in one job and in as many jobs.

All contestants run in turn in one session, each round in new directories. Parquet in one job is the floor. Parquet in
as many jobs as there are batches shows how far Spark itself gets with batches of that size. docs/adr/0066.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.cases.spark_cases import Tables, aggregate, draining, reading, write_parquet
from benchmarks.measuring.contestant import Body, Contestant
from benchmarks.measuring.processor_time import difference, is_known, used_seconds
from benchmarks.measuring.race import Benchmark
from benchmarks.measuring.report import Report
from benchmarks.measuring.rows import Row, spread
from holdfast.arrow.draining.queue_drain import MAX_BYTES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WARMUP_ROUNDS = 2
"""The JVM compiles during these; it needs more runs of the same code than a disk does."""

ROUNDS = 3

SMALL_BYTES = 64 * 2**20
TARGETS = {("to Parquet", SMALL_BYTES): 0.9, ("to Parquet", MAX_BYTES): 1.0, ("aggregate", MAX_BYTES): 0.85}
"""Of the speed of one job, with one batch in flight."""


@dataclass
class _Measured:
    """One contestant, and what its rounds took."""

    contestant: Contestant
    target: float | None = None
    seconds: list[float] = field(default_factory=list)
    processor: list[dict[str, float]] = field(default_factory=list)

    def run(self, place: Path) -> None:
        """Run it once."""
        folder = Path(tempfile.mkdtemp(dir=place))
        try:
            with self.contestant.stage(folder) as body:
                os.sync()
                before, started = used_seconds(), perf_counter()
                body()
                self.seconds.append(perf_counter() - started)
                self.processor.append(difference(before, used_seconds()))
        finally:
            shutil.rmtree(folder)

    def processor_text(self) -> str:
        """Return the medians of the processor's seconds."""
        rounds = self.processor[WARMUP_ROUNDS:]
        kinds = ", ".join(f"{kind} {median(each[kind] for each in rounds):.2f}" for kind in rounds[0])
        return f"{median(sum(each.values()) for each in rounds):.2f} s ({kinds})"


@pytest.mark.spark
@pytest.mark.skipif(not is_known(), reason="/proc tells the times of processes")
@pytest.mark.parametrize("what", ["to Parquet", "aggregate"])
def test_what_a_drain_costs(
    benchmark: Benchmark, spark: SparkSession, tables: Tables, place: Path, report: Report, what: str
) -> None:
    """Both sides have the same columns: all that Parquet holds, or the payloads alone."""
    with _contestants(spark, tables, place, what) as all_measured:

        def run_all() -> None:
            for each in all_measured:
                each.run(place)

        benchmark.pedantic(run_all, rounds=ROUNDS, warmup_rounds=WARMUP_ROUNDS)
    if benchmark.stats is None:
        return
    floor = all_measured[0].seconds[WARMUP_ROUNDS:]
    for each in all_measured:
        ratios = [base / own for base, own in zip(floor, each.seconds[WARMUP_ROUNDS:], strict=True)]
        report.add(
            Row(
                f"What Spark costs, {what}: {each.contestant.label}",
                f"{spread(each.seconds[WARMUP_ROUNDS:], 2, ' s')}",
                f"processor: {each.processor_text()}",
                spread(ratios),
                Row.target if each.target is None else f"≥ {each.target:g}",
                None if each.target is None else median(ratios) >= each.target,
            )
        )
        benchmark.extra_info[each.contestant.label] = {"seconds": each.seconds, "processor": each.processor}


@contextmanager
def _contestants(spark: SparkSession, tables: Tables, place: Path, what: str) -> Iterator[list[_Measured]]:
    """Yield the floor, then the same in jobs of each size of a batch and the drains, in the order of a round."""
    columns = ["payload", "offset", "timestamp"] if what == "to Parquet" else ["payload"]
    run = _runs(what)
    whole = tables.parquet.select(*columns)
    found = [_Measured(reading("Parquet, one job", whole, lambda frame, out: lambda: run(frame, out / "out")))]
    parts_place = Path(tempfile.mkdtemp(dir=place))
    try:
        for max_bytes in (SMALL_BYTES, MAX_BYTES):
            size = f"{max_bytes // 2**20} MiB"
            count = -(-tables.load.count * tables.load.size // max_bytes)
            parts = [each.select(*columns) for each in _split(spark, tables, parts_place / size, count)]
            found.append(_Measured(_in_jobs(f"Parquet, {count} jobs of {size}", parts, run)))
            for in_flight in (1, 2):
                label = f"drain, batches of {size}" + (f", {in_flight} in flight" if in_flight > 1 else "")
                target = TARGETS.get((what, max_bytes)) if in_flight == 1 else None
                make_fn = _into(run)
                case = draining(spark, tables, make_fn, max_bytes, label, columns=columns, in_flight=in_flight)
                found.append(_Measured(case, target))
        yield found
    finally:
        shutil.rmtree(parts_place)


def _runs(what: str) -> Callable[[DataFrame, Path], object]:
    return write_parquet if what == "to Parquet" else lambda frame, out: aggregate(frame)


def _into(run: Callable[[DataFrame, Path], object]) -> Callable[[Path], Any]:
    return lambda folder: lambda frame, batch_id: run(frame, folder / "out" / f"batch_id={batch_id}")


def _split(spark: SparkSession, tables: Tables, place: Path, count: int) -> list[DataFrame]:
    """Copy the Parquet files into directories of equally many messages; return one DataFrame of each."""
    ends = [tables.load.count * each // count for each in range(count + 1)]
    for number, (first, end) in enumerate(pairwise(ends)):
        rows = tables.parquet.where(f"offset >= {first} AND offset < {end}")
        write_parquet(rows, place / str(number))
    return [spark.read.parquet(str(place / str(number))) for number in range(count)]


def _in_jobs(label: str, parts: list[DataFrame], run: Callable[[DataFrame, Path], object]) -> Contestant:
    """Return what does the same with each part, one after the other."""

    @contextmanager
    def stage(folder: Path) -> Iterator[Body]:
        def body() -> None:
            for number, part in enumerate(parts):
                run(part, folder / "out" / str(number))

        yield body

    return Contestant(label, stage)
