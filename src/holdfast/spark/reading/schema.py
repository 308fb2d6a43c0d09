"""The columns of a queue as Spark sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from holdfast.arrow.decoding.decoding import BODY, UNDECODABLE, Decoding
from holdfast.arrow.reading.columns import FIELDS, named_fields
from holdfast.arrow.reading.row_maker import QUEUE, UNDECODABLE_TYPE, RowMaker, decoder_of
from holdfast.errors import ConfigError

SCHEMA = StructType(
    [
        StructField("payload", BinaryType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestamp_ns", LongType()),
        StructField("headers", MapType(StringType(), StringType())),
        StructField("delivery_count", IntegerType()),
        StructField("priority", IntegerType()),
        StructField("order_key", StringType()),
    ]
)
"""Every column there is; a read may ask for fewer."""

_ARROW = dict(FIELDS)
assert list(_ARROW) == SCHEMA.fieldNames()


_UNDECODABLE = StructField(
    UNDECODABLE, StructType([StructField("payload", BinaryType()), StructField("reason", StringType())])
)
_QUEUE = StructField(QUEUE, StringType())


def full_schema(*, has_queue: bool = False, decoding: Decoding | None = None) -> StructType | str:
    """Return every column of a read; as text, which Spark's JVM parses, if it has the fields of payloads.

    Raises
    ------
    ConfigError
        The fields of payloads are not given.
    """
    schema = StructType([*SCHEMA.fields, *((_QUEUE,) if has_queue else ())])
    if decoding is None:
        return schema
    if not decoding.schema:
        raise ConfigError(
            "decode=true needs a schema of the DataFrame with a struct `body`: say schema('offset BIGINT, body "
            "STRUCT<id: BIGINT>, undecodable STRUCT<payload: BINARY, reason: STRING>'); or give the fields alone, with "
            "option('decode', 'id BIGINT')"
        )
    fields = [f"{field.name} {_spelled(field.dataType)}" for field in schema.fields]
    return ", ".join([*fields, f"{BODY} STRUCT<{decoding.schema}>", f"{UNDECODABLE} {_spelled(_UNDECODABLE.dataType)}"])


def _spelled(kind: DataType) -> str:
    return "TIMESTAMP_LTZ" if isinstance(kind, TimestampType) else kind.simpleString()


def row_maker(schema: StructType, *, has_queue: bool = False, decoding: Decoding | None = None) -> RowMaker:
    """Return what makes the columns that a read asks for.

    Raises
    ------
    ConfigError
        A column that there is not, or a body that cannot be decoded.
    """
    known = {field.name: field.dataType for field in (*SCHEMA.fields, *((_QUEUE,) if has_queue else ()))}
    decoder = None
    if decoding is not None:
        body = schema[BODY].dataType if BODY in schema.names else None
        if not isinstance(body, StructType):
            raise ConfigError("decode needs a column `body`, a struct of the fields of payloads")
        known |= {BODY: body, UNDECODABLE: _UNDECODABLE.dataType}
        decoder = decoder_of(Decoding(_arrow_type(body, BODY), decoding.codec, decoding.descriptor, decoding.message))
    for field in schema.fields:
        if not _is_same(known.get(field.name), field.dataType):
            ours = ", ".join(f"{name} {kind.simpleString()}" for name, kind in known.items())
            raise ConfigError(
                f"a queue has no column `{field.name} {field.dataType.simpleString()}`; it has {ours}. "
                "Make columns of payloads with option('decode', ...), or holdfast.spark.with_json(df, schema)"
            )
    kinds = {**_ARROW, QUEUE: pa.string(), UNDECODABLE: UNDECODABLE_TYPE}
    if decoder is not None:
        kinds[BODY] = decoder.kind
    return RowMaker(tuple((field.name, kinds[field.name]) for field in schema.fields), decoder)


def _is_same(known: DataType | None, asked: DataType) -> bool:
    return known is not None and known.simpleString() == asked.simpleString()  # under any nullability


_ARROW_TYPES: dict[type[DataType], Any] = {
    BinaryType: pa.binary(),
    BooleanType: pa.bool_(),
    ByteType: pa.int8(),
    DateType: pa.date32(),
    DayTimeIntervalType: pa.duration("us"),
    DoubleType: pa.float64(),
    FloatType: pa.float32(),
    IntegerType: pa.int32(),
    LongType: pa.int64(),
    ShortType: pa.int16(),
    StringType: pa.string(),
    TimestampNTZType: pa.timestamp("us"),
    TimestampType: pa.timestamp("us", tz="UTC"),
}


def _arrow_type(kind: DataType, name: str) -> Any:
    """Return the Arrow type of a part of a body; raises ConfigError if there is none."""
    if isinstance(kind, StructType):
        return pa.struct([(field.name, _arrow_type(field.dataType, f"{name}.{field.name}")) for field in kind.fields])
    if isinstance(kind, ArrayType):
        return pa.list_(_arrow_type(kind.elementType, name))
    if isinstance(kind, MapType):
        return pa.map_(_arrow_type(kind.keyType, name), _arrow_type(kind.valueType, name))
    if isinstance(kind, DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    for each, arrow in _ARROW_TYPES.items():
        if isinstance(kind, each):
            return arrow
    raise ConfigError(f"`{name}` cannot be {kind.simpleString()}: choose another type, such as string")


def drain_columns(
    names: Sequence[str] | None, decode: Decoding | StructType | str | None, *, has_queue: bool = False
) -> tuple[StructType, RowMaker]:
    """Return the columns of a drain, all of them if ``names`` is None; raises ConfigError as :func:`row_maker`."""
    whole = StructType([*SCHEMA.fields, *((_QUEUE,) if has_queue else ())])
    decoding = None
    if decode is not None:
        decoding = decode if isinstance(decode, Decoding) else Decoding(decode)
        fields = decoding.schema
        body = StructType.fromDDL(fields) if isinstance(fields, str) else fields
        whole = StructType([*whole.fields, StructField(BODY, body), _UNDECODABLE])
    rows = row_maker(whole, has_queue=has_queue, decoding=decoding)
    rows = RowMaker(named_fields(names, rows.fields), rows.decoder)
    return StructType([whole[name] for name, _ in rows.fields]), rows
