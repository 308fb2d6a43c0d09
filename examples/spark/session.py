"""The Spark session of the example: small, quiet, and with all its files in one directory."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from holdfast.spark import local_session

SOCKET_DIRECTORY_MAX = 60
"""Longest path, in characters, below which a Unix socket of Spark can have its name of 42: 104 on macOS."""

JAVA_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData")
"""For a job of some seconds: Java starts sooner, and becomes less fast in the long run."""


def open_session(files: Path) -> SparkSession:
    """Start Spark in this process, with two tasks at once.

    A process that is killed cleans up nothing. So whatever Spark writes by itself goes to ``files``, an existing
    directory that whoever started this process removes.
    """
    settings = {
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": " ".join([f'"-Djava.io.tmpdir={files}"', *JAVA_OPTIONS]),
        "spark.local.dir": str(files),
        "spark.log.level": "ERROR",
        "spark.python.unix.domain.socket.enabled": str(len(str(files)) <= SOCKET_DIRECTORY_MAX).lower(),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(files / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    return local_session("local[2]", app_name="holdfast: the example pipeline", settings=settings)
