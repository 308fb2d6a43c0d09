"""Which columns say what of a message; rows as objects; and every column that cannot work. No Java."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from holdfast import ConfigError, PersistentQueue, QueueService, UsageError
from support.spark.sinks import commit, messages, payloads, schema_of, stage, staged, writer
from support.spark.spark_rows import batches

types = pytest.importorskip("pyspark.sql.types")
pa = pytest.importorskip("pyarrow")

pytestmark = pytest.mark.usefixtures("arrow_packages")

BINARY, STRING, LONG, DOUBLE, TIMESTAMP = (
    getattr(types, name)() for name in ("BinaryType", "StringType", "LongType", "DoubleType", "TimestampType")
)
HEADERS = types.MapType(STRING, STRING)
ARROW_HEADERS = pa.map_(pa.string(), pa.string())
ARROW_TIME = pa.timestamp("us", tz="Europe/Berlin")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """An empty queue."""
    PersistentQueue(tmp_path / "q", mode="exclusive").close()
    return tmp_path / "q"


def write(path: Path, schema: dict[str, Any], columns: dict[str, Any], **options: Any) -> None:
    """Write rows."""
    into = writer(path, schema_of(**schema), **options)
    commit(into, stage(into, pa.record_batch(columns)))


# -- Messages --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_a_payload_is_binary_or_text(path: Path, kind: Any) -> None:
    """Text as UTF-8; Spark may be set to send large ones."""
    is_text = kind in (pa.string(), pa.large_string())
    column = pa.array(["ä", "", "b"] if is_text else ["ä".encode(), b"", b"b"], kind)
    write(path, {"payload": STRING if is_text else BINARY}, {"payload": column})
    assert payloads(path) == ["ä".encode(), b"", b"b"]


def test_all_that_can_be_asked_for(path: Path) -> None:
    """Rows that ask for nothing are plain messages."""
    future = dt.datetime(2100, 1, 1, 12, tzinfo=dt.UTC)
    write(
        path,
        {
            "payload": BINARY,
            "headers": HEADERS,
            "priority": types.IntegerType(),
            "delay": DOUBLE,
            "not_before": TIMESTAMP,
            "ttl": types.DecimalType(10, 6),
            "order_key": STRING,
        },
        {
            "payload": [b"plain", b"headers", b"urgent", b"later", b"then", b"short", b"ordered"],
            "headers": pa.array([None, [("shop", "7"), ("ä", "")], [], [], [], [], []], ARROW_HEADERS),
            "priority": pa.array([0, None, 9, 0, 0, 0, 0], pa.int32()),
            "delay": pa.array([None, None, 0.0, 3600.0, None, None, None], pa.float64()),
            "not_before": pa.array([None, None, None, None, future, None, None], ARROW_TIME),
            "ttl": pa.array([None] * 5 + [Decimal("0.000001"), None], pa.decimal128(10, 6)),
            "order_key": pa.array([None] * 6 + ["k"]),
        },
    )
    with PersistentQueue(path, mode="exclusive") as queue:
        found = {each.payload: each for state in ("ready", "delayed") for each in queue.browse(state)}
        assert found[b"headers"].headers == {"shop": "7", "ä": ""}
        assert found[b"urgent"].priority == 9
        assert found[b"ordered"].order_key == "k"
        assert found[b"then"].until_ns == int(future.timestamp()) * 10**9
        assert found[b"plain"].headers == {}
        assert queue.get(timeout=0) == b"urgent"
        taken = [queue.get(timeout=0) for _ in range(3)]
        assert taken == [b"plain", b"headers", b"ordered"]
        assert queue.stats().delayed == 2


def test_durations_may_be_intervals_and_keys_may_be_called_group(path: Path) -> None:
    """And a column of nulls has no type."""
    write(
        path,
        {"payload": BINARY, "delay": types.DayTimeIntervalType(), "group": STRING, "ttl": types.NullType()},
        {
            "payload": [b"1", b"2"],
            "delay": pa.array([dt.timedelta(hours=1), None], pa.duration("us")),
            "group": ["k", None],
            "ttl": pa.nulls(2),
        },
    )
    with PersistentQueue(path, mode="exclusive") as queue:
        (first,) = queue.browse("delayed")
        assert (first.payload, first.order_key) == (b"1", "k")
        assert queue.get(timeout=0) == b"2"


def test_a_queue_is_copied_as_it_is_read(path: Path, tmp_path: Path) -> None:
    """What every message gets from its own queue is passed over."""
    from holdfast.spark.reading.schema import SCHEMA

    with PersistentQueue(tmp_path / "from", mode="exclusive") as queue:
        queue.put(b"1", headers={"content-type": "text/plain"}, priority=3)
        queue.put(b"2", order_key="k")
        queue.put(b"3")
    into = writer(path, SCHEMA)
    commit(into, stage(into, *batches(tmp_path / "from")))
    copies = batches(path)
    assert [row["payload"] for batch in copies for row in batch.to_pylist()] == [b"1", b"2", b"3"]
    asked = ("payload", "headers", "priority", "order_key")
    for copy, original in zip(copies, batches(tmp_path / "from"), strict=True):
        assert copy.select(asked).equals(original.select(asked))


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"body": BINARY}, "no column `payload`.*serializer"),
        ({"payload": LONG}, "`payload` is bigint.*to_json"),
        ({"payload": types.ArrayType(STRING)}, "`payload` is array<string>"),
        ({"payload": BINARY, "Priority": LONG}, "no column `Priority`: drop it"),
        ({"payload": BINARY, "priority": STRING}, "`priority` is string: make it int"),
        ({"payload": BINARY, "headers": types.MapType(STRING, LONG)}, "`headers` is map<string,bigint>"),
        ({"payload": BINARY, "delay": STRING}, "`delay` is string: make it double"),
        ({"payload": BINARY, "not_before": types.TimestampNTZType()}, "`not_before` is timestamp_ntz.*timestamp"),
        ({"payload": BINARY, "order_key": LONG}, "`order_key` is bigint: make it string"),
        ({"payload": BINARY, "order_key": STRING, "group": STRING}, "order_key and group.*drop one"),
        ({"payload": BINARY, "offset": STRING}, "no column `offset`"),
        ({"payload": BINARY, "timestamp": LONG}, "no column `timestamp`"),
    ],
)
def test_columns_that_cannot_be_are_refused_before_a_task_runs(path: Path, schema: dict[str, Any], words: str) -> None:
    """With the name of the column and what to do."""
    for is_stream in (False, True):
        with pytest.raises(ConfigError, match=words):
            writer(path, schema_of(**schema), is_stream=is_stream)


def test_two_columns_of_one_name(path: Path) -> None:
    """As a join makes them."""
    field = types.StructField("payload", BINARY)
    with pytest.raises(ConfigError, match="two columns are called `payload`"):
        writer(path, types.StructType([field, field]))


@pytest.mark.parametrize(
    ("kind", "column", "error", "words"),
    [
        ("payload", pa.array([b"1", None]), ConfigError, "`payload` is null in 1"),
        ("headers", pa.array([[("a", None)]], ARROW_HEADERS), ConfigError, "'a' is null"),
        ("priority", pa.array([10]), UsageError, "priority is 0 to 9"),
        ("delay", pa.array([-1.0]), UsageError, "delay"),
        ("delay", pa.array([float("nan")]), UsageError, "delay"),
        ("ttl", pa.array([0.0]), UsageError, "ttl"),
        ("not_before", pa.array([-1], ARROW_TIME), UsageError, "1970"),
        ("not_before", pa.array([253402300800000000], ARROW_TIME), UsageError, "the years 1 to 9999"),
        ("order_key", pa.array([""]), UsageError, "order_key"),
    ],
)
def test_values_that_cannot_be_fail_the_task(path: Path, kind: str, column: Any, error: type, words: str) -> None:
    """Nothing is staged then."""
    columns = {"payload": pa.array([b"fine"] * len(column)), kind: column}
    known = {"headers": HEADERS, "priority": LONG, "delay": DOUBLE, "ttl": DOUBLE, "not_before": TIMESTAMP}
    with pytest.raises(error, match=words):
        write(path, {"payload": BINARY, kind: {**known, "payload": BINARY}.get(kind, STRING)}, columns)
    assert staged(path) == []
    assert payloads(path) == []


# -- Objects ---------------------------------------------------------------------------------------------------------

NESTED = types.StructType([types.StructField("city", STRING), types.StructField("at", TIMESTAMP)])
OBJECT_SCHEMA = {
    "id": LONG,
    "amount": types.DecimalType(10, 2),
    "at": TIMESTAMP,
    "day": types.DateType(),
    "tags": types.ArrayType(STRING),
    "counts": types.MapType(STRING, LONG),
    "where": NESTED,
    "raw": BINARY,
    "none": STRING,
}
AT = dt.datetime(2026, 1, 31, 12, 30, 0, 250_000, tzinfo=dt.UTC)
OBJECT_COLUMNS = {
    "id": pa.array([1]),
    "amount": pa.array([Decimal("1.50")], pa.decimal128(10, 2)),
    "at": pa.array([AT], ARROW_TIME),
    "day": pa.array([dt.date(2026, 1, 31)]),
    "tags": pa.array([["a", "b"]]),
    "counts": pa.array([[("x", 1), ("y", 2)]], pa.map_(pa.string(), pa.int64())),
    "where": pa.array([{"city": "Köln", "at": AT}], pa.struct([("city", pa.string()), ("at", ARROW_TIME)])),
    "raw": pa.array([b"\x00\xff"]),
    "none": pa.array([None], pa.string()),
}


def test_rows_become_json_objects(path: Path) -> None:
    """What JSON does not have is text: times in ISO 8601, decimals exact, bytes in Base64."""
    write(path, OBJECT_SCHEMA, OBJECT_COLUMNS, serializer="json")
    (message,) = messages(path)
    body = json.loads(message.payload)
    assert dt.datetime.fromisoformat(body.pop("at")) == AT
    assert dt.datetime.fromisoformat(body["where"].pop("at")) == AT
    assert body == {
        "id": 1,
        "amount": "1.50",
        "day": "2026-01-31",
        "tags": ["a", "b"],
        "counts": {"x": 1, "y": 2},
        "where": {"city": "Köln"},
        "raw": "AP8=",
        "none": None,
    }
    assert message.headers["content-type"] == "application/json"
    assert "ce-type" not in message.headers


@pytest.mark.parametrize("serializer", ["json", "msgpack"])
def test_an_application_takes_them_as_its_own_type(tmp_path: Path, serializer: str) -> None:
    """Of a service, with the same serializer and the name of its class."""
    from support.spark.sink_bodies import Order, Place

    with QueueService(tmp_path) as service:
        path = service.queue("orders", type=Order, serializer=serializer).path
    write(path, OBJECT_SCHEMA, OBJECT_COLUMNS, serializer=serializer, type="Order", typeVersion=1)
    with QueueService(tmp_path) as service:
        orders = service.queue("orders", type=Order, serializer=serializer)
        message = orders.receive(timeout=5)
        assert message.body == Order(
            id=1,
            amount=Decimal("1.50"),
            at=AT,
            day=dt.date(2026, 1, 31),
            tags=["a", "b"],
            counts={"x": 1, "y": 2},
            where=Place("Köln", AT),
            raw=b"\x00\xff",
        )
        assert (message.headers["ce-type"], message.headers["ce-schemaversion"]) == ("Order", "1")
        message.ack()


def test_what_is_asked_for_an_object_stands_in_columns_of_its_own(path: Path) -> None:
    """With a ``_`` in front; the headers come beside those that say what the payload is."""
    write(
        path,
        {"id": LONG, "_headers": HEADERS, "_priority": LONG, "_id": LONG},
        {
            "id": pa.array([1, 2]),
            "_headers": pa.array([[("shop", "7")], None], ARROW_HEADERS),
            "_priority": pa.array([None, 3]),
            "_id": pa.array([8, 9]),
        },
        serializer="json",
    )
    with PersistentQueue(path, mode="exclusive") as queue:
        first, second = queue.browse()
    assert (json.loads(first.payload), first.priority) == ({"id": 1, "_id": 8}, 0)
    assert first.headers == {**second.headers, "shop": "7"}
    assert (json.loads(second.payload), second.priority) == ({"id": 2, "_id": 9}, 3)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"payload": BINARY, "id": LONG}, "a column `payload` and a serializer"),
        ({"_headers": HEADERS}, "no column to make an object of"),
        ({"id": LONG, "_priority": STRING}, "`_priority` is string"),
        ({"id": LONG, "_order_key": STRING, "_group": STRING}, "_order_key and _group"),
        ({"id": types.VariantType()}, "`id` is variant.*cast it"),
        ({"a": types.StructType([types.StructField("b", types.ArrayType(types.VariantType()))])}, "`a.b` is variant"),
        ({"a": types.MapType(DOUBLE, LONG)}, "`a` is map<double,bigint>.*keys"),
    ],
)
def test_columns_that_are_no_fields(path: Path, schema: dict[str, Any], words: str) -> None:
    """Refused before a task runs."""
    with pytest.raises(ConfigError, match=words):
        writer(path, schema_of(**schema), serializer="json")


def test_a_header_that_would_say_what_the_payload_is(path: Path) -> None:
    """It is the serializer's."""
    columns = {"id": pa.array([1]), "_headers": pa.array([[("content-type", "text/plain")]], ARROW_HEADERS)}
    with pytest.raises(UsageError, match="'content-type'"):
        write(path, {"id": LONG, "_headers": HEADERS}, columns, serializer="json")
    assert payloads(path) == []
