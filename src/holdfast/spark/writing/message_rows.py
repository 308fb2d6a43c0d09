"""Maps the columns of a DataFrame to messages, and reads the messages of a record batch. docs/spark-sink.md.

With a column ``payload`` the other columns are what can be asked for a message. With a serializer every row is an
object; options are columns with a ``_`` in front.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    DataType,
    DayTimeIntervalType,
    FractionalType,
    IntegralType,
    MapType,
    NullType,
    StringType,
    StructType,
    TimestampType,
)

from holdfast.errors import ConfigError, UsageError
from holdfast.messages import CommonHeaders
from holdfast.queue.options.put_options import Put
from holdfast.spark.reading.schema import SCHEMA
from holdfast.spark.writing.object_rows import ObjectRows
from holdfast.spark.writing.options import WriteOptions

_SLICE_ROWS = 500
"""Rows made into Python objects at a time: a megabyte of 2 KB payloads, which the processor's cache holds."""

_DISTINCT_MAX = 4096

_GIVEN = ("offset", "timestamp", "timestamp_ns", "delivery_count")
_GIVEN_BY_THE_QUEUE = {name: SCHEMA[name].dataType for name in _GIVEN}
"""Columns of a queue that was read which nobody writes: every message gets its own from the queue it is put into."""

_Values = list[Any]


@dataclass(frozen=True, slots=True)
class _Ask:
    """The option that a column sets.

    Attributes
    ----------
    keyword : str
        Of ``Put``.
    types : str
        The allowed types of the column, in words.
    takes : callable
        Whether it may be of a type.
    values : callable
        Returns its values as ``Put`` takes them; None if a row asks for nothing.
    """

    keyword: str
    types: str
    takes: Callable[[DataType], bool]
    values: Callable[[Any], _Values]


class MessageRows:
    """Makes messages of record batches. Can be pickled.

    Parameters
    ----------
    schema : StructType
        Of the DataFrame.
    options : WriteOptions
        Whether rows are objects.

    Raises
    ------
    ConfigError
        A column that is unknown, of another type, or missing.
    """

    def __init__(self, schema: StructType, options: WriteOptions) -> None:
        twice = [name for place, name in enumerate(schema.names) if name in schema.names[:place]]
        if twice:
            raise ConfigError(f"two columns are called `{twice[0]}`: rename one")
        self._objects: ObjectRows | None = None
        if options.serializer is not None:
            asked = _check_object_columns(schema)
            rest = StructType([field for field in schema.fields if field.name not in asked])
            self._objects = ObjectRows(rest, options.serializer, options.type, options.type_version)
        else:
            asked = _check_message_columns(schema)
        self._asked = asked
        if len(set(asked.values())) < len(asked):
            names = " and ".join(name for name, keyword in asked.items() if keyword == "order_key")
            raise ConfigError(f"the columns {names} are two names of one thing: drop one")

    def messages(self, batch: Any) -> Iterator[Sequence[bytes | Put]]:
        """Yield the messages of a ``pyarrow.RecordBatch`` in order, some at a time.

        Raises
        ------
        ConfigError
            A payload, or the value of a header, is null.
        EncodeError
            A row cannot be encoded.
        """
        for start in range(0, batch.num_rows, _SLICE_ROWS):
            yield self._some(batch.slice(start, _SLICE_ROWS))

    def _some(self, batch: Any) -> Sequence[bytes | Put]:
        asked = {keyword: _ASKS[keyword].values(batch.column(name)) for name, keyword in self._asked.items()}
        payloads: Sequence[bytes]
        if self._objects is not None:
            payloads = self._objects.payloads(batch)
            asked["headers"] = self._objects.headers(asked.get("headers"), len(payloads))
        else:
            payloads = _payloads(batch.column("payload"))
        asked = {keyword: values for keyword, values in asked.items() if any(value is not None for value in values)}
        if not asked:
            return payloads
        rows = zip(*asked.values(), strict=True)
        return [_message(payload, asked, row) for payload, row in zip(payloads, rows, strict=True)]


def _message(payload: bytes, keywords: dict[str, _Values], row: tuple[Any, ...]) -> bytes | Put:
    options = {keyword: value for keyword, value in zip(keywords, row, strict=True) if value is not None}
    return Put(payload, **options) if options else payload


# -- Columns ---------------------------------------------------------------------------------------------------------


def _check_message_columns(schema: StructType) -> dict[str, str]:
    """Return the options by column, beside the payload."""
    if "payload" not in schema.names:
        raise ConfigError(
            "no column `payload`: name one so (binary or string), or say option('serializer', 'json') to make an "
            "object of every row"
        )
    kind = schema["payload"].dataType
    if not isinstance(kind, BinaryType | StringType):
        raise ConfigError(
            f"the column `payload` is {kind.simpleString()}, and a payload is binary or string: use to_json(), or say "
            "option('serializer', 'json') with the fields as columns"
        )
    asked = {}
    for field in schema.fields:
        if field.name == "payload" or _GIVEN_BY_THE_QUEUE.get(field.name) == field.dataType:
            continue
        if field.name not in _COLUMNS:
            known = ", ".join(f"{name} {_ASKS[keyword].types}" for name, keyword in _COLUMNS.items())
            raise ConfigError(f"a message has no column `{field.name}`: drop it. There are payload, {known}")
        asked[field.name] = _checked(field.name, field.dataType, _COLUMNS[field.name])
    return asked


def _check_object_columns(schema: StructType) -> dict[str, str]:
    """Return the options by column; all others are fields of the objects."""
    if "payload" in schema.names:
        raise ConfigError(
            "there is a column `payload` and a serializer, which makes an object of every row: leave one out; rename "
            "the column where it is a field"
        )
    return {
        field.name: _checked(field.name, field.dataType, _COLUMNS[field.name[1:]])
        for field in schema.fields
        if field.name.startswith("_") and field.name[1:] in _COLUMNS
    }


def _checked(name: str, kind: DataType, keyword: str) -> str:
    ask = _ASKS[keyword]
    if not isinstance(kind, NullType) and not ask.takes(kind):
        raise ConfigError(f"the column `{name}` is {kind.simpleString()}: make it {ask.types}, or drop it")
    return keyword


# -- Values ----------------------------------------------------------------------------------------------------------


def _payloads(column: Any) -> list[bytes]:
    if column.null_count:
        raise ConfigError(
            f"the column `payload` is null in {column.null_count} of these rows, and a message has a payload: leave "
            "them out with where('payload is not null'), or give them one with coalesce()"
        )
    if not pa.types.is_binary(column.type):
        column = column.cast(pa.large_binary() if pa.types.is_large_string(column.type) else pa.binary())
    return column.to_pylist()  # type: ignore[no-any-return]  # of bytes


def _headers(column: Any) -> _Values:
    return [_common_headers(tuple(pairs)) if pairs else None for pairs in column.to_pylist()]


@lru_cache(maxsize=_DISTINCT_MAX)
def _common_headers(pairs: tuple[tuple[str, str | None], ...]) -> CommonHeaders:
    """Return headers, which many messages share."""
    for name, value in pairs:
        if value is None:
            raise ConfigError(f"the header {name!r} is null in a row: remove it there, for example with map_filter()")
    return CommonHeaders(dict(pairs))  # type: ignore[arg-type]  # checked above


def _numbers(column: Any) -> _Values:
    return [value or None for value in column.to_pylist()]


def _durations(column: Any) -> _Values:
    is_decimal = pa.types.is_decimal(column.type)
    return (column.cast(pa.float64()) if is_decimal else column).to_pylist()  # type: ignore[no-any-return]


def _instants(column: Any) -> _Values:
    is_timestamp = pa.types.is_timestamp(column.type)
    try:
        return (column.cast(pa.timestamp("us", tz="UTC")) if is_timestamp else column).to_pylist()  # type: ignore[no-any-return]
    except (OverflowError, ValueError) as error:
        raise UsageError(f"not_before is in the years 1 to 9999 ({error})") from error


def _texts(column: Any) -> _Values:
    return column.to_pylist()  # type: ignore[no-any-return]


def _is_headers(kind: DataType) -> bool:
    return isinstance(kind, MapType) and isinstance(kind.keyType, StringType) and isinstance(kind.valueType, StringType)


def _is_duration(kind: DataType) -> bool:
    return isinstance(kind, IntegralType | FractionalType | DayTimeIntervalType)


_DURATION = "double (seconds) or interval day to second"

_ASKS = {
    ask.keyword: ask
    for ask in (
        _Ask("headers", "map<string,string>", _is_headers, _headers),
        _Ask("priority", "int", lambda kind: isinstance(kind, IntegralType), _numbers),
        _Ask("delay", _DURATION, _is_duration, _durations),
        _Ask("not_before", "timestamp", lambda kind: isinstance(kind, TimestampType), _instants),
        _Ask("ttl", _DURATION, _is_duration, _durations),
        _Ask("order_key", "string", lambda kind: isinstance(kind, StringType), _texts),
    )
}
_COLUMNS = {**{keyword: keyword for keyword in _ASKS}, "group": "order_key"}
"""What each column asks for."""
