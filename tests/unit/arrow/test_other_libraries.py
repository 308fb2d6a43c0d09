"""A scan as other libraries read it: ``make test-frames`` installs them; elsewhere a missing one is skipped."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from holdfast import CorruptionError, PersistentQueue, Put
from holdfast.arrow import DirectoryWriter, drain, scan
from holdfast.persistence.format.constants import FRAMES_START

pytestmark = pytest.mark.extra("arrow")

COUNT = 3000


def needed(name: str) -> Any:
    """Return a library; a missing one fails where that is asked for."""
    if os.environ.get("HOLDFAST_TEST_REQUIRE_FRAMES") == "1":
        import importlib

        return importlib.import_module(name)
    return pytest.importorskip(name)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A queue of messages that say their number, some with a key; more than one record batch."""
    with PersistentQueue(tmp_path / "q") as queue:
        for number in range(3):
            queue.put_many([Put(b"%d" % number + bytes(2000), order_key=f"k{number}")] * (COUNT // 3))
    return tmp_path / "q"


def test_polars_reads_a_scan(path: Path) -> None:
    """As a stream of record batches."""
    polars = needed("polars")
    frame = polars.from_arrow(scan(path, columns=["offset", "order_key"]))
    assert frame["offset"].to_list() == list(range(COUNT))
    assert sorted(frame.group_by("order_key").len().rows()) == [(f"k{each}", COUNT // 3) for each in range(3)]


def test_pandas_reads_a_scan(path: Path) -> None:
    """All columns."""
    needed("pandas")
    frame = scan(path).read_pandas()
    assert list(frame["offset"]) == list(range(COUNT))
    assert frame["payload"][COUNT - 1] == b"2" + bytes(2000)


def test_duckdb_asks_a_scan_and_what_a_drain_has_written(path: Path, tmp_path: Path) -> None:
    """By SQL, over several batches; partitions are columns."""
    duckdb = needed("duckdb")
    orders = scan(path)  # noqa: F841  # DuckDB finds it by its name
    assert duckdb.sql("SELECT count(*), sum(\"offset\") FROM orders WHERE order_key = 'k1'").fetchall() == [
        (COUNT // 3, sum(range(COUNT // 3, 2 * COUNT // 3)))
    ]
    drain(path, DirectoryWriter(tmp_path / "out", partition_by=["order_key"]), group="night", max_messages=1500)
    files = f"'{tmp_path}/out/*/*/*.parquet'"
    counted = duckdb.sql(
        f"SELECT order_key, count(*) FROM read_parquet({files}, hive_partitioning = true) GROUP BY 1 ORDER BY 1"
    )
    assert counted.fetchall() == [(f"k{each}", COUNT // 3) for each in range(3)]


def test_damage_ends_the_work_of_other_libraries_with_an_error(path: Path) -> None:
    """None of them takes the end of what can be read for the end of the queue."""
    polars, duckdb = needed("polars"), needed("duckdb")
    with sorted((path / "data").iterdir())[0].open("r+b") as raw:
        raw.seek(FRAMES_START + 1_000_000)
        raw.write(b"\xff\xff")
    with pytest.raises(Exception, match="fail_on_data_loss=False") as caught:
        polars.from_arrow(scan(path))
    assert isinstance(caught.value, CorruptionError) or "CorruptionError" in str(caught.value)
    orders = scan(path)  # noqa: F841  # as above
    with pytest.raises(Exception, match="fail_on_data_loss=False"):
        duckdb.sql('SELECT sum("offset") FROM orders').fetchall()
