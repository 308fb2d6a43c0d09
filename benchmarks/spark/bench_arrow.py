"""The same queue without Spark, in one process: beside plain Parquet by pyarrow, and beside a drain with Spark.

The payloads, and what both sides write, are those of ``bench_spark``. pyarrow reads and writes Parquet in threads. A
drain with Arrow syncs what it writes; the others do not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks.cases.spark_cases import COLUMNS, Tables, draining_to_parquet
from benchmarks.measuring.contestant import Against, Body, Contestant
from benchmarks.measuring.race import Race
from holdfast.arrow import DirectoryWriter, drain, scan
from holdfast.arrow.draining.queue_drain import MAX_BYTES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _scanning(tables: Tables) -> Contestant:
    @contextmanager
    def stage(folder: Path) -> Iterator[Body]:
        yield lambda: sum(len(batch) for batch in scan(tables.path, columns=["payload"]))

    return Contestant("holdfast", stage)


def _reading(tables: Tables) -> Contestant:
    from pyarrow import dataset

    @contextmanager
    def stage(folder: Path) -> Iterator[Body]:
        files = dataset.dataset(tables.parquet_path, format="parquet")
        yield lambda: sum(len(batch) for batch in files.to_batches(columns=["payload"]))

    return Contestant("the same from Parquet by pyarrow", stage)


def _draining(tables: Tables) -> Contestant:
    @contextmanager
    def stage(folder: Path) -> Iterator[Body]:
        counts = []

        def body() -> None:
            writer = DirectoryWriter(folder / "out")
            report = drain(tables.path, writer, group=f"arrow-{folder.name}", columns=COLUMNS)
            counts.append((report.message_count, report.lost_count))

        yield body
        assert counts == [(tables.load.count, 0)]

    return Contestant("holdfast", stage)


def _copying(tables: Tables) -> Contestant:
    from pyarrow import dataset

    @contextmanager
    def stage(folder: Path) -> Iterator[Body]:
        files = dataset.dataset(tables.parquet_path, format="parquet")
        yield lambda: dataset.write_dataset(files, folder / "copy", format="parquet")

    return Contestant("the same from Parquet by pyarrow", stage)


@pytest.mark.spark
def test_a_scan(race: Race, tables: Tables) -> None:
    """One column of all messages, batch by batch; nothing is kept."""
    race("Arrow scans 1 column", tables.load, _scanning(tables), [Against(_reading(tables))], rounds=3)


@pytest.mark.spark
def test_a_drain_with_arrow(race: Race, spark: SparkSession, tables: Tables) -> None:
    """Into a directory of Parquet for each batch."""
    beside = [
        Against(_copying(tables)),
        Against(draining_to_parquet(spark, tables, MAX_BYTES, "a drain with Spark")),
    ]
    race("Arrow drains, to Parquet", tables.load, _draining(tables), beside, rounds=3)
