"""What the benchmarks of Spark share: a session, the payloads as a queue and as Parquet, what is done with them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks.measuring.contestant import Body, Contestant
from benchmarks.measuring.load import BATCH, DATA_FILE_BYTES, Load
from holdfast import ConfigError, FlushPolicy, PersistentQueue
from holdfast.spark import drain
from holdfast.spark.draining.drainer import RunBatch
from holdfast.spark.session import check_java, check_spark, local_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SETTINGS = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.driver.memory": "2g"}

COLUMNS = ("payload", "offset", "timestamp")
"""What the Parquet files hold, and what both sides write."""

_KEEPER = "keeper"
"""A group that finishes nothing, so that every round drains the same data files."""

MakeBody = Callable[["DataFrame", Path], Body]
MakeFn = Callable[[Path], RunBatch]


@dataclass(frozen=True)
class Tables:
    """The same payloads twice.

    Attributes
    ----------
    load : Load
        How many there are.
    path : Path
        The queue.
    parquet_path : Path
        The Parquet files.
    queue : DataFrame
        Its payloads.
    parquet : DataFrame
        The payloads with offset and timestamp.
    """

    load: Load
    path: Path
    parquet_path: Path
    queue: DataFrame
    parquet: DataFrame

    @property
    def payloads(self) -> DataFrame:
        """The payloads from Parquet, which reads no other column then."""
        return self.parquet.select("payload")


def session() -> SparkSession:
    """Return a session with two tasks at once; skips where Java is missing."""
    try:
        check_spark()
        check_java()
    except ConfigError as error:
        pytest.skip(str(error))
    spark = local_session("local[2]", app_name="holdfast benchmarks", settings=SETTINGS)
    spark.sparkContext.setLogLevel("OFF")
    return spark


def make_tables(spark: SparkSession, folder: Path, load: Load) -> Tables:
    """Fill a queue with random payloads, and Parquet files from it."""
    path, parquet = folder / "queue", folder / "parquet"
    draw = random.Random(load.size)
    with PersistentQueue(path, mode="exclusive", flush=FlushPolicy.never(), data_file_bytes=DATA_FILE_BYTES) as queue:
        for _ in range(load.batches):
            queue.put_many([draw.randbytes(load.size) for _ in range(BATCH)])
        queue.groups.create(_KEEPER)
    source = spark.read.format("holdfast")
    source.load(str(path)).select(*COLUMNS).write.parquet(str(parquet))
    payloads = source.schema("payload binary").load(str(path))
    return Tables(load, path, parquet, payloads, spark.read.parquet(str(parquet)))


def reading(label: str, frame: DataFrame, make_body: MakeBody) -> Contestant:
    """Return what does something with a DataFrame."""

    @contextmanager
    def stage(folder: Path) -> Iterator[Body]:
        yield make_body(frame, folder)

    return Contestant(label, stage)


def draining(
    spark: SparkSession,
    tables: Tables,
    make_fn: MakeFn,
    max_bytes: int,
    label: str = "holdfast",
    *,
    columns: Sequence[str],
    in_flight: int = 1,
    serve_address: str | None = None,
) -> Contestant:
    """Return a drain of the whole queue, as one call: reserve, run, commit, batch by batch; each round a new group."""

    @contextmanager
    def stage(folder: Path) -> Iterator[Body]:
        counts = []

        def body() -> None:
            report = drain(
                tables.path,
                spark,
                make_fn(folder),
                max_bytes=max_bytes,
                group=folder.name,
                columns=columns,
                in_flight=in_flight,
                serve_address=serve_address,
            )
            counts.append((report.message_count, report.lost_count))

        yield body
        assert counts == [(tables.load.count, 0)]

    return Contestant(label, stage)


def draining_to_parquet(
    spark: SparkSession,
    tables: Tables,
    max_bytes: int,
    label: str = "holdfast",
    *,
    in_flight: int = 1,
    serve_address: str | None = None,
) -> Contestant:
    """Return a drain with Spark into a directory for each batch."""

    def make_fn(folder: Path) -> RunBatch:
        return lambda frame, batch_id: write_parquet(frame, folder / "out" / f"batch_id={batch_id}")

    return draining(
        spark, tables, make_fn, max_bytes, label, columns=COLUMNS, in_flight=in_flight, serve_address=serve_address
    )


def aggregate(frame: DataFrame) -> int:
    """Count the payloads and their bytes."""
    from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

    (row,) = frame.agg(F.count("*").alias("count"), F.sum(F.length("payload"))).collect()
    return int(row["count"])


def write_parquet(frame: DataFrame, out: Path) -> None:
    """Write a DataFrame as Parquet, over what is there."""
    frame.write.mode("overwrite").parquet(str(out))
