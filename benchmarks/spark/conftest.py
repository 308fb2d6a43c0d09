"""One Spark session, and one set of payloads, for all benchmarks of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from benchmarks.cases.spark_cases import Tables, make_tables, session
from benchmarks.measuring.load import Load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="package")
def spark() -> Iterator[SparkSession]:
    """Return a session with two tasks at once."""
    running = session()
    yield running
    running.stop()


@pytest.fixture(scope="package")
def tables(request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Tables:
    """Return 1 GB of payloads as a queue and as Parquet; with ``--quick``, a tenth."""
    load = Load(50_000 if request.config.getoption("quick") else 500_000, 2000)
    return make_tables(spark, tmp_path_factory.mktemp("spark"), load)
