"""Payloads as columns: every message has a body or a reason why not, whatever its headers say."""

from __future__ import annotations

import datetime as dt
import pickle
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import ConfigError, DecodeError, PersistentQueue, Put
from holdfast.arrow import ArrowDrainer, Decoding, scan
from holdfast.errors import StorageError
from holdfast.serializers.codec import Codec
from holdfast.serializers.registry import Registry

pytestmark = pytest.mark.extra("arrow")


class OldCustomer(msgspec.Struct):
    """As it was in an older version of the program."""

    __schema__ = "Customer"
    title: str


class Customer(msgspec.Struct):
    """The present version."""

    name: str
    visits: int = 0


customers: Codec[Customer] = Codec(Registry(), type=Customer, version=2)


@customers.upcast(1, 2)
def title_is_name(customer: dict[str, Any]) -> dict[str, Any]:
    """The field has another name by now."""
    return {"name": customer.pop("title"), **customer}


registry = Registry()
CUSTOMERS = f"{__name__}:customers"


def struct(**fields: Any) -> Any:
    """Return a schema."""
    import pyarrow as pa

    return pa.schema(list(fields.items()))


def ids() -> Any:
    """Return the schema of most of these."""
    import pyarrow as pa

    return struct(id=pa.int32())


def decoded(path: Path, decode: Any, *messages: bytes | Put) -> list[dict[str, Any]]:
    """Return bodies and reasons of messages that are put into a new queue."""
    with PersistentQueue(path) as queue:
        queue.put_many(messages)
    rows: list[dict[str, Any]] = scan(path, columns=["body", "undecodable"], decode=decode).read_all().to_pylist()
    return rows


def typed(body: Any, **options: Any) -> Put:
    """Return a message as a codec puts it."""
    payload, headers = Codec[Any](Registry(), **options).encode(body)
    return Put(payload, headers=dict(headers))


def test_a_message_is_decoded_by_its_own_content_type_and_encoding(tmp_path: Path) -> None:
    """JSON, MessagePack, and either compressed; without headers it is JSON. Unknown fields are ignored."""
    body = {"id": 7, "pad": "x" * 100}
    messages = [typed(body, serializer=name, compress_bytes=size) for name in ("json", "msgpack") for size in (None, 1)]
    rows = decoded(tmp_path / "q", ids(), b'{"id": 7, "more": 1}', *messages)
    assert rows == [{"body": {"id": 7}, "undecodable": None}] * 5


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b'{"id": "7"}', r"Expected `int \| null`, got `str` - at `\$.id`"),
        (b'{"id": 7.5}', "got `float`"),
        (b'{"id": true}', "got `bool`"),
        (b'{"id": 3000000000}', "Expected `int` <= 2147483647"),
        (b"[7]", "Expected `object`, got `array`"),
        (b"", "truncated"),
        (b'{"id": 7} x', "trailing characters"),
        (b'\xff{"id": 7}', "invalid character"),
        (Put(b"\x89PNG", headers={"content-type": "image/png"}), "no serializer takes content type 'image/png'"),
        (Put(b"{}", headers={"content-encoding": "gzip"}), "knows 'zstd' only"),
        (Put(b"{}", headers={"content-encoding": "zstd"}), "not what zstd made"),
        (Put(b"{}", headers={"content-type": "application/octet-stream"}), "gives bytes"),
        (Put(b"{}", headers={"content-type": "application/protobuf"}), "needs a descriptor"),
    ],
)
def test_what_does_not_fit_is_kept_byte_for_byte_with_the_reason(
    tmp_path: Path, message: bytes | Put, reason: str
) -> None:
    """It is never a body of nulls; the messages beside it are decoded all the same."""
    import re

    good, bad, last = decoded(tmp_path / "q", ids(), b'{"id": 1}', message, b"{}")
    assert (good["body"], last["body"]) == ({"id": 1}, {"id": None})
    assert bad["body"] is None
    assert bad["undecodable"]["payload"] == (message.payload if isinstance(message, Put) else message)
    assert re.search(reason, bad["undecodable"]["reason"])


def test_values_that_only_arrow_refuses_do_not_fit_either(tmp_path: Path) -> None:
    """A number that is too large for its column, or has more digits."""
    import pyarrow as pa

    schema = struct(number=pa.int64(), price=pa.decimal128(5, 2))
    rows = decoded(tmp_path / "q", schema, b'{"number": 1e2}', b'{"number": 5}', b'{"number": 99999999999999999999}')
    assert [row["body"] and row["body"]["number"] for row in rows] == [None, 5, None]
    assert "too large" in rows[2]["undecodable"]["reason"]
    rows = decoded(tmp_path / "p", schema, b'{"price": "1.25"}', b'{"price": 1.234}', b'{"price": 3}')
    assert [row["body"] and row["body"]["price"] for row in rows] == [Decimal("1.25"), None, Decimal("3.00")]
    assert rows[1]["undecodable"]["payload"] == b'{"price": 1.234}'


@pytest.mark.parametrize(
    ("kind", "fitting", "other"),
    [
        (("float32",), 3.4e38, 1e39),
        (("float32",), 0.1, -(2.0**128)),
        (("float16",), 65504, 65520),
        (("timestamp", "s"), "2026-01-31T12:00:00", "2026-01-31T12:00:00.5"),
        (("timestamp", "ms", "UTC"), "2026-01-31T12:00:00.123Z", "2026-01-31T12:00:00.123456Z"),
        (("duration", "s"), "PT1M", "PT1.5S"),
        (("duration", "ms"), "PT1.5S", "-PT0.0005S"),
    ],
)
@pytest.mark.parametrize("is_nested", [False, True])
def test_values_that_arrow_would_change_do_not_fit(
    tmp_path: Path, kind: tuple[str, ...], fitting: Any, other: Any, is_nested: bool
) -> None:
    """It would make a large number infinite, and cut the end of a time off; a number that is rounded does fit."""
    import pyarrow as pa

    name, *unit = kind
    value = getattr(pa, name)(*unit)
    schema = struct(a=pa.map_(pa.string(), pa.list_(pa.struct([("b", value)]))) if is_nested else value)
    bodies = [{"a": {"x": [{"b": each}, {}, None]} if is_nested else each} for each in (fitting, other, None)]
    if is_nested:
        bodies[-1] = {"a": None}
    texts = [msgspec.json.encode(each) for each in bodies]
    good, bad, last = decoded(tmp_path / "q", schema, *texts)
    assert (good["undecodable"], last) == (None, {"body": {"a": None}, "undecodable": None})
    assert bad["body"] is None
    assert bad["undecodable"]["payload"] == texts[1]
    assert "does not fit into" in bad["undecodable"]["reason"]


def test_every_type_that_payloads_have_is_a_column(tmp_path: Path) -> None:
    """Times as ISO 8601, bytes as Base64 in JSON; structs, lists and maps inside each other."""
    import pyarrow as pa

    inner = pa.struct([("names", pa.map_(pa.string(), pa.list_(pa.int8())))])
    schema = struct(
        at=pa.timestamp("us", tz="UTC"),
        local=pa.timestamp("us"),
        day=pa.date32(),
        span=pa.duration("us"),
        raw=pa.binary(),
        yes=pa.bool_(),
        rate=pa.float32(),
        nothing=pa.null(),
        rows=pa.list_(inner),
        code=pa.uint8(),
    )
    text = (
        b'{"at": "2026-01-31T12:00:00+01:00", "local": "2026-01-31T12:00:00", "day": "2026-01-31", "span": "PT1M", '
        b'"raw": "AAE=", "yes": true, "rate": 1, "nothing": null, "rows": [{"names": {"a": [1, null]}}, null, {}], '
        b'"code": 255}'
    )
    late, clock, (row,) = b'{"local": "2026-01-31T12:00:00Z"}', b'{"code": 256}', decoded(tmp_path / "q", schema, text)
    assert row["undecodable"] is None
    body = row["body"]
    assert body["at"] == dt.datetime(2026, 1, 31, 11, tzinfo=dt.UTC)
    assert (body["local"], body["day"]) == (dt.datetime(2026, 1, 31, 12), dt.date(2026, 1, 31))
    assert (body["span"], body["raw"], body["yes"]) == (dt.timedelta(minutes=1), b"\0\1", True)
    assert (body["rate"], body["nothing"], body["code"]) == (1.0, None, 255)
    assert body["rows"] == [{"names": [("a", [1, None])]}, None, {"names": None}]
    assert [each["body"] for each in decoded(tmp_path / "p", schema, late, clock)] == [None, None]


def test_a_column_undecodable_is_needed_for_messages_that_do_not_fit(tmp_path: Path) -> None:
    """Without it the first one is an error with its place: no row is null without a word."""
    with PersistentQueue(tmp_path / "q") as queue:
        queue.put_many([b'{"id": 1}', b"no"])
    with pytest.raises(DecodeError, match=r"message 1 of q cannot be decoded.*With a column 'undecodable'"):
        scan(tmp_path / "q", columns=["body"], decode=ids()).read_all()
    assert scan(tmp_path / "q", columns=["body"], stop=1, decode=ids()).read_all().num_rows == 1


# -- Codecs ------------------------------------------------------------------------------------------------------------


def names() -> Any:
    """Return the schema of customers."""
    import pyarrow as pa

    return struct(name=pa.string(), visits=pa.int64())


def test_a_codec_of_the_application_upcasts_older_versions(tmp_path: Path) -> None:
    """And refuses newer ones and other types, with its own words."""
    rows = decoded(
        tmp_path / "q",
        Decoding(names(), codec=CUSTOMERS),
        typed(OldCustomer("Zoë"), type=OldCustomer),
        typed(Customer("Ada", 3), type=Customer, version=2),
        Put(b"{}", headers={"ce-type": "Customer", "ce-schemaversion": "3"}),
        Put(b"{}", headers={"ce-type": "Refund"}),
    )
    assert [row["body"] for row in rows] == [{"name": "Zoë", "visits": 0}, {"name": "Ada", "visits": 3}, None, None]
    assert "newer than version 2" in rows[2]["undecodable"]["reason"]
    assert "'Refund', and the queue takes Customer" in rows[3]["undecodable"]["reason"]


def test_a_registry_brings_serializers_and_any_type(tmp_path: Path) -> None:
    """So does an object that has a codec, as a typed queue has."""
    assert decoded(tmp_path / "q", Decoding(ids(), codec=f"{__name__}:registry"), b'{"id": 7}')[0]["body"] == {"id": 7}


@pytest.mark.parametrize(
    ("codec", "said"),
    [
        ("customers", "codec is module:name"),
        (":customers", "codec is module:name"),
        ("no_such_module:customers", "cannot be imported on .*No module named.*every machine that decodes"),
        (f"{__name__}:nothing", "cannot be imported on .*has no attribute 'nothing'"),
        (f"{__name__}:struct", "of the class function: name a Codec, a TypedQueue or a Registry"),
    ],
)
def test_a_codec_that_is_none_is_an_error_before_anything_is_read(tmp_path: Path, codec: str, said: str) -> None:
    """It says on which machine, and what that needs."""
    PersistentQueue(tmp_path / "q").close()
    with pytest.raises(ConfigError, match=said):
        scan(tmp_path / "q", decode=Decoding(ids(), codec=codec))


def test_a_task_imports_the_codec_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only its name travels; where the module is missing, the error says so."""
    from holdfast.arrow.reading.row_maker import decoder_of

    sent = pickle.dumps(decoder_of(Decoding(names(), codec=CUSTOMERS)))
    payload, headers = customers.encode(Customer("Ada"))
    assert pickle.loads(sent).decode([payload], [b""])[0].to_pylist() == [{"name": "Ada", "visits": 0}]
    assert headers["ce-type"] == "Customer"
    monkeypatch.setitem(sys.modules, __name__, None)  # as on a machine that does not have it
    with pytest.raises(ConfigError, match="cannot be imported on"):
        pickle.loads(sent)


def test_a_missing_package_is_an_error_of_the_machine_and_not_of_the_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else all compressed messages would look as if they were broken."""
    message = typed({"id": 7, "pad": "x" * 100}, compress_bytes=1)
    for module in ("compression.zstd", "backports.zstd"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=r"holdfast\[zstd\]"):
        decoded(tmp_path / "q", ids(), message)


# -- Pickles -----------------------------------------------------------------------------------------------------------


class Trap:
    """Notes that it was unpickled."""

    sprung: list[str] = []  # noqa: RUF012

    def __reduce__(self) -> Any:
        return self.sprung.append, ("run",)


with pytest.warns(UserWarning, match="allow_pickle"):
    trusting: Codec[Any] = Codec(Registry(), allow_pickle=True)


def test_no_pickle_is_read_unless_the_codec_allows_it(tmp_path: Path) -> None:
    """Nothing of it runs; only the codec of the application can allow it."""
    message = Put(pickle.dumps(Trap()), headers={"content-type": "application/x-python-pickle"})
    for decode in (ids(), Decoding(names(), codec=CUSTOMERS)):
        (row,) = decoded(tmp_path / str(id(decode)), decode, message)
        assert "which runs whatever code" in row["undecodable"]["reason"]
    assert Trap.sprung == []
    allowed = Put(pickle.dumps({"id": 7}), headers={"content-type": "application/x-python-pickle"})
    assert decoded(tmp_path / "p", Decoding(ids(), codec=f"{__name__}:trusting"), allowed)[0]["body"] == {"id": 7}


# -- Protocol Buffers --------------------------------------------------------------------------------------------------


@pytest.fixture
def descriptor(tmp_path: Path) -> Path:
    """A file as protoc makes it: a shop's event with an enum, a map, a list, a time and a field with presence."""
    pytest.importorskip("google.protobuf")
    from google.protobuf import descriptor_pb2, timestamp_pb2

    files = descriptor_pb2.FileDescriptorSet()
    timestamp_pb2.DESCRIPTOR.CopyToProto(files.file.add())
    file = files.file.add(
        name="shop.proto", package="shop", syntax="proto3", dependency=[timestamp_pb2.DESCRIPTOR.name]
    )
    kinds = descriptor_pb2.FieldDescriptorProto
    colours = file.enum_type.add(name="Colour")
    for number, name in enumerate(("NONE", "RED")):
        colours.value.add(name=name, number=number)
    event = file.message_type.add(name="Event")
    entry = event.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=kinds.TYPE_INT32, label=kinds.LABEL_OPTIONAL)
    add = event.field.add
    add(name="id", number=1, type=kinds.TYPE_INT64, label=kinds.LABEL_OPTIONAL)
    add(name="colour", number=2, type=kinds.TYPE_ENUM, type_name=".shop.Colour", label=kinds.LABEL_OPTIONAL)
    add(name="tags", number=3, type=kinds.TYPE_STRING, label=kinds.LABEL_REPEATED)
    add(
        name="counts",
        number=4,
        type=kinds.TYPE_MESSAGE,
        type_name=".shop.Event.CountsEntry",
        label=kinds.LABEL_REPEATED,
    )
    at = ".google.protobuf.Timestamp"
    add(name="at", number=5, type=kinds.TYPE_MESSAGE, type_name=at, label=kinds.LABEL_OPTIONAL)
    add(name="parent", number=6, type=kinds.TYPE_MESSAGE, type_name=".shop.Event", label=kinds.LABEL_OPTIONAL)
    (tmp_path / "shop.desc").write_bytes(files.SerializeToString())
    return tmp_path / "shop.desc"


def event_schema() -> Any:
    """Return the fields of an event."""
    import pyarrow as pa

    return struct(
        id=pa.int64(),
        colour=pa.string(),
        tags=pa.list_(pa.string()),
        counts=pa.map_(pa.string(), pa.int32()),
        at=pa.timestamp("us", tz="UTC"),
        parent=pa.struct([("id", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))]),
    )


@pytest.mark.extra("protobuf")
def test_protocol_buffers_are_decoded_by_a_descriptor(tmp_path: Path, descriptor: Path) -> None:
    """The header names the message; a default is a value, and only what knows that it is not set is null."""
    from holdfast.arrow.decoding.protobuf_messages import message_class

    kind = message_class(descriptor.read_bytes(), "shop.Event")
    event = kind(id=2**60, colour=1, tags=["a"], counts={"x": 1}, parent=kind(id=3))
    event.at.FromDatetime(dt.datetime(2026, 1, 31, 12))
    unknown = kind()
    unknown.MergeFromString(b"\x10\x07")  # a colour that the descriptor does not know
    (row, empty, strange) = decoded(
        tmp_path / "q",
        Decoding(event_schema(), descriptor=descriptor),
        *(typed(each, type=kind, serializer="protobuf", compress_bytes=1) for each in (event, kind(), unknown)),
    )
    at = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)
    assert row["body"] == {
        "id": 2**60,
        "colour": "RED",
        "tags": ["a"],
        "counts": [("x", 1)],
        "at": at,
        "parent": {"id": 3, "at": None},
    }
    assert empty["body"] == {"id": 0, "colour": "NONE", "tags": [], "counts": [], "at": None, "parent": None}
    assert "Expected `str | null`, got `int`" in strange["undecodable"]["reason"]


@pytest.mark.extra("protobuf")
def test_the_name_of_the_message_may_be_given(tmp_path: Path, descriptor: Path) -> None:
    """For messages whose headers do not have it; bytes that are none of this message do not fit."""
    headers = {"content-type": "application/protobuf"}
    decode = Decoding(event_schema(), descriptor=descriptor.read_bytes(), message="shop.Event")
    row, bad, other = decoded(
        tmp_path / "q",
        decode,
        Put(b"\x08\x05", headers=headers),
        Put(b"\x08", headers=headers),
        Put(b"", headers={**headers, "ce-type": "shop.Refund"}),
    )
    assert row["body"]["id"] == 5
    assert (bad["body"], bad["undecodable"]["payload"]) == (None, b"\x08")
    assert "no message 'shop.Refund'" in other["undecodable"]["reason"]
    (nameless,) = decoded(
        tmp_path / "p", Decoding(event_schema(), descriptor=descriptor), Put(b"\x08\x05", headers=headers)
    )
    assert "do not name the message" in nameless["undecodable"]["reason"]


@pytest.mark.extra("protobuf")
def test_a_codec_decodes_generated_classes(tmp_path: Path) -> None:
    """Then no descriptor is needed."""
    import pyarrow as pa

    from support.service.extra_bodies import Event

    message = typed(Event(id=5, name="a"), type=Event, serializer="protobuf")
    decode = Decoding(struct(id=pa.int64(), name=pa.string()), codec=f"{__name__}:events")
    sys.modules[__name__].events = Codec(Registry(), type=Event, serializer="protobuf")  # type: ignore[attr-defined]
    assert decoded(tmp_path / "q", decode, message)[0]["body"] == {"id": 5, "name": "a"}


@pytest.mark.extra("protobuf")
def test_a_descriptor_that_is_none_is_an_error(tmp_path: Path, descriptor: Path) -> None:
    """A file that is missing, or no set of files; a message that it does not have."""
    PersistentQueue(tmp_path / "q").close()
    (tmp_path / "bad").write_bytes(b"no descriptor")
    for options, error, said in (
        ({"descriptor": tmp_path / "missing"}, StorageError, "cannot be read"),
        ({"descriptor": tmp_path / "bad"}, ConfigError, "no set of files.*--include_imports"),
        ({"descriptor": descriptor, "message": "shop.Refund"}, ConfigError, "no message 'shop.Refund'"),
        ({"message": "shop.Event"}, ConfigError, "needs a descriptor"),
    ):
        with pytest.raises(error, match=said):
            scan(tmp_path / "q", decode=Decoding(event_schema(), **options))


# -- Where else --------------------------------------------------------------------------------------------------------


def test_a_drain_decodes_too(tmp_path: Path) -> None:
    """With the same columns."""
    with PersistentQueue(tmp_path / "q") as queue:
        queue.put_many([b'{"id": 1}', b"no"])
    found: list[Any] = []
    columns = ["offset", "body", "undecodable"]
    ArrowDrainer(
        tmp_path / "q", lambda rows, _: found.extend(rows.read_all().to_pylist()), columns=columns, decode=ids()
    ).run()
    assert [row["body"] for row in found] == [{"id": 1}, None]
    assert found[1]["undecodable"]["payload"] == b"no"


def test_a_schema_that_cannot_be_is_an_error(tmp_path: Path) -> None:
    """Before anything is read."""
    import pyarrow as pa

    PersistentQueue(tmp_path / "q").close()
    for schema, said in (
        (struct(a=pa.dictionary(pa.int8(), pa.string())), "a body cannot have 'Body.a' as dictionary"),
        (pa.schema([]), "a struct of one field or more"),
        (pa.schema([("a", pa.int8()), ("a", pa.int8())]), "has the field 'a' twice"),
        (pa.int8(), "a struct of one field or more"),
        ("id bigint", "decode is a pyarrow.Schema"),
    ):
        with pytest.raises(ConfigError, match=said):
            scan(tmp_path / "q", decode=schema)
    with pytest.raises(ConfigError, match="columns are a list of "):
        scan(tmp_path / "q", columns=["body"])


def test_messages_with_very_many_different_headers_are_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is remembered of headers stays bounded."""
    monkeypatch.setattr("holdfast.arrow.decoding.decoder._DISTINCT_MAX", 3)
    messages = [Put(b'{"id": %d}' % each, headers={"n": str(each)}) for each in range(10)]
    assert [row["body"]["id"] for row in decoded(tmp_path / "q", ids(), *messages)] == list(range(10))


def test_without_a_codec_every_schema_and_version_is_decoded_as_it_is(tmp_path: Path) -> None:
    """The schema is that of the caller."""
    message = Put(b'{"id": 7}', headers={"ce-type": "Anything", "ce-schemaversion": "9"})
    assert decoded(tmp_path / "q", ids(), message)[0]["body"] == {"id": 7}
