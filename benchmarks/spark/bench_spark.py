"""Spark reads, drains and fills a queue, beside the same with Parquet files, at local[2]. Skipped without Java.

Payloads are random: equal ones would be stored once in Parquet, and no queue holds one message 500,000 times. Both
sides are read from the page cache and write the same columns; checksums of the queue are verified. A drain is the whole
call, batch by batch; the Parquet side is one job.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

import pytest

from benchmarks.cases.spark_cases import (
    MakeBody,
    Tables,
    aggregate,
    draining,
    draining_to_parquet,
    reading,
    write_parquet,
)
from benchmarks.measuring.contestant import Against, Body, Contestant
from benchmarks.measuring.load import Load
from benchmarks.measuring.race import Benchmark, Race
from benchmarks.measuring.report import Report
from benchmarks.measuring.rows import Row, spread
from holdfast import PersistentQueue
from holdfast.arrow.draining.queue_drain import MAX_BYTES
from holdfast.spark import DrainProgress, drain

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from holdfast.spark.draining.drainer import RunBatch

AGGREGATE_AT_LEAST = 0.85
TO_PARQUET_AT_LEAST = 0.8
SINK_AT_LEAST = 0.6

BATCH_COUNT = 25_000
BATCH_SECONDS_MAX = 0.3
"""What a batch of so many messages may cost besides being read."""

PARQUET = "the same from Parquet"


def _aggregate(frame: DataFrame, folder: Path) -> Body:
    return lambda: aggregate(frame)


def _to_parquet(frame: DataFrame, folder: Path) -> Body:
    return lambda: write_parquet(frame, folder / "out")


# -- Reading -----------------------------------------------------------------------------------------------------------


@pytest.mark.spark
@pytest.mark.parametrize(
    ("title", "make_body", "at_least"),
    [("aggregate", _aggregate, AGGREGATE_AT_LEAST), ("to Parquet", _to_parquet, TO_PARQUET_AT_LEAST)],
    ids=["aggregate", "to-parquet"],
)
def test_spark_reads_a_queue(race: Race, tables: Tables, title: str, make_body: MakeBody, at_least: float) -> None:
    """Everything a task does: open, verify, gather, hand to the JVM."""
    case = reading("holdfast", tables.queue, make_body)
    floor = reading(PARQUET, tables.payloads, make_body)
    race(f"Spark reads 1 column, {title}", tables.load, case, [Against(floor, at_least)], rounds=3)


# -- Draining ----------------------------------------------------------------------------------------------------------


@pytest.mark.spark
@pytest.mark.parametrize("in_flight", [1, 2])
@pytest.mark.parametrize("max_bytes", [64 * 2**20, MAX_BYTES], ids=["64-MiB", "default"])
def test_a_drain_to_parquet(race: Race, spark: SparkSession, tables: Tables, max_bytes: int, in_flight: int) -> None:
    """Both sides write payload, offset and timestamp; the default size of a batch has to reach the target."""
    case = draining_to_parquet(spark, tables, max_bytes, in_flight=in_flight)
    floor = reading(PARQUET, tables.parquet, _to_parquet)
    is_default = max_bytes == MAX_BYTES
    against = Against(floor, TO_PARQUET_AT_LEAST if is_default else None)
    title = _drain_title("to Parquet", max_bytes) + (f", {in_flight} in flight" if in_flight > 1 else "")
    race(title, tables.load, case, [against], rounds=3 if is_default else 2)


@pytest.mark.spark
def test_a_drain_that_aggregates(race: Race, spark: SparkSession, tables: Tables) -> None:
    """Counts the messages and their bytes; both sides read the payloads alone."""

    def make_fn(folder: Path) -> RunBatch:
        return lambda frame, batch_id: aggregate(frame)

    case = draining(spark, tables, make_fn, MAX_BYTES, columns=["payload"])
    floor = reading(PARQUET, tables.payloads, _aggregate)
    title = _drain_title("aggregate", MAX_BYTES)
    race(title, tables.load, case, [Against(floor, AGGREGATE_AT_LEAST)], rounds=3)


def _drain_title(what: str, max_bytes: int) -> str:
    return f"Spark drains, {what}, batches of {max_bytes // 2**20:,} MiB"


@pytest.mark.spark
def test_what_a_drained_batch_costs_besides_being_read(
    benchmark: Benchmark, spark: SparkSession, tables: Tables, report: Report
) -> None:
    """A batch from before its reservation to behind its commit, less its share of one read of everything."""
    batches = tables.load.count // BATCH_COUNT
    reads: list[float] = []
    costs: list[float] = []

    def read_all() -> None:
        started = perf_counter()
        aggregate(tables.queue)
        reads.append((perf_counter() - started) / batches)

    def note(progress: DrainProgress) -> None:
        costs.append(progress.seconds - reads[-1])

    def drain_all() -> None:
        group = f"batch-{len(reads)}"
        drain(
            tables.path,
            spark,
            lambda frame, batch_id: aggregate(frame),
            max_messages=BATCH_COUNT,
            max_bytes=None,
            group=group,
            on_progress=note,
        )

    benchmark.pedantic(drain_all, setup=read_all, rounds=2, warmup_rounds=1)
    if benchmark.stats is None:
        return
    timed = costs[batches:]
    benchmark.extra_info.update(fixed_seconds=timed, read_seconds=reads[1:])
    report.add(
        Row(
            f"Spark drains, one batch of {BATCH_COUNT:,} messages of 2,000 bytes: besides being read",
            spread([cost * 1e3 for cost in timed], 0, " ms"),
            f"being read: {median(reads[1:]) * 1e3:.0f} ms",
            target=f"< {BATCH_SECONDS_MAX * 1e3:g} ms",
            met=median(timed) < BATCH_SECONDS_MAX,
        )
    )


# -- Writing -----------------------------------------------------------------------------------------------------------


@pytest.mark.spark
def test_spark_fills_a_queue(race: Race, tables: Tables) -> None:
    """Half of the payloads, from Parquet into a queue that nobody owns, beside from Parquet into Parquet."""
    load = Load(tables.load.count // 2, tables.load.size)
    half = tables.parquet.where(f"offset < {load.count}").select("payload")
    floor = reading("the same into Parquet", half, _to_parquet)
    race("Spark writes into a queue", load, _filling(half, load), [Against(floor, SINK_AT_LEAST)], rounds=3)


def _filling(frame: DataFrame, load: Load) -> Contestant:
    @contextmanager
    def stage(folder: Path) -> Iterator[Body]:
        path = folder / "queue"
        PersistentQueue(path, mode="exclusive").close()
        yield lambda: frame.write.format("holdfast").mode("append").option("txnid", folder.name).save(str(path))
        with PersistentQueue(path, mode="exclusive") as queue:
            assert queue.stats().depth == load.count

    return Contestant("holdfast", stage)
