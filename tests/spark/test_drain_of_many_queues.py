"""A drain of many queues by a real session: tasks that read, files divided by queue, and a driver that dies."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from holdfast import DrainError, PersistentQueue
from holdfast.spark import drain
from support.processes.cli import command, run
from support.processes.threads import wait_until
from support.spark.drain_faults import GROUP, assert_nothing_left
from support.spark.drains import WITH_SPARK, fill, write_parquet

pytestmark = pytest.mark.spark

COUNTS = {"orders-a": 3000, "orders-b": 12_000, "orders-c": 50}
"""Those of the last one are few enough for the driver to read."""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A directory of three queues."""
    for name, count in COUNTS.items():
        fill(tmp_path / "data" / name, range(count))
    return tmp_path / "data"


def rows_of(out: Path) -> dict[str, list[int]]:
    """Return the offsets of all rows below a directory, by queue; each batch has rows of one."""
    from pyarrow import dataset

    table = dataset.dataset(out, format="parquet", partitioning="hive").to_table(
        columns=["queue", "offset", "batch_id"]
    )
    rows = table.to_pylist()
    assert len({(row["queue"], row["batch_id"]) for row in rows}) == len({row["batch_id"] for row in rows})
    return {name: sorted(row["offset"] for row in rows if row["queue"] == name) for name in COUNTS}


def test_every_row_is_there_once_with_the_name_of_its_queue(spark: Any, data: Path, tmp_path: Path) -> None:
    """A queue that fails is drained by the next one, which begins with its batch; two may be in flight."""

    def write(frame: Any, batch_id: str, failing: str = "") -> None:
        write_parquet(tmp_path / "out", frame, batch_id)
        if frame.select("queue").first()[0] == failing:
            raise RuntimeError("the sink is full")

    options: dict[str, Any] = {"queues": "orders-*", "group": GROUP, "max_messages": 5000, "in_flight": 2}
    with pytest.raises(DrainError, match="orders-b: the sink is full") as caught:
        drain(data, spark, lambda frame, batch_id: write(frame, batch_id, "orders-b"), **options)
    assert {name: each.message_count for name, each in caught.value.report.queues.items()} == COUNTS | {"orders-b": 0}
    report = drain(data, spark, write, **options)
    assert (report.message_count, report.resumed_count) == (COUNTS["orders-b"], 2)
    assert rows_of(tmp_path / "out") == {name: list(range(count)) for name, count in COUNTS.items()}


def test_bodies_and_chosen_columns_are_those_of_each_queue(spark: Any, data: Path) -> None:
    """As with one queue."""
    found: dict[str, int] = {}

    def look(frame: Any, _: str) -> None:
        assert frame.columns == ["body", "queue"]
        for row in frame.selectExpr("queue", "body.id AS id").groupBy("queue").sum("id").collect():
            found[row.queue] = row[1]

    drain(data, spark, look, queues="orders-*", columns=["body", "queue"], decode="id BIGINT", group=GROUP)
    assert found == {name: sum(range(count)) for name, count in COUNTS.items()}


def test_the_command_divides_rows_of_a_schema_by_queue(shared_session: Any, data: Path, tmp_path: Path) -> None:
    """The queue is a column beside the fields, too."""
    (tmp_path / "schema").write_text("id BIGINT")
    ran = run(
        *("drain", data, "--queues", "orders-*", *WITH_SPARK, "parquet", "--out", tmp_path / "out"),
        *("--schema", tmp_path / "schema", "--partition-by", "queue", "--group", GROUP, "--json"),
    )
    assert (ran.code, ran.document["message_count"]) == (0, sum(COUNTS.values())), ran
    rows = shared_session.read.parquet(str(tmp_path / "out"))
    assert rows.where("queue <> _queue OR id <> _offset").count() == 0
    assert dict(rows.groupBy("queue").count().collect()) == COUNTS
    assert {each.name for each in (tmp_path / "out").glob("batch_id=*/queue=*")} == {f"queue={name}" for name in COUNTS}


@pytest.mark.slow
@pytest.mark.timeout(300)  # a JVM starts, on a machine that may have other things to do
@pytest.mark.usefixtures("shared_session")
def test_the_command_that_is_killed_between_two_queues_and_run_again_writes_every_row_once(
    data: Path, tmp_path: Path
) -> None:
    """The first queue is committed, and the batch of the second is half written."""
    out = tmp_path / "out"
    with PersistentQueue(data / "orders-b", mode="read_only") as queue:
        second = queue.queue_id.hex()
    arguments = (
        "drain",
        data,
        "--queues",
        "orders-*",
        *WITH_SPARK,
        "parquet",
        "--out",
        out,
        "--group",
        GROUP,
        "--json",
    )
    with (tmp_path / "log").open("wb") as log:  # no pipe: its other end is held by what a dead driver leaves
        driver = subprocess.Popen(command(*arguments), stdout=log, stderr=log)
    try:
        wait_until(lambda: bool(list(out.glob(f"*{second}*/_temporary/0/_temporary/*/part-*"))), 200)
    finally:
        driver.kill()
        driver.wait()
    again = run(*arguments)
    assert again.code == 0, again
    counts = {name: (each["message_count"], each["resumed_count"]) for name, each in again.document["queues"].items()}
    assert counts == {"orders-a": (0, 0), "orders-b": (12_000, 1), "orders-c": (50, 0)}
    assert rows_of(out) == {name: list(range(count)) for name, count in COUNTS.items()}
    for name in COUNTS:
        assert_nothing_left(data / name)
