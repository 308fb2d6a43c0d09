"""One queue drained to Parquet by each way from one machine to a cluster, each beside Parquet to Parquet by the same.

Each way is a process, which runs both sides in turn. The cluster is Spark's own master with two workers of one core, on
this machine: it shows what the way costs, and not what more machines gain. docs/scaling.md explains the ways.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.cases.spark_cases import Tables
from benchmarks.measuring.race import Benchmark
from benchmarks.measuring.report import Report
from benchmarks.measuring.rows import Comparison
from benchmarks.processes.drain_way import measured

CLUSTER = "local-cluster[2,1,1024]"

WAYS = {
    "Arrow": ("arrow", "seen"),
    "Spark at local[2]": ("local[2]", "seen"),
    "a cluster that sees the queue": (CLUSTER, "seen"),
    "a cluster that does not": (CLUSTER, "unseen"),
}

ROUNDS = 3


@pytest.mark.spark
@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="hides the queue by /proc")
@pytest.mark.parametrize("name", WAYS)
def test_ways_to_drain(benchmark: Benchmark, report: Report, tables: Tables, tmp_path: Path, name: str) -> None:
    """Every message, with payload, offset and timestamp on both sides."""
    way, sight = WAYS[name]
    found: dict[str, list[float]] = {}

    def run() -> None:
        found.update(measured(way, tables.path, tables.parquet_path, tmp_path, ROUNDS, sight))

    benchmark.pedantic(run)
    assert set(found.pop("messages")) == {tables.load.count}
    comparison = Comparison(f"drained by {name}", tables.load, found["drain"], "Parquet by it", found["floor"], None)
    benchmark.extra_info.update(comparison.figures())
    report.add(comparison.row())
