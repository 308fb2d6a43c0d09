"""The columns of a queue as Spark sees it."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from holdfast.arrow.reading.columns import FIELDS, Field, named_fields
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


def chosen_fields(schema: StructType) -> list[Field]:
    """Return names and Arrow types of the columns that a read asks for; raises ConfigError for unknown columns."""
    known = {field.name: field.dataType for field in SCHEMA.fields}
    for field in schema.fields:
        if known.get(field.name) != field.dataType:
            ours = ", ".join(f"{name} {kind.simpleString()}" for name, kind in known.items())
            raise ConfigError(
                f"a queue has no column `{field.name} {field.dataType.simpleString()}`; it has {ours}. "
                "Make columns of payloads with holdfast.spark.with_json(df, schema)"
            )
    return [(field.name, _ARROW[field.name]) for field in schema.fields]


def schema_with(names: Sequence[str] | None) -> StructType:
    """Return the schema of these columns, all of them if None; raises ConfigError for unknown names, and for none."""
    return StructType([SCHEMA[name] for name, _ in named_fields(names)])
