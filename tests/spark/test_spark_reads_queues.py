"""A real Spark reads a queue."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import FlushPolicy, PersistentQueue
from holdfast.persistence.filesystem.storage import OsStorage
from support.builders.small_queues import build, payload

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def table(spark: SparkSession, path: Path, **options: Any) -> DataFrame:
    """Return a queue as a DataFrame."""
    return spark.read.format("holdfast").options(**options).load(str(path))


@pytest.fixture(scope="module")
def orders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a queue of 3,000 orders in several files; the first 100 are finished, half of all have headers."""
    path = tmp_path_factory.mktemp("queues") / "orders"
    with PersistentQueue(path, mode="exclusive", data_file_bytes=64 * 2**10, flush=FlushPolicy.never()) as queue:
        for number in range(3000):
            body = json.dumps({"id": number, "amount": number / 4, "note": "x" * 50}).encode()
            queue.put(body, headers={"shop": str(number % 7)} if number % 2 else None)
        for _ in range(100):
            queue.get(timeout=0)
    return path


def test_every_row_comes_once_with_all_columns(spark: SparkSession, orders: Path) -> None:
    """Several tasks, several batches, two Python workers."""
    frame = table(spark, orders, group="default", partitionBytes=128 * 2**10)
    assert frame.rdd.getNumPartitions() > 2
    found = frame.orderBy("offset").collect()
    assert [row.offset for row in found] == list(range(100, 3000))
    for row in found:
        assert json.loads(row.payload)["id"] == row.offset
        assert row.headers == ({"shop": str(row.offset % 7)} if row.offset % 2 else {})
        assert (row.delivery_count, row.priority, row.order_key) == (0, 0, None)
        assert int(row.timestamp.timestamp()) == row.timestamp_ns // 10**9


def test_json_becomes_columns_without_python(spark: SparkSession, orders: Path) -> None:
    """Spark's own ``from_json``."""
    from holdfast.spark.json_columns import with_json

    rows = with_json(table(spark, orders, startingOffset=100), "id BIGINT, amount DOUBLE")
    sums = rows.selectExpr("count(*)", "sum(body.id)", "sum(body.amount)").collect()[0]
    total = sum(range(100, 3000))
    assert tuple(sums) == (2900, total, total / 4)


def test_a_narrower_schema_and_a_count_and_a_limit_work(spark: SparkSession, orders: Path) -> None:
    """The worker of a limit is killed in the middle of its read, and that does no harm."""
    frame = spark.read.format("holdfast").schema("offset bigint").load(str(orders))
    assert frame.columns == ["offset"]
    assert frame.agg({"offset": "max"}).collect()[0][0] == 2999
    assert table(spark, orders, startingOffset=1000).count() == 2000
    assert table(spark, orders, startingOffset=1000).limit(3).count() == 3
    assert table(spark, orders, startingOffset=1000).where("offset % 10 = 0").count() == 200


def test_it_reads_while_an_application_writes(spark: SparkSession, tmp_path: Path) -> None:
    """No lock is needed; a DataFrame that was used stays what it was."""
    with PersistentQueue(tmp_path / "queue", mode="exclusive") as queue:
        queue.put_many([b"a", b"b"])
        first = table(spark, tmp_path / "queue")
        assert first.count() == 2
        queue.put(b"c")
        assert [bytes(row.payload) for row in table(spark, tmp_path / "queue").orderBy("offset").collect()] == [
            b"a",
            b"b",
            b"c",
        ]
        assert first.count() == 2
        assert queue.get(timeout=0) == b"a"


def test_damage_reaches_the_user_as_one_line(spark: SparkSession, tmp_path: Path) -> None:
    """File, position and offsets; or the rest of the rows."""
    from pyspark.errors import PySparkException

    queue = build(tmp_path / "queue", OsStorage())
    path = queue.data_files()[1]
    frame = queue.frames(path)[1]
    offset = queue.header(path).first_offset + frame.index
    queue.flip(path, frame.end - 1)
    with pytest.raises(PySparkException, match=f"{path}: .* at {frame.position} .*offsets {offset}..{offset} lost"):
        table(spark, queue.root).collect()
    rest = table(spark, queue.root, failOnDataLoss="false").collect()
    assert {row.offset: bytes(row.payload) for row in rest} == {
        number: payload(number) for number in range(queue.put_count) if number != offset
    }


def test_a_wrong_option_reaches_the_user_as_one_line(spark: SparkSession, tmp_path: Path) -> None:
    """Though it was found in another process."""
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException, match="no option 'startoffset' for reading a queue"):
        table(spark, tmp_path / "queue", startOffset=1).collect()
    with pytest.raises(PySparkException, match="no queue at"):
        table(spark, tmp_path / "queue").collect()


def test_what_the_documentation_shows_runs(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every snippet about reading, in its order, in a fresh directory."""
    monkeypatch.chdir(tmp_path)
    page = Path(__file__).resolve().parents[2] / "docs" / "spark.md"
    snippets = re.findall(r"^```python[^\n]*\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    shown = [code for code in snippets if "drain" not in code]
    assert len(shown) > 5
    namespace: dict[str, object] = {}
    for code in shown:
        placed = re.sub(r'(load|parquet)\("', rf'\1("{tmp_path}/', code)  # Spark was started elsewhere
        exec(compile(placed, str(page), "exec"), namespace)
    assert os.listdir(tmp_path / "out" / "amounts")
