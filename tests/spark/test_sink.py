"""Writes by a real session: every row once, whatever fails, is run again or is killed in between."""

from __future__ import annotations

import datetime as dt
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from holdfast import PersistentQueue
from holdfast.spark import drain, with_json
from support.spark import sinks
from support.spark.drains import fill
from support.spark.sinks import AFTER, BEFORE, ROWS, payloads, run_again, staged, stream_numbers, write_numbers

pytestmark = pytest.mark.spark

NUMBERS = [b"%d" % number for number in range(ROWS)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """An empty queue."""
    PersistentQueue(tmp_path / "q", mode="exclusive").close()
    return tmp_path / "q"


def append(frame: Any, path: Path | str, **options: Any) -> None:
    """Write a DataFrame."""
    frame.write.format("holdfast").mode("append").options(**options).save(str(path))


def failing(spark: Any, *, attempts: int) -> Any:
    """Return numbers in two tasks, of which the second raises in its middle, in its first attempts."""

    def some(numbers: Iterator[int]) -> Iterator[tuple[bytes]]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        for number in numbers:
            if number == ROWS - 100 and context.attemptNumber() < attempts:
                raise RuntimeError("in the middle")
            yield (b"%d" % number,)

    return spark.createDataFrame(spark.sparkContext.parallelize(range(ROWS), 2).mapPartitions(some), "payload binary")


# -- Batches ---------------------------------------------------------------------------------------------------------


def test_a_dataframe_is_put_in_order(spark: Any, path: Path) -> None:
    """Task by task, below a relative path, while nobody owns the queue."""
    append(spark.range(0, ROWS, 1, 4).selectExpr("cast(id as string) payload"), os.path.relpath(path))
    assert payloads(path) == NUMBERS
    assert staged(path) == []


def test_an_application_owns_the_queue_meanwhile(spark: Any, path: Path) -> None:
    """It still puts and takes; and a write that has its txnid writes nothing."""
    with PersistentQueue(path, mode="shared") as owner:
        owner.put(b"mine")
        for _ in range(2):
            write_numbers(spark, path.parent, "night")
        assert [owner.get(timeout=0) for _ in range(ROWS + 1)] == [b"mine", *NUMBERS]
        assert owner.empty()
        assert owner.prepared() == []


def test_a_task_that_raises_is_run_again(spark: Any, path: Path) -> None:
    """What its first attempts have put comes to nothing."""
    append(failing(spark, attempts=2), path)
    assert payloads(path) == NUMBERS
    assert staged(path) == []


def test_a_write_that_fails_leaves_the_queue_as_it_was(spark: Any, path: Path) -> None:
    """The task that succeeded has staged, and is let go."""
    with pytest.raises(Exception, match="in the middle"):
        append(failing(spark, attempts=4), path, txnid="t")
    with PersistentQueue(path, mode="exclusive") as queue:
        assert queue.empty()
        assert queue.prepared() == []
        assert queue.joint_commits.latest("t") is None
    assert staged(path) == []


def test_errors_say_what_to_do(spark: Any, path: Path) -> None:
    """A column, a mode, a path, a value."""
    frame = spark.range(3).selectExpr("cast(id as string) payload", "if(id = 1, null, 'k') key")
    with pytest.raises(Exception, match="no column `key`: drop it"):
        append(frame, path)
    with pytest.raises(Exception, match="appended to"):
        frame.select("payload").write.format("holdfast").mode("overwrite").save(str(path))
    with pytest.raises(Exception, match="create"):
        append(frame.select("payload"), path / "no")
    with pytest.raises(Exception, match="`payload` is null in 1"):
        append(frame.select(frame.key.alias("payload")), path)
    assert payloads(path) == []


def test_objects_come_back_as_columns(spark: Any, path: Path) -> None:
    """Through JSON and Spark's own ``from_json``."""
    ddl = (
        "id BIGINT, amount DECIMAL(10,2), at TIMESTAMP, day DATE, tags ARRAY<STRING>, counts MAP<STRING,INT>, "
        "place STRUCT<city: STRING, at: TIMESTAMP>, raw BINARY, share DOUBLE"
    )
    at = dt.datetime(2026, 1, 31, 12, 30, 0, 250_000)  # as Spark has it: of the session's zone
    row = (1, Decimal("1.50"), at, at.date(), ["a", "b"], {"x": 1}, ("Köln", at), bytearray(b"\x00\xff"), 0.1)
    frame = spark.createDataFrame([row, (2, *[None] * 8)], ddl)
    append(frame.selectExpr("*", "map('shop', '7') _headers"), path, serializer="json", type="Order")
    back = with_json(spark.read.format("holdfast").load(str(path)), ddl).orderBy("offset")
    assert back.select("body.*").collect() == frame.orderBy("id").collect()
    assert back.first().headers == {
        "content-type": "application/json",
        "ce-type": "Order",
        "ce-schemaversion": "1",
        "shop": "7",
    }


def test_one_queue_is_drained_into_another(spark: Any, path: Path, tmp_path: Path) -> None:
    """Exactly once, though the drain fails behind a write: its batch comes again, and its txnid is known."""
    fill(tmp_path / "from", range(3000))
    bodies = payloads(tmp_path / "from")
    calls: list[str] = []

    def write(frame: Any, batch_id: str) -> None:
        append(frame, path, txnid=batch_id)
        calls.append(batch_id)
        if len(calls) == 2:
            raise RuntimeError("behind the write")

    with pytest.raises(RuntimeError, match="behind the write"):
        drain(tmp_path / "from", spark, write, max_messages=1500, group="copy")
    drain(tmp_path / "from", spark, write, max_messages=1500, group="copy")
    assert len(calls) == 3
    assert calls[1] == calls[2]
    assert len(bodies) == 3000
    assert payloads(path) == bodies


# -- Streams ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def place(path: Path) -> Path:
    """Return where a queue stands beside files of lines."""
    lines(path.parent, NUMBERS[:1000])
    return path.parent


def lines(place: Path, numbers: list[bytes]) -> None:
    """Add a file of numbers."""
    (place / "lines").mkdir(exist_ok=True)
    (place / "lines" / f"{numbers[0].decode()}.txt").write_bytes(b"\n".join(numbers))


def test_a_batch_that_spark_runs_again_is_there_once(spark: Any, place: Path) -> None:
    """The driver died before it noted the batch as done."""
    stream_numbers(spark, place)
    lines(place, NUMBERS[1000:])
    stream_numbers(spark, place)
    assert payloads(place / "q") == NUMBERS
    for name in ("1", ".1.crc"):
        (place / "checkpoint" / "commits" / name).unlink()
    stream_numbers(spark, place)
    assert (place / "checkpoint" / "commits" / "1").exists()
    assert payloads(place / "q") == NUMBERS
    assert staged(place / "q") == []


def test_a_new_checkpoint_on_an_old_queue_loses_nothing(spark: Any, place: Path) -> None:
    """It is another query: its rows come again, as the user has asked for."""
    stream_numbers(spark, place)
    (place / "checkpoint").rename(place / "old")
    stream_numbers(spark, place)
    assert payloads(place / "q") == NUMBERS[:1000] * 2


def test_foreach_batch_with_a_txnid(spark: Any, place: Path) -> None:
    """The number of the batch is the version."""

    def write(frame: Any, batch: int) -> None:
        for _ in range(2):
            append(frame, place / "q", txnid="lines", txnversion=batch)

    source = spark.readStream.text(str(place / "lines")).withColumnRenamed("value", "payload")
    stream = source.writeStream.option("checkpointLocation", str(place / "checkpoint")).foreachBatch(write)
    assert stream.trigger(availableNow=True).start().awaitTermination(60)
    assert payloads(place / "q") == NUMBERS[:1000]


# -- Killed ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_killed_driver_costs_nothing_and_writes_nothing_twice(spark: Any, tmp_path: Path) -> None:
    """Batches and streams, right before their commit point and right behind it; one driver writes all four."""
    kinds = [(kind, moment) for kind in ("batch", "stream") for moment in (BEFORE, AFTER)]
    places = [tmp_path / "places" / f"{kind} {moment}" for kind, moment in kinds]
    for each in places:
        each.mkdir(parents=True)
        lines(each, NUMBERS)
        PersistentQueue(each / "q", mode="exclusive").close()
    with (tmp_path / "errors").open("wb") as errors:  # no pipe: its other end is held by what a dead driver leaves
        killed = subprocess.run(
            [sys.executable, sinks.__file__, tmp_path / "places"],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdout=errors,
            stderr=errors,
            timeout=100,
            check=False,
        )
    assert killed.returncode == -signal.SIGKILL, (tmp_path / "errors").read_text()
    for (kind, moment), each in zip(kinds, places, strict=True):
        assert (each / "arrived").exists(), (tmp_path / "errors").read_text()
        assert payloads(each / "q") == (NUMBERS if moment == AFTER else [])
        assert bool(staged(each / "q")) == (moment == BEFORE)
        run_again(spark, each, kind)
        assert payloads(each / "q") == NUMBERS
        with PersistentQueue(each / "q", mode="exclusive") as queue:
            assert queue.prepared() == []
        assert staged(each / "q") == []
