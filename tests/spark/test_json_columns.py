"""Payloads as columns: what fits, what does not, and what their headers say. No byte of a payload is ever replaced."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast import PersistentQueue, QueueService
from holdfast.spark.draining.directories import DirectoryWriter
from holdfast.spark.json_columns import codec_by_headers, with_json
from support.processes.cli import run
from support.spark.drains import WITH_SPARK

pytestmark = pytest.mark.spark

DDL = "id BIGINT, name STRING"

FITTING = [b'{"id": 1, "name": "Zo\xc3\xab"}', b' {"id": 2}', b'{"name": "three", "more": [1]}', b"{}"]
SPACED = [b'\n{"id": 4}', b'\r\n\t {\n\t"id"\n:\r\n5 }\r\n\t ']
UNFIT = [
    b"",
    b" ",
    b"\n\t",
    b'\n[{"id": 1}]',
    b'\x0b{"id": 1}',
    b"null",
    b"5",
    b"not json",
    b'{"id": "one"}',
    b'[{"id": 1}, {"id": 2}]',
    b'{"name": "\xff\xfe"}',
    b"\x82\xa2id\x01",
]


def table(spark: Any, path: Path, **options: Any) -> Any:
    """Return a queue as a DataFrame."""
    return spark.read.format("holdfast").options(**options).load(str(path))


def filled(path: Path, payloads: list[bytes]) -> Path:
    """Make a queue of payloads without headers."""
    with PersistentQueue(path, mode="exclusive") as queue:
        queue.put_many(payloads)
    return path


def test_what_does_not_fit_is_null_and_in_a_column_of_its_own(spark: Any, tmp_path: Path) -> None:
    """Byte for byte; a field that is missing is null and fits."""
    rows = with_json(table(spark, filled(tmp_path / "q", FITTING + SPACED + UNFIT)), DDL).orderBy("offset").collect()
    bodies = [None if row["body"] is None else tuple(row["body"]) for row in rows]
    assert bodies == [(1, "Zoë"), (2, None), (None, "three"), (None, None), (4, None), (5, None), *[None] * len(UNFIT)]
    corrupt = [None if row["_corrupt_record"] is None else bytes(row["_corrupt_record"]) for row in rows]
    assert corrupt == [None] * len(FITTING + SPACED) + UNFIT


def typed(path: Path, count: int = 40) -> None:
    """Make a queue whose messages are JSON and MessagePack, plain and compressed, with bytes that no JSON has."""
    for number, (serializer, compress_bytes) in enumerate(
        [("json", None), ("msgpack", None), ("json", 1), ("msgpack", 1)]
    ):
        with QueueService(path.parent) as service:
            queue = service.queue(path.name, serializer=serializer, compress_bytes=compress_bytes)
            queue.put_many([{"id": each, "name": "ä" * 200} for each in range(number * count, (number + 1) * count)])


def test_payloads_are_decoded_as_their_headers_say(spark: Any, tmp_path: Path) -> None:
    """Content type and compression; without a codec only plain JSON fits, and nothing else is taken for it."""
    typed(tmp_path / "q")
    rows = table(spark, tmp_path / "q")
    found = with_json(rows, DDL, codec=codec_by_headers()).orderBy("offset").collect()
    assert [row["body"]["id"] for row in found] == list(range(160))
    assert {row["body"]["name"] for row in found} == {"ä" * 200}
    assert {row["_corrupt_record"] for row in found} == {None}
    plain = with_json(rows, DDL).orderBy("offset").collect()
    assert [row["body"] is not None for row in plain] == [number < 40 for number in range(160)]
    assert [bytes(row["_corrupt_record"] or row["payload"]) for row in plain] == [
        bytes(row["payload"]) for row in plain
    ]


@pytest.mark.parametrize("to", ["parquet", "json"])
def test_the_command_drains_compressed_and_msgpack_payloads_into_columns(
    shared_session: Any, tmp_path: Path, to: str
) -> None:
    """What does not fit keeps its bytes, is counted, and ends the command with 2."""
    import base64

    typed(tmp_path / "q")
    filled(tmp_path / "q", UNFIT)
    (tmp_path / "schema").write_text(DDL)
    ran = run(
        "drain",
        tmp_path / "q",
        "--engine",
        "spark",
        "--format",
        to,
        "--out",
        tmp_path / "out",
        "--schema",
        tmp_path / "schema",
        "--json",
    )
    assert (ran.code, ran.document["unfit_count"], ran.document["depth"]) == (2, len(UNFIT), 0), ran
    assert f"{len(UNFIT)} payloads do not fit" in ran.err
    rows = shared_session.read.format(to).load(str(tmp_path / "out")).orderBy("_offset").collect()
    assert [row["id"] for row in rows if row["_payload"] is None] == list(range(160))
    kept = [row["_payload"] for row in rows if row["_payload"] is not None]
    assert [base64.b64decode(each) if to == "json" else bytes(each) for each in kept] == UNFIT
    for file in (tmp_path / "out").rglob("part-*"):
        assert "\N{REPLACEMENT CHARACTER}".encode() not in file.read_bytes()


def test_upcasts_are_applied_where_a_codec_has_them(
    shared_session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Named at the command; a message of a newer version than the codec knows does not fit."""
    for version, body in ((1, {"id": 1, "title": "one"}), (2, {"id": 2, "name": "two"}), (3, {"id": 3})):
        with PersistentQueue(tmp_path / "q", mode="exclusive") as queue:
            headers = {"content-type": "application/json", "ce-type": "Order", "ce-schemaversion": str(version)}
            queue.put(json.dumps(body).encode(), headers=headers)
    (tmp_path / "events.py").write_text(
        "import msgspec\n"
        "from holdfast.serializers.codec import Codec\n"
        "from holdfast.serializers.registry import Registry\n"
        "class Order(msgspec.Struct):\n    id: int\n    name: str = ''\n"
        "codec = Codec(Registry(), type=Order, version=2)\n"
        "@codec.upcast(1, 2)\n"
        "def rename(order):\n    return {'id': order['id'], 'name': order['title']}\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", "")
    shared_session.sparkContext.addPyFile(str(tmp_path / "events.py"))  # this session's tasks started long ago
    (tmp_path / "schema").write_text(DDL)
    arguments = ("drain", tmp_path / "q", *WITH_SPARK, "json", "--out", tmp_path / "out")
    assert run(*arguments, "--codec", "events:codec").code == 64
    assert run(*arguments, "--schema", "schema", "--codec", "events:Order").code == 64
    ran = run(*arguments, "--schema", "schema", "--codec", "events:codec", "--json")
    assert (ran.code, ran.document["unfit_count"]) == (2, 1), ran
    rows = shared_session.read.json(str(tmp_path / "out")).orderBy("_offset").collect()
    assert [(row["id"], row["name"]) for row in rows] == [(1, "one"), (2, "two"), (None, None)]


def test_a_batch_that_is_written_again_is_counted_by_each_writer(spark: Any, tmp_path: Path) -> None:
    """The figure is that of what was written, of all batches."""
    rows = table(spark, filled(tmp_path / "q", FITTING + UNFIT))
    from pyspark.sql.types import StructType

    writer = DirectoryWriter(str(tmp_path / "out"), "parquet", StructType.fromDDL(DDL))
    for batch_id in ("a", "b"):
        writer(rows, batch_id)
    assert writer.unfit_count == 2 * len(UNFIT)
