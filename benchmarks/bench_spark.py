"""Spark reads a queue, beside Spark reading the same payloads from Parquet, at local[2]. Skipped where Java is missing.

Payloads are random: equal ones would be stored once in Parquet, and no queue holds one message 500,000 times.
Both sides are read from the page cache and give the same column; checksums of the queue are verified.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks.contestant import Against, Body, Contestant
from benchmarks.load import BATCH, DATA_FILE_BYTES, Load
from benchmarks.race import Race
from holdfast import ConfigError, FlushPolicy, PersistentQueue
from holdfast.spark.session import check_java, check_spark, local_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SETTINGS = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.driver.memory": "2g"}
AGGREGATE_AT_LEAST = 0.85
TO_PARQUET_AT_LEAST = 0.8

MakeBody = Callable[["DataFrame", Path], Body]


@dataclass(frozen=True)
class Tables:
    """The same payloads twice."""

    load: Load
    queue: DataFrame
    queue_all_columns: DataFrame
    parquet: DataFrame


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """Return a session with two tasks at once."""
    try:
        check_spark()
        check_java()
    except ConfigError as error:
        pytest.skip(str(error))
    session = local_session("local[2]", app_name="holdfast benchmarks", settings=SETTINGS)
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="module")
def tables(request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Tables:
    """Return 1 GB of payloads as a queue and as Parquet; with ``--quick``, a tenth."""
    folder = tmp_path_factory.mktemp("spark")
    load = Load(50_000 if request.config.getoption("quick") else 500_000, 2000)
    draw = random.Random(load.size)
    with PersistentQueue(folder / "queue", flush=FlushPolicy.never(), data_file_bytes=DATA_FILE_BYTES) as queue:
        for _ in range(load.batches):
            queue.put_many([draw.randbytes(load.size) for _ in range(BATCH)])
    source = spark.read.format("holdfast")
    everything = source.load(str(folder / "queue"))
    payloads = source.schema("payload binary").load(str(folder / "queue"))
    payloads.write.parquet(str(folder / "parquet"))
    return Tables(load, payloads, everything, spark.read.parquet(str(folder / "parquet")))


def _aggregate(frame: DataFrame, folder: Path) -> Body:
    from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

    return lambda: frame.agg(F.sum(F.length("payload")), F.max("payload")).collect()


def _to_parquet(frame: DataFrame, folder: Path) -> Body:
    return lambda: frame.write.mode("overwrite").parquet(str(folder / "out"))


def _reading(label: str, frame: DataFrame, make_body: MakeBody) -> Contestant:
    @contextmanager
    def stage(folder: Path) -> Iterator[Body]:
        yield make_body(frame, folder)

    return Contestant(label, stage)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("title", "make_body", "at_least"),
    [("aggregate", _aggregate, AGGREGATE_AT_LEAST), ("to Parquet", _to_parquet, TO_PARQUET_AT_LEAST)],
    ids=["aggregate", "to-parquet"],
)
@pytest.mark.parametrize("columns", ["payload", "all columns"])
def test_spark_reads_a_queue(
    race: Race, tables: Tables, title: str, make_body: MakeBody, at_least: float, columns: str
) -> None:
    """Everything a task does: open, verify, gather, hand to the JVM."""
    is_payload = columns == "payload"
    case = _reading("holdfast", tables.queue if is_payload else tables.queue_all_columns, make_body)
    floor = _reading("the same payloads from Parquet", tables.parquet, make_body)
    race(
        f"Spark, {title}, {columns}",
        tables.load,
        case,
        [Against(floor, at_least if is_payload else None)],
        rounds=5,
    )
