"""Spark Connect: a client without a JVM reads and drains. Runs in `make test-connect`, which installs what it needs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from holdfast.spark import drain
from holdfast.spark.draining.directories import DirectoryWriter
from support.spark.drains import fill

pytestmark = [pytest.mark.spark, pytest.mark.connect, pytest.mark.timeout(600)]  # a server starts


@pytest.fixture(scope="module")
def connected(small_sparks: None) -> Iterator[Any]:
    """Return a session of a server that runs here."""
    del small_sparks
    if find_spec("grpc") is None or find_spec("pandas") is None:
        if os.environ.get("HOLDFAST_TEST_REQUIRE_CONNECT") == "1":
            pytest.fail("HOLDFAST_TEST_REQUIRE_CONNECT=1, and pyspark[connect] is not installed", pytrace=False)
        pytest.skip("pyspark[connect] is not installed: make test-connect")
    from pyspark.sql import SparkSession

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)  # the server finds the format there
        session = SparkSession.builder.remote("local[2]").getOrCreate()
        yield session
        session.stop()


def test_a_client_reads_and_drains_batches_of_any_size(connected: Any, tmp_path: Path) -> None:
    """It has no ``sparkContext``; the server knows the format by itself; rows are counted while they are written."""
    from pyspark.sql.types import StructType

    path, out = tmp_path / "q", tmp_path / "out"
    fill(path, range(2500))
    assert connected.read.format("holdfast").load(str(path)).count() == 2500
    writer = DirectoryWriter(str(out), "parquet", StructType.fromDDL("id BIGINT"))
    report = drain(path, connected, writer, max_messages=2000, group="night")
    assert (len(report.batch_ids), report.message_count, report.depth, writer.unfit_count) == (2, 2500, 0, 0)
    rows = connected.read.parquet(str(out)).select("id").orderBy("id").collect()
    assert [row.id for row in rows] == list(range(2500))
