"""A drain whose tasks do not see the queue, beside the same drain whose tasks do. docs/spark-cluster.md.

The driver names the queue relative to its own working directory, which is not that of Spark's workers. So they find no
queue there, and ask the range server, which runs on the same two processors as they do.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks.cases.spark_cases import Tables, aggregate, draining, draining_to_parquet
from benchmarks.measuring.contestant import Against, Body, Contestant
from benchmarks.measuring.race import Race
from holdfast.arrow.draining.queue_drain import MAX_BYTES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from holdfast.spark.draining.drainer import RunBatch

AT_LEAST = 0.5

_OWN = Path("/proc/self/cwd")


def _unseen(unseen: Contestant, tables: Tables) -> Contestant:
    @contextmanager
    def stage(folder: Path) -> Iterator[Body]:
        own = folder / f"unseen-{folder.name}"  # a group and an output of its own
        own.mkdir()
        with chdir(tables.path.parent), unseen.stage(own) as body:
            yield body

    return Contestant("by the range server", stage)


def _aggregate(folder: Path) -> RunBatch:
    return lambda frame, batch_id: aggregate(frame)


@pytest.mark.spark
@pytest.mark.skipif(not os.path.exists(_OWN), reason="/proc is needed to name a directory that tasks do not have")
@pytest.mark.parametrize("what", ["to Parquet", "aggregate"])
def test_a_drain_by_the_range_server(race: Race, spark: SparkSession, tables: Tables, what: str) -> None:
    """Everything that reaches Spark's tasks comes by TLS."""
    theirs = replace(tables, path=_OWN / tables.path.name)
    if what == "aggregate":
        seen = draining(spark, tables, _aggregate, MAX_BYTES, columns=["payload"])
        unseen = draining(spark, theirs, _aggregate, MAX_BYTES, columns=["payload"], serve_address="127.0.0.1")
    else:
        seen = draining_to_parquet(spark, tables, MAX_BYTES)
        unseen = draining_to_parquet(spark, theirs, MAX_BYTES, serve_address="127.0.0.1")
    floor = replace(seen, label="tasks that see the queue")
    race(
        f"Spark drains by the range server, {what}",
        tables.load,
        _unseen(unseen, tables),
        [Against(floor, AT_LEAST)],
        rounds=3,
    )
