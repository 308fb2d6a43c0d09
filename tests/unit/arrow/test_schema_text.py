"""Fields of payloads as text: DDL and JSON of Spark are the same types of Arrow, and what is neither is an error."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

pytestmark = pytest.mark.extra("arrow")


def fields(text: str) -> dict[str, pa.DataType]:
    """Return the types by their names."""
    from holdfast.arrow.decoding.schema_text import schema_of_text

    return {field.name: field.type for field in schema_of_text(text, "orders.ddl")}


def test_plain_types_have_the_names_of_spark() -> None:
    """In small letters and in large ones, with comments, and with names in backquotes."""
    import pyarrow as pa

    text = (
        "id BIGINT NOT NULL COMMENT 'it\\'s, a >key', `a ``b`` c`: int,\n day date, at TIMESTAMP, local timestamp_ntz,"
    )
    text += "x double, ok boolean, raw BINARY, price DECIMAL(12, 3), dec decimal, whole decimal(5), name string "
    assert fields(text) == {
        "id": pa.int64(),
        "a `b` c": pa.int32(),
        "day": pa.date32(),
        "at": pa.timestamp("us", "UTC"),
        "local": pa.timestamp("us"),
        "x": pa.float64(),
        "ok": pa.bool_(),
        "raw": pa.binary(),
        "price": pa.decimal128(12, 3),
        "dec": pa.decimal128(10, 0),
        "whole": pa.decimal128(5, 0),
        "name": pa.string(),
    }


def test_types_are_nested() -> None:
    """As deep as they are written."""
    import pyarrow as pa

    item = pa.struct([("n", pa.int16()), ("tags", pa.list_(pa.string()))])
    assert fields("items ARRAY<STRUCT<n: SMALLINT, tags: ARRAY<STRING>>>, by MAP<STRING, ARRAY<FLOAT>>") == {
        "items": pa.list_(item),
        "by": pa.map_(pa.string(), pa.list_(pa.float32())),
    }


def test_the_json_of_spark_is_the_same() -> None:
    """As ``schema.json()`` writes it."""
    nested = {"type": "struct", "fields": [{"name": "n", "type": "short", "nullable": True, "metadata": {}}]}
    kinds: list[Any] = [
        "long",
        "decimal(12,3)",
        "timestamp",
        nested,
        {"type": "array", "elementType": "string", "containsNull": True},
        {"type": "map", "keyType": "string", "valueType": "double", "valueContainsNull": True},
    ]
    made = [{"name": f"f{place}", "type": kind} for place, kind in enumerate(kinds)]
    ddl = "f0 BIGINT, f1 DECIMAL(12,3), f2 TIMESTAMP, f3 STRUCT<n: SMALLINT>, f4 ARRAY<STRING>, f5 MAP<STRING, DOUBLE>"
    assert fields(json.dumps({"type": "struct", "fields": made})) == fields(ddl)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "'' is not expected"),
        ("{}", "'type' is missing"),
        ("{", "Expecting"),
        ('{"type": "long"}', "'long' is no type"),
        ('{"type": "struct", "fields": []}', "it has no fields"),
        ('{"type": "struct", "fields": [{"name": "a", "type": "long(3)"}]}', "'long' is no type"),
        ('{"type": "array", "elementType": "string"}', "it has no fields"),
        ("id", "'' is not expected"),
        ("id BIGINTEGER", "'BIGINTEGER' is no type"),
        ("id BIGINT(3)", "'BIGINT' is no type"),
        ("id BIGINT name STRING", "'name STRING' is not expected"),
        ("id ARRAY<BIGINT", "'>' is missing before ''"),
        ("id ARRAY BIGINT", "'<' is missing before 'BIGINT'"),
        ("id MAP<STRING>", "',' is missing before '>'"),
        ("id DECIMAL(x)", "invalid literal"),
        ("id DECIMAL(99, 2)", "precision"),
        ("id BIGINT NOT", "'NULL' is missing"),
        ("id BIGINT COMMENT 3", "'3' is not expected"),
        ("id BIGINT;", "';' is not expected"),
    ],
)
def test_what_is_no_schema_is_one_clear_error(text: str, said: str) -> None:
    """It names the file, what is wrong in it, and what a schema looks like."""
    with pytest.raises(
        ConfigError, match=r"^orders\.ddl is no schema .*write it as `id BIGINT, name STRING`"
    ) as caught:
        fields(text)
    assert said in str(caught.value)
