"""Drains into Parquet and JSON by a real session: every message once, whatever fails in between."""

from pathlib import Path
from typing import Any

import pytest

from holdfast import PersistentQueue
from holdfast.persistence.format.constants import FRAMES_START
from holdfast.spark import drain
from support.processes.cli import run
from support.spark.drains import WITH_SPARK, fill, numbers, write_parquet

pytestmark = pytest.mark.spark

COUNT = 10_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A queue whose messages say their number."""
    fill(tmp_path / "q", range(COUNT))
    return tmp_path / "q"


def test_large_batches_are_read_by_tasks_and_small_ones_here(spark: Any, path: Path, tmp_path: Path) -> None:
    """All with the same columns; the last batch is a small one."""
    schemas: list[Any] = []

    def write(frame: Any, batch_id: str) -> None:
        schemas.append(frame.schema)
        write_parquet(tmp_path / "out", frame, batch_id)

    report = drain(path, spark, write, max_messages=4800, group="night")
    assert (len(report.batch_ids), report.message_count, report.depth) == (3, COUNT, 0)
    assert numbers(spark, tmp_path / "out") == list(range(COUNT))
    assert schemas[0] == schemas[1] == schemas[2]
    offsets = spark.read.parquet(str(tmp_path / "out")).select("offset", "batch_id").distinct()
    assert offsets.count() == COUNT


def test_batches_in_flight_are_written_side_by_side_and_committed_in_order(
    spark: Any, path: Path, tmp_path: Path
) -> None:
    """Each is a job of its own, in a thread that has the pool of the drain's."""
    running, most, pools = set[str](), list[int](), set[str]()
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", "nightly")

    def write(frame: Any, batch_id: str) -> None:
        running.add(batch_id)
        most.append(len(running))
        pools.add(spark.sparkContext.getLocalProperty("spark.scheduler.pool"))
        write_parquet(tmp_path / "out", frame, batch_id)
        running.remove(batch_id)

    try:
        report = drain(path, spark, write, max_messages=1500, group="night", columns=["payload"], in_flight=2)
    finally:
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", None)
    assert [int(each.rsplit("-", 1)[1]) for each in report.batch_ids] == list(range(0, COUNT, 1500))
    assert numbers(spark, tmp_path / "out") == list(range(COUNT))
    assert max(most) == 2
    assert pools == {"nightly"}


def test_the_rows_of_a_batch_do_not_depend_on_how_often_they_are_asked_for(spark: Any, path: Path) -> None:
    """Counted, filtered and limited, which kills a task in the middle of its reading."""
    seen = []

    def look(frame: Any, _: str) -> None:
        seen.append(
            (frame.count(), frame.filter("offset % 2 = 0").count(), len(frame.limit(3).collect()), frame.count())
        )

    drain(path, spark, look, max_messages=6000, group="night")
    assert seen == [(6000, 3000, 3, 6000), (4000, 2000, 3, 4000)]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_function_that_raises_leaves_a_batch_that_is_written_over(
    spark: Any, path: Path, tmp_path: Path, when: str
) -> None:
    """Before its write or behind it: each row is in the result once."""
    left = [when]

    def write(frame: Any, batch_id: str) -> None:
        if left == ["before"]:
            left.clear()
            raise RuntimeError("before")
        write_parquet(tmp_path / "out", frame, batch_id)
        if left:
            left.clear()
            raise RuntimeError("after")

    with pytest.raises(RuntimeError, match=when):
        drain(path, spark, write, max_messages=7000, group="night")
    report = drain(path, spark, write, max_messages=500_000, group="night")
    assert (report.resumed_count, report.message_count) == (1, COUNT)
    assert numbers(spark, tmp_path / "out") == list(range(COUNT))


def test_damage_in_the_middle_is_reported_and_the_rest_is_drained(spark: Any, path: Path, tmp_path: Path) -> None:
    """With the offsets that are lost; the next drain finds nothing left."""
    file = sorted((path / "data").iterdir())[2]
    first = int(file.stem.split("-")[1])
    with file.open("r+b") as raw:
        raw.seek(FRAMES_START + 100)
        raw.write(b"\xff" * 500)
    report = drain(path, spark, lambda frame, batch: write_parquet(tmp_path / "out", frame, batch), group="night")
    lost = {offset for each in report.damage for offset in each.offsets}
    assert first in lost
    assert len(lost) == report.lost_count < 5
    assert numbers(spark, tmp_path / "out") == sorted(set(range(COUNT)) - lost)
    assert drain(path, spark, print, group="night").message_count == 0


# -- From the shell --------------------------------------------------------------------------------------------------


def test_the_command_writes_columns_of_a_schema(shared_session: Any, path: Path, tmp_path: Path) -> None:
    """Payloads that do not fit keep their bytes in a column of their own; a second run finds nothing."""
    with PersistentQueue(path, mode="exclusive") as queue:
        queue.put(b"not json", headers={"a": "b"})
    (tmp_path / "schema").write_text("id BIGINT, missing STRING\n")
    arguments = ("drain", path, "--out", tmp_path / "out", "--schema", tmp_path / "schema", "--group", "night")
    ran = run(*arguments, *WITH_SPARK, "parquet", "--max-messages", 6000, "--json")
    assert ran.code == 2, ran
    assert (ran.document["message_count"], len(ran.document["batch_ids"]), ran.document["depth"]) == (COUNT + 1, 2, 0)
    rows = shared_session.read.parquet(str(tmp_path / "out"))
    assert rows.columns == ["id", "missing", "_payload", "_offset", "_timestamp", "_headers", "batch_id"]
    assert rows.filter("id is not null").select("id").distinct().count() == COUNT
    (odd,) = rows.filter("id is null").collect()
    assert (bytes(odd["_payload"]), odd["_offset"], odd["_headers"]) == (b"not json", COUNT, {"a": "b"})
    again = run(*arguments, *WITH_SPARK, "json", "--verbose")
    assert again.text == "0 messages in 0 batches, 0 left\n"


def test_the_command_writes_json_lines(shared_session: Any, path: Path, tmp_path: Path) -> None:
    """A schema in Spark's own JSON does as well; one that is none is refused."""
    from pyspark.sql.types import LongType, StructField, StructType

    schema = tmp_path / "schema.json"
    schema.write_text(StructType([StructField("id", LongType())]).json())
    out = tmp_path / "out"
    ran = run("drain", path, *WITH_SPARK, "json", "--out", out, "--schema", schema, "--group", "night")
    assert (ran.code, ran.text, ran.err) == (0, "", "")
    assert shared_session.read.json(str(out)).agg({"id": "sum"}).collect()[0][0] == sum(range(COUNT))
    schema.write_text("{}")
    assert "is no schema" in run("drain", path, *WITH_SPARK, "json", "--out", out, "--schema", schema).err


def test_the_command_says_damage_with_its_exit_code(shared_session: Any, path: Path, tmp_path: Path) -> None:
    """Behind having written the rest."""
    file = sorted((path / "data").iterdir())[1]
    with file.open("r+b") as raw:
        raw.seek(FRAMES_START + 100)
        raw.write(b"\xff")
    ran = run("drain", path, *WITH_SPARK, "parquet", "--out", tmp_path / "out", "--group", "night")
    assert ran.code == 2
    assert "1 messages are lost" in ran.err
    assert shared_session.read.parquet(str(tmp_path / "out")).count() == COUNT - 1


def held_ids(path: Path, group: str) -> list[str]:
    """Return the batches that a group holds."""
    with PersistentQueue(path, mode="shared", group=group) as queue:
        return [each.id for each in queue.reservations.held("drain")]


def test_the_command_divides_rows_and_keeps_what_is_there(shared_session: Any, path: Path, tmp_path: Path) -> None:
    """By the day of the put; text has payloads in Base64, headers as JSON, and times with microseconds."""
    import base64
    import json

    from pyspark.sql.functions import col

    out = tmp_path / "out"
    arguments = ("drain", path, "--engine", "spark", "--out", out, "--partition-by", "date", "--group")
    assert run(*arguments, "a", "--format", "csv", "--mode", "error").code == 0
    rows = shared_session.read.option("header", "true").csv(str(out)).orderBy(col("offset").cast("long")).collect()
    assert [json.loads(base64.b64decode(row["payload"]))["id"] for row in rows] == list(range(COUNT))
    assert {row["headers"] for row in rows} == {"{}"}
    assert len(rows[0]["timestamp"]) == len("2026-01-31T12:00:00.000000Z")
    (batch,) = out.iterdir()
    assert [each.name.partition("=")[0] for each in batch.iterdir() if each.is_dir()] == ["date"]
    assert "cannot be divided by 'day'" in run(*arguments[:-2], "day", "--group", "b").err
    (batch_id,) = held_ids(path, "b")
    (tmp_path / "other" / f"batch_id={batch_id}").mkdir(parents=True)
    ran = run("drain", path, "--engine", "spark", "--out", tmp_path / "other", "--mode", "error", "--group", "b")
    assert "is there already" in ran.err
