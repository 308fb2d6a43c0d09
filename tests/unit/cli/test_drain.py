"""``holdfast drain`` without Spark: files of each format, quiet if all is well."""

from __future__ import annotations

import base64
import csv
import json
from pathlib import Path

import pytest

from holdfast import PersistentQueue
from holdfast.persistence.format.constants import FRAMES_START
from support.processes.cli import done, run

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
    assert [line.split(",")[0] for line in ran.err.splitlines()] == ["60 messages", "100 messages"]


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
        (("--codec", "a:b"), "--codec is an option of Spark"),
        (("--engine", "spark", "--codec", "a:b"), "give --schema too"),
        (("--engine", "spark", "--conf", "a"), "--conf is NAME=VALUE"),
        (("--format", "orc"), "orc"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    filled: Path, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    """Before anything is made."""
    ran = run("drain", filled, "--out", tmp_path / "out", *arguments)
    assert (ran.code, said in ran.err) == (64, True), ran
    assert not (tmp_path / "out").exists()


def test_another_place_than_a_directory_needs_spark(filled: Path) -> None:
    """The error says so."""
    ran = run("drain", filled, "--out", "s3a://bucket/out")
    assert (ran.code, "is no directory of this machine" in ran.err) == (1, True), ran
