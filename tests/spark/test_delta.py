"""A drain into Delta Lake counts every message once. Runs in `make test-delta`, which installs versions that fit."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.spark import drain
from holdfast.spark.session import local_session
from support.spark.drains import fill

SCALA = "2.13"
"""Spark 4 has no other."""

pytestmark = [pytest.mark.spark, pytest.mark.delta, pytest.mark.timeout(600)]  # fetches jars, and starts a JVM


@pytest.fixture(scope="module")
def delta(tmp_path_factory: pytest.TempPathFactory, small_sparks: None) -> Iterator[Any]:
    """Return a session with Delta Lake, as its own documentation sets it up."""
    from importlib.metadata import PackageNotFoundError, version

    del small_sparks
    try:
        release = version("delta-spark")
    except PackageNotFoundError:
        if os.environ.get("HOLDFAST_TEST_REQUIRE_DELTA") == "1":
            raise
        pytest.skip("delta-spark is not installed: make test-delta")
    spark_release = ".".join(version("pyspark").split(".")[:2])
    settings = {
        "spark.jars.packages": f"io.delta:delta-spark_{spark_release}_{SCALA}:{release}",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.ui.enabled": "false",
    }
    session = local_session("local[2]", app_name="holdfast and delta", settings=settings)
    yield session
    session.stop()


def test_a_batch_that_runs_again_behind_its_write_is_in_the_table_once(delta: Any, tmp_path: Path) -> None:
    """With ``txnAppId`` and ``txnVersion`` Delta passes over what it has; also batches that the driver reads."""
    path, out, left = tmp_path / "q", str(tmp_path / "table"), ["behind the write"]
    fill(path, range(2500))

    def write(frame: Any, batch_id: str) -> None:
        rows = frame.select("offset", "payload").write.format("delta").mode("append")
        rows.option("txnAppId", batch_id).option("txnVersion", 1).save(out)
        if left:
            raise RuntimeError(left.pop())

    with pytest.raises(RuntimeError, match="behind the write"):
        drain(path, delta, write, max_messages=2000, group="night")
    report = drain(path, delta, write, max_messages=2000, group="night")
    assert (report.resumed_count, report.message_count, report.depth) == (1, 2500, 0)
    offsets = [row.offset for row in delta.read.format("delta").load(out).select("offset").orderBy("offset").collect()]
    assert offsets == list(range(2500))
