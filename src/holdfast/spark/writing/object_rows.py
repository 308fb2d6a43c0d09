"""Rows as objects: a serializer encodes a dict of its columns, as ``TypedQueue`` would put it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    FractionalType,
    IntegralType,
    MapType,
    NullType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from holdfast.errors import ConfigError, UsageError
from holdfast.messages import CommonHeaders
from holdfast.serializers.codec import Codec
from holdfast.serializers.headers import RESERVED_HEADERS, SCHEMA
from holdfast.serializers.registry import Registry

_PLAIN = (
    BinaryType,
    BooleanType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    FractionalType,
    IntegralType,
    NullType,
    StringType,
    TimestampNTZType,
    TimestampType,
)


class ObjectRows:
    """Encodes rows. Can be pickled.

    Parameters
    ----------
    schema : StructType
        Of the fields.
    serializer, type, version
        The serializer, and the type and version in the headers; no type: nothing.

    Raises
    ------
    ConfigError
        There is no field, or one that no serializer takes.
    """

    def __init__(self, schema: StructType, serializer: str, type: str, version: int) -> None:
        if not schema.fields:
            raise ConfigError("there is no column to make an object of: all of them say how the message is to be put")
        for field in schema.fields:
            _check(field.name, field.dataType)
        self._names = list(schema.names)
        self._codec: Codec[Any] = Codec(Registry(), serializer=serializer, version=version)
        _, headers = self._codec.encode({})
        self._common = CommonHeaders({**headers, SCHEMA: type} if type else headers)

    def payloads(self, batch: Any) -> list[bytes]:
        """Return the payloads of a ``pyarrow.RecordBatch``; raises EncodeError."""
        encode = self._codec.encode
        return [encode(row)[0] for row in batch.select(self._names).to_pylist(maps_as_pydicts="strict")]

    def headers(self, own: list[Mapping[str, str] | None] | None, count: int) -> list[Any]:
        """Return the headers of as many messages: their type, and the application's own."""
        if own is None:
            return [self._common] * count
        return [self._common if each is None else self._with(each) for each in own]

    def _with(self, own: Mapping[str, str]) -> dict[str, str]:
        taken = RESERVED_HEADERS.intersection(own)
        if taken:
            raise UsageError(f"the header {min(taken)!r} says how the payload is to be read: choose another name")
        return {**self._common, **own}


def _check(name: str, kind: DataType) -> None:
    """Refuse a value that is not plain data; raises ConfigError."""
    if isinstance(kind, StructType):
        for field in kind.fields:
            _check(f"{name}.{field.name}", field.dataType)
    elif isinstance(kind, ArrayType):
        _check(name, kind.elementType)
    elif isinstance(kind, MapType):
        if not isinstance(kind.keyType, StringType | IntegralType):
            raise ConfigError(
                f"the column `{name}` is {kind.simpleString()}: a field has keys of type string or int, so cast them"
            )
        _check(name, kind.valueType)
    elif not isinstance(kind, _PLAIN):
        raise ConfigError(f"the column `{name}` is {kind.simpleString()}, which is no field: cast it, to string say")
