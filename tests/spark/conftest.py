"""One Spark session for the whole run. Without Java or pyspark its tests are skipped, and say so.

Where the environment says ``HOLDFAST_TEST_REQUIRE_SPARK=1`` they fail instead: there somebody relies on them.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from holdfast.cli import spark_drain
from holdfast.errors import ConfigError
from holdfast.spark.session import check_java, check_spark, local_session
from support.builders.small_queues import tiny_files_allowed

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData",
}


@pytest.fixture
def tiny_files() -> Iterator[None]:
    """Let this process open queues whose own size of data files is below the bound for applications."""
    with tiny_files_allowed():
        yield


def missing(*, with_java: bool) -> str:
    """Return what Spark lacks here; empty where nothing."""
    try:
        check_spark()
        if with_java:
            check_java()
    except ConfigError as error:
        return str(error)
    return ""


def skip_or_fail(reason: str) -> None:
    """Skip a test that cannot run here, or fail it where that is not allowed."""
    if os.environ.get("HOLDFAST_TEST_REQUIRE_SPARK") == "1":
        pytest.fail(f"HOLDFAST_TEST_REQUIRE_SPARK=1, and {reason}", pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def arrow_packages() -> None:
    """See to it that pyspark and pyarrow are there; for tests that need no Java."""
    if reason := missing(with_java=False):
        skip_or_fail(reason)


@pytest.fixture(scope="session")
def small_sparks() -> Iterator[None]:
    """Have each Spark that is started here be as quick to start, with its sockets in one place that goes away."""
    java = SETTINGS["spark.driver.extraJavaOptions"]
    with tempfile.TemporaryDirectory(prefix="hf-") as place, pytest.MonkeyPatch.context() as patch:  # names are short
        sockets = f"spark.python.unix.domain.socket.dir={place}"
        patch.setenv("PYSPARK_SUBMIT_ARGS", f"--conf {sockets} --driver-java-options '{java}' pyspark-shell")
        yield


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, small_sparks: None) -> Iterator[SparkSession]:
    """Return the session: two tasks at once, each tried up to four times."""
    if reason := missing(with_java=True):
        skip_or_fail(reason)
    place: Path = tmp_path_factory.mktemp("spark")
    settings = {**SETTINGS, "spark.sql.warehouse.dir": str(place / "warehouse"), "spark.local.dir": str(place)}
    session = local_session("local[2,4]", app_name="holdfast tests", settings=settings)
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture
def without_session(arrow_packages: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the session from pyspark, which else prepares threads for it: a test with a stand-in has no other one."""
    from pyspark import SparkContext

    monkeypatch.setattr(SparkContext, "_gateway", None)


@pytest.fixture
def shared_session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[SparkSession]:
    """Let the command use the session of the tests, and leave it running."""
    monkeypatch.setattr(type(spark), "stop", lambda _: None)
    monkeypatch.setattr(spark_drain, "_SETTINGS", {})
    yield spark
    monkeypatch.undo()
