"""Every session knows the format, without being told: Spark finds the package ``pyspark_holdfast`` by its name."""

from __future__ import annotations

import subprocess
import sys
import threading
import tomllib
from pathlib import Path
from typing import Any

import pytest

from holdfast import PersistentQueue

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A queue of three messages."""
    with PersistentQueue(tmp_path / "q", mode="exclusive") as queue:
        queue.put_many([b"1", b"2", b"3"])
    return tmp_path / "q"


@pytest.mark.spark
def test_a_new_session_another_thread_and_sql_know_the_format(spark: Any, path: Path) -> None:
    """None of them was given to ``register``."""
    other = spark.newSession()
    assert other.read.format("holdfast").load(str(path)).count() == 3
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(other.read.format("holdfast").load(str(path)).count()))
    thread.start()
    thread.join(100)
    assert found == [3]
    other.sql(f"CREATE TEMPORARY VIEW orders USING holdfast OPTIONS (path '{path}')")
    assert other.sql("SELECT count(*) FROM orders WHERE offset > 0").first()[0] == 2


@pytest.mark.spark
def test_registering_once_more_does_no_harm(spark: Any, path: Path) -> None:
    """For a session whose driver does not find the package."""
    from holdfast.spark import register

    other = spark.newSession()
    register(other)
    register(other)
    assert other.read.format("holdfast").load(str(path)).count() == 3


@pytest.mark.spark
def test_a_table_cannot_be_created_on_a_queue(spark: Any, path: Path) -> None:
    """Spark keeps the path from sources that are written in Python; the error says what works."""
    spark.sql(f"CREATE TABLE holdfast_orders USING holdfast OPTIONS (path '{path}')")
    try:
        with pytest.raises(Exception, match="CREATE TEMPORARY VIEW"):
            spark.sql("SELECT count(*) FROM holdfast_orders").collect()
    finally:
        spark.sql("DROP TABLE holdfast_orders")


def test_without_pyspark_there_is_no_source_and_no_error() -> None:
    """Spark imports the package whatever it is asked for: an error there would break other sources."""
    code = "import sys; sys.modules['pyarrow'] = None; import pyspark_holdfast; print(dir(pyspark_holdfast))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "DefaultSource" not in ran.stdout


def test_each_package_is_in_the_wheel() -> None:
    """The one that Spark looks for too."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert sorted(packages) == sorted(f"src/{each.parent.name}" for each in (ROOT / "src").glob("*/__init__.py"))
