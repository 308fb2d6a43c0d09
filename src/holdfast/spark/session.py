"""A Spark session that suits the queue, and the name ``holdfast`` made known to it. docs/spark.md.

Nothing here imports pyspark before it is called, so that an application without Spark can import the modules beside it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess  # asks the Java that is going to run which version it is
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from holdfast.errors import ConfigError
from holdfast.serializers.extras import import_extra

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_VERSION_MIN = 17
"""Spark 4 runs on nothing older."""

_JAVA_SECONDS = 60
_KNOWN = "DATA_SOURCE_ALREADY_EXISTS"
_VERSION = re.compile(r'version "(\d+)')

SETTINGS: Mapping[str, str] = {
    # Rows go from Python to the JVM through Unix sockets: a task starts in a third of the time, and runs faster.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.worker.reuse": "true",
}
"""What every session that reads or drains queues should have; give them to your own builder or to ``spark-submit``."""


def local_session(
    master: str = "local[*]", *, app_name: str = "holdfast", settings: Mapping[str, str] | None = None
) -> SparkSession:
    """Return a Spark session on this machine that knows the format ``holdfast``.

    Parameters
    ----------
    master : str
        ``local[n]``: n tasks at once. ``local[n,m]``: and each is tried m times. Or the address of a cluster.
    app_name : str
        What Spark's own pages call it.
    settings : mapping of str to str or None
        Settings of Spark, over :data:`SETTINGS` and those that keep a local session to this machine.

    Returns
    -------
    pyspark.sql.SparkSession
        The running one, if there is one: Spark has one for each process, and its start options stay.

    Raises
    ------
    ConfigError
        pyspark, pyarrow or Java is missing, or Java is too old.

    Notes
    -----
    Spark starts Python for its tasks: unless ``PYSPARK_PYTHON`` is set, this sets it to the current one, so
    that the tasks find the same packages.
    """
    check_spark()
    check_java()
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(master).appName(app_name)
    here = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    local = here if master.startswith("local") else {}  # machines of a cluster have to reach the driver
    for name, value in {**SETTINGS, **local, **(settings or {})}.items():
        builder = builder.config(name, value)
    has_own_python = SparkSession.getActiveSession() is not None or "PYSPARK_DRIVER_PYTHON" in os.environ
    spark: SparkSession = builder.getOrCreate()
    if has_own_python:  # which may not find ``pyspark_holdfast``; ours does, and then Spark warns of a second one
        register(spark)
    return spark


def register(spark: SparkSession) -> None:
    """Make the format ``holdfast`` known to a session; again does no harm.

    Sessions know it by themselves if Spark's driver finds this package in its Python (``pyspark_holdfast``).

    Raises
    ------
    ConfigError
        pyspark or pyarrow is missing.
    """
    check_spark()
    from pyspark.errors import AnalysisException

    from holdfast.spark.data_source import HoldfastDataSource

    try:
        spark.dataSource.register(HoldfastDataSource)
    except AnalysisException as error:
        if error.getCondition() != _KNOWN:  # a source that all sessions know cannot be registered again
            raise


def check_spark() -> None:
    """Make sure that pyspark and pyarrow are there; raises ConfigError."""
    for module in ("pyspark", "pyarrow"):
        import_extra(module, "spark", "Spark")


def check_java() -> str:
    """Return the path of the Java that Spark will run.

    Raises
    ------
    ConfigError
        There is none, or it is too old.
    """
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=os.path.join(home, "bin")) if home else shutil.which("java")
    if java is None:
        where = f"in JAVA_HOME={home}" if home else "on the PATH, and JAVA_HOME is not set"
        raise ConfigError(f"Spark needs Java {JAVA_VERSION_MIN} or newer and there is none {where}: install one")
    try:
        told = subprocess.run(  # noqa: S603  # the program that Spark is about to start itself
            [java, "-version"], capture_output=True, text=True, timeout=_JAVA_SECONDS, check=False
        ).stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{java} cannot be run ({error}): install Java {JAVA_VERSION_MIN} or newer") from error
    found = _VERSION.search(told)
    if found is None or int(found[1]) < JAVA_VERSION_MIN:
        version = f"version {found[1]}" if found else "no Java"
        raise ConfigError(f"{java} is {version}; Spark needs Java {JAVA_VERSION_MIN} or newer: set JAVA_HOME to one")
    return java
