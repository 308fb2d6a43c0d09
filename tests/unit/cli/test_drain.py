"""``holdfast drain`` without Spark: files of each format, quiet if all is well."""

from __future__ import annotations

import base64
import csv
import json
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast import PersistentQueue
from holdfast.arrow.draining.drain_lock import locked_drain
from holdfast.persistence.format.constants import FRAMES_START
from support.processes.cli import done, run, run_alone
from support.processes.threads import Threads

pytestmark = pytest.mark.extra("arrow")


@pytest.fixture
def filled(path: Path) -> Path:
    """A queue of 100 messages."""
    with PersistentQueue(path) as queue:
        queue.put_many([b"%d" % number for number in range(100)])
    return path


def test_it_writes_parquet_and_says_nothing(filled: Path, tmp_path: Path) -> None:
    """A second run finds nothing, and says so if it is asked."""
    from pyarrow import dataset

    out = tmp_path / "out"
    assert done("drain", filled, "--out", out, "--group", "night", "--max-messages", 60).text == ""
    table = dataset.dataset(out, format="parquet", partitioning="hive").to_table().sort_by("offset")
    assert table["payload"].to_pylist() == [b"%d" % number for number in range(100)]
    assert len(set(table["batch_id"].to_pylist())) == 2
    again = done("drain", filled, "--out", out, "--group", "night", "--verbose")
    assert again.text == "0 messages in 0 batches, 0 left\n"


def test_verbose_tells_of_each_batch(filled: Path, tmp_path: Path) -> None:
    """On standard error; the result is on standard output."""
    ran = run("drain", filled, "--out", tmp_path / "out", "--verbose", "--max-messages", 60)
    assert ran.text == "100 messages in 2 batches, 0 left\n"
    assert [line.split(",")[0] for line in ran.err.splitlines()] == [
        "orders: 60 messages",
        "orders: 100 messages",
    ]


def test_it_writes_json_and_csv_that_are_divided(filled: Path, tmp_path: Path) -> None:
    """By the columns that are named."""
    arguments = ("--partition-by", "date, priority", "--json")
    for file_format in ("json", "csv"):
        out = tmp_path / file_format
        ran = done("drain", filled, "--out", out, "--format", file_format, "--group", file_format, *arguments)
        (batch_id,) = ran.document["batch_ids"]
        (file,) = (out / f"batch_id={batch_id}").glob(f"date=*/priority=0/part-0.{file_format}")
        lines = file.read_text().splitlines()
        rows = [json.loads(line) for line in lines] if file_format == "json" else list(csv.DictReader(lines))
        assert [base64.b64decode(row["payload"]) for row in rows] == [b"%d" % number for number in range(100)]


def test_the_output_of_an_earlier_attempt_is_an_error_with_that_mode(filled: Path, tmp_path: Path) -> None:
    """Its batch stays reserved, and is resumed."""
    out = tmp_path / "out"
    ran = run("drain", filled, "--out", out, "--partition-by", "day", "--group", "night")
    assert (ran.code, "cannot be divided by 'day'" in ran.err) == (1, True), ran
    with PersistentQueue(filled, group="night") as queue:
        (held,) = queue.reservations.held("drain")
    (out / f"batch_id={held.id}").mkdir()
    assert "is there already" in run("drain", filled, "--out", out, "--mode", "error", "--group", "night").err
    assert done("drain", filled, "--out", out, "--group", "night", "--json").document["resumed_count"] == 1


def test_damage_is_told_with_the_exit_code(filled: Path, tmp_path: Path) -> None:
    """The rest is written."""
    (file,) = (filled / "data").iterdir()
    with file.open("r+b") as raw:
        raw.seek(FRAMES_START + 45)
        raw.write(b"\xff\xff")
    ran = run("drain", filled, "--out", tmp_path / "out")
    assert (ran.code, "messages are lost" in ran.err) == (2, True), ran


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--master", "local[1]"), "--master is an option of Spark: give --engine spark too"),
        (("--conf", "a=b"), "--conf is an option of Spark"),
        (("--codec", "a:b"), "give --schema too"),
        (("--engine", "spark", "--codec", "a:b"), "give --schema too"),
        (("--engine", "spark", "--conf", "a"), "--conf is NAME=VALUE"),
        (("--format", "orc"), "orc"),
        (("--engine", "spark", "--partition-by", "date,a,date"), "--partition-by has a column twice: date,a,date"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    filled: Path, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    """Before anything is made."""
    ran = run("drain", filled, "--out", tmp_path / "out", *arguments)
    assert (ran.code, said in ran.err) == (64, True), ran
    assert not (tmp_path / "out").exists()


# -- Payloads as columns -----------------------------------------------------------------------------------------------


@pytest.fixture
def orders(path: Path, tmp_path: Path) -> Path:
    """A queue of orders, with one payload that is none; beside it a schema."""
    with PersistentQueue(path) as queue:
        queue.put_many([b'{"id": %d, "tags": {"a": [1]}, "more": 1}' % number for number in range(5)])
        queue.put(b"not json", headers={"a": "b"})
        queue.put(b'{"id": "7"}')
    (tmp_path / "orders.ddl").write_text("id BIGINT, tags MAP<STRING, ARRAY<INT>>, missing STRING\n")
    return path


def test_payloads_become_the_columns_of_a_schema(orders: Path, tmp_path: Path) -> None:
    """As with Spark: those that do not fit keep their bytes in a column of their own, and the exit code tells."""
    from pyarrow import dataset

    arguments = ("drain", orders, "--out", tmp_path / "out", "--schema", tmp_path / "orders.ddl", "--group", "night")
    ran = run(*arguments, "--max-messages", 4, "--json")
    assert (ran.code, "2 payloads do not fit the schema" in ran.err) == (2, True), ran
    assert (ran.document["message_count"], ran.document["unfit_count"]) == (7, 2)
    table = dataset.dataset(tmp_path / "out", format="parquet", partitioning="hive").to_table().sort_by("_offset")
    names = ["id", "tags", "missing", "_payload", "_offset", "_timestamp", "_headers", "batch_id"]
    assert table.column_names == names
    assert table["id"].to_pylist() == [0, 1, 2, 3, 4, None, None]
    assert table["tags"][1].as_py() == [("a", [1])]
    assert table["_payload"].to_pylist() == [None] * 5 + [b"not json", b'{"id": "7"}']
    assert dict(table["_headers"][5].as_py()) == {"a": "b"}
    assert run(*arguments).code == 0  # nothing is left


def test_payloads_as_columns_are_divided_by_a_field_and_by_the_day_of_the_put(orders: Path, tmp_path: Path) -> None:
    """In text, too; a field of the name is that field."""
    out = tmp_path / "out"
    arguments = ("drain", orders, "--format", "json", "--schema", tmp_path / "orders.ddl", "--partition-by")
    assert run(*arguments, "date,id", "--out", out, "--group", "a").code == 2
    (file,) = out.glob("batch_id=*/date=20*/id=3/part-0.json")
    (row,) = [json.loads(line) for line in file.read_text().splitlines()]
    assert (row["_offset"], row["tags"], "_payload" in row) == (3, {"a": [1]}, False)
    (tmp_path / "orders.ddl").write_text("id BIGINT, date STRING")
    assert run(*arguments, "date", "--out", out / "b", "--group", "b").code == 2
    assert list((out / "b").glob("batch_id=*/date=__HIVE_DEFAULT_PARTITION__/part-0.json"))


def test_a_codec_decodes_with_its_upcasts(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is found in the directory of the command; a name that is none is refused."""
    from pyarrow import dataset

    (tmp_path / "shop_of_a_drain.py").write_text(
        "from dataclasses import dataclass\nfrom holdfast.serializers.codec import Codec\n"
        "from holdfast.serializers.registry import Registry\n\n\n"
        "@dataclass\nclass Order:\n    id: int\n    cents: int\n\n\n"
        "codec = Codec(Registry(), type=Order, version=2)\n\n\n"
        "@codec.upcast(from_version=1, to_version=2)\ndef cents(old):\n"
        "    return {'id': old['id'], 'cents': old['euros'] * 100}\n"
    )
    monkeypatch.chdir(tmp_path)
    with PersistentQueue(path) as queue:
        headers = {"content-type": "application/json", "ce-type": "Order", "ce-schemaversion": "1"}
        queue.put(b'{"id": 1, "euros": 3}', headers=headers)
    (tmp_path / "orders.ddl").write_text("id BIGINT, cents BIGINT")
    arguments = ("drain", path, "--out", tmp_path / "out", "--schema", tmp_path / "orders.ddl", "--codec")
    assert "has no 'other'" in run(*arguments, "shop_of_a_drain:other").err
    assert run(*arguments, "shop_of_a_drain:codec").code == 0
    table = dataset.dataset(tmp_path / "out", format="parquet").to_table()
    assert table.select(["id", "cents"]).to_pylist() == [{"id": 1, "cents": 300}]


@pytest.mark.parametrize(
    ("schema", "said"), [("id WORD", "'WORD' is no type"), ("_offset BIGINT", "the schema has a field '_offset'")]
)
def test_a_schema_that_cannot_be_is_an_error_and_nothing_is_drained(
    filled: Path, tmp_path: Path, schema: str, said: str
) -> None:
    """Before a batch is reserved."""
    (tmp_path / "wrong.ddl").write_text(schema)
    ran = run("drain", filled, "--out", tmp_path / "out", "--schema", tmp_path / "wrong.ddl")
    assert (ran.code, said in ran.err) == (1, True), ran
    assert not (tmp_path / "out").exists()


# -- Many queues -------------------------------------------------------------------------------------------------------


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A directory of two queues of orders, with a payload that is none in the second one."""
    for place, name in enumerate(("orders-a", "orders-b")):
        with PersistentQueue(tmp_path / "data" / name) as queue:
            queue.put_many([b'{"id": %d}' % number for number in range(10 * (place + 1))])
    with PersistentQueue(tmp_path / "data" / "orders-b") as queue:
        queue.put(b"not json")
    return tmp_path / "data"


def rows_of(out: Path) -> Any:
    """Return all rows below a directory of Parquet."""
    from pyarrow import dataset

    return dataset.dataset(out, format="parquet", partitioning="hive").to_table()


def test_queues_that_patterns_name_are_drained_into_directories_of_their_batches(data: Path, tmp_path: Path) -> None:
    """Rows name their queue; the result tells of each."""
    arguments = ("drain", data, "--queues", "orders-*", "--out", tmp_path / "out")
    ran = done(*arguments, "--json", "--max-messages", 15)
    found = {name: (each["message_count"], len(each["batch_ids"])) for name, each in ran.document["queues"].items()}
    assert found == {"orders-a": (10, 1), "orders-b": (21, 2)}
    assert (ran.document["message_count"], len(ran.document["batch_ids"])) == (31, 3)
    rows = rows_of(tmp_path / "out")
    assert rows["queue"].to_pylist().count("orders-b") == 21
    assert len(set(rows["batch_id"].to_pylist())) == 3
    again = run(*arguments, "--group", "night", "--verbose")
    assert again.text.splitlines() == [
        "orders-a: 10 messages in 1 batch, 0 left",
        "orders-b: 21 messages in 1 batch, 0 left",
        "31 messages in 2 batches, 0 left",
    ]


def test_rows_of_many_queues_are_divided_by_queue(data: Path, tmp_path: Path) -> None:
    """With a schema too, where the queue is a column beside the fields; a field of the name is that field."""
    out, schema = tmp_path / "out", tmp_path / "orders.ddl"
    arguments = ("drain", data, "--queues", "orders-*", "--partition-by", "queue")
    assert done(*arguments, "--out", out, "--group", "a").text == ""
    assert sorted(each.name for each in out.glob("batch_id=*/queue=*")) == ["queue=orders-a", "queue=orders-b"]
    schema.write_text("id BIGINT")
    ran = run(*arguments, "--out", tmp_path / "typed", "--group", "b", "--schema", schema)
    assert (ran.code, "1 payloads do not fit the schema" in ran.err) == (2, True), ran
    rows = rows_of(tmp_path / "typed")
    assert rows["queue"].to_pylist() == rows["_queue"].to_pylist()
    assert sorted(each or 0 for each in rows["id"].to_pylist()) == sorted([*range(10), *range(20), 0])
    schema.write_text("id BIGINT, queue STRING")
    assert run(*arguments, "--out", tmp_path / "field", "--group", "c", "--schema", schema).code == 2
    assert {each.name for each in tmp_path.glob("field/batch_id=*/queue=*")} == {"queue=__HIVE_DEFAULT_PARTITION__"}
    schema.write_text("_queue STRING")
    assert "a field '_queue'" in run(*arguments, "--out", out, "--schema", schema).err


def test_a_queue_that_cannot_be_drained_is_named_in_the_last_line(data: Path, tmp_path: Path) -> None:
    """The exit code is its own, and the others are drained; damage decides it."""
    arguments = ("drain", data, "--queues", "orders-*", "--json", "--out")
    with PersistentQueue(data / "orders-a", mode="exclusive"):
        ran = run(*arguments, tmp_path / "a", "--group", "a")
    assert ran.code == 75, ran
    assert (list(ran.document["queues"]), ran.document["message_count"]) == (["orders-b"], 21)
    said = json.loads(ran.err.splitlines()[-1])
    assert (said["error"], said["message"].startswith("1 of 2 queues were not drained to the end")) == ("drain", True)
    failed = run(*arguments, tmp_path / "b", "--group", "b", "--partition-by", "day")
    assert (failed.code, failed.document["message_count"]) == (1, 0), failed
    (file,) = (data / "orders-b" / "data").iterdir()
    with file.open("r+b") as raw:
        raw.seek(FRAMES_START + 45)
        raw.write(b"\xff\xff")
    with PersistentQueue(data / "orders-a", mode="exclusive"):
        ran = run(*arguments, tmp_path / "c", "--group", "c")
    assert ran.code == 2, ran
    assert [json.loads(line)["error"] for line in ran.err.splitlines() if line.startswith("{")] == [
        "corruption",
        "drain",
    ]


def test_a_queue_that_fails_is_named_in_json_too(data: Path, tmp_path: Path) -> None:
    """Every line on standard error is JSON then; without --json it is text, and names options of the command."""
    arguments = ("drain", data, "--queues", "orders-*", "--out", tmp_path / "out", "--lock-timeout", "0")
    with locked_drain(data / "orders-a", "default", 0):
        ran = run_alone(*arguments, "--json")
        said = [json.loads(line) for line in ran.err.splitlines()]
        texts = run_alone(*arguments).err.splitlines()
    assert [each.get("error") for each in said] == [None, "drain"]
    assert (said[0]["level"], said[0]["logger"]) == ("ERROR", "holdfast")
    for text in (*(each["message"] for each in said), *texts):
        assert "let it end, which --lock-timeout waits for, or drain for another --group" in text
    assert len(texts) == 2
    assert texts[0].startswith(f"the drain of {data / 'orders-a'} failed: ")


def test_a_drain_waits_for_a_program_that_has_the_queue_open_alone(filled: Path, tmp_path: Path) -> None:
    """As long as --lock-timeout says; until then it is an error."""
    arguments = ("drain", filled, "--out", tmp_path / "out", "--group", "nightly")
    with PersistentQueue(filled, mode="exclusive") as queue:
        assert run(*arguments).code == 75
        threads = Threads()
        threads.start(lambda: (time.sleep(0.3), queue.close()))
        assert done(*arguments, "--lock-timeout", "30").text == ""
        threads.join()


def test_each_damaged_queue_is_named(data: Path, tmp_path: Path) -> None:
    """By the path that `holdfast verify` takes."""
    for name in ("orders-a", "orders-b"):
        (file,) = (data / name / "data").iterdir()
        with file.open("r+b") as raw:
            raw.seek(FRAMES_START + 45)
            raw.write(b"\xff\xff")
    ran = run("drain", data, "--queues", "orders-*", "--json", "--out", tmp_path / "out")
    assert ran.code == 2, ran
    said = [json.loads(line)["message"] for line in ran.err.splitlines() if line.startswith("{")]
    assert [each.split(" is damaged, ")[0] for each in said] == [str(data / "orders-a"), str(data / "orders-b")]


def test_names_of_no_queue_are_an_error(data: Path, tmp_path: Path) -> None:
    """It says which queues there are; a directory without --queues is no queue."""
    ran = run("drain", data, "--queues", "refunds", "--out", tmp_path / "out")
    assert (ran.code, "there are orders-a, orders-b" in ran.err) == (1, True), ran
    assert "no queue at" in run("drain", data, "--out", tmp_path / "out").err


def test_another_place_than_a_directory_needs_spark(filled: Path) -> None:
    """The error says so."""
    ran = run("drain", filled, "--out", "s3a://bucket/out")
    assert (ran.code, "is no directory of this machine" in ran.err) == (1, True), ran
