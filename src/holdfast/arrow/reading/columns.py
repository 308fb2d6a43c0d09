"""The columns of a queue, and how a column is made of the bytes of a data file.

Arrow gathers the payloads: nothing is copied in Python, and no Python object is made of a message.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.arrow.reading.frame_walk import Walked
from holdfast.errors import ConfigError, StorageError
from holdfast.persistence.format.constants import FRAME_HEADER_BYTES
from holdfast.persistence.format.message_headers import decode_headers
from holdfast.persistence.format.message_options import decode_options

Field = tuple[str, Any]
"""Name and Arrow type of a column."""

FIELDS: tuple[Field, ...] = (
    ("payload", pa.binary()),
    ("offset", pa.int64()),
    ("timestamp", pa.timestamp("us", tz="UTC")),
    ("timestamp_ns", pa.int64()),
    ("headers", pa.map_(pa.string(), pa.string())),
    ("delivery_count", pa.int32()),
    ("priority", pa.int32()),
    ("order_key", pa.string()),
)
"""Every column there is; a read may ask for fewer."""

_SLICE_END = 2**31 - 1
_DISTINCT_MAX = 4096

Deliveries = Mapping[int, int] | None
"""How often messages were handed out, by offset; None if no group is asked for."""


def named_fields(names: Sequence[str] | None, fields: Sequence[Field] = FIELDS) -> tuple[Field, ...]:
    """Return columns by their names, each once; None: all. Raises ConfigError for unknown names, and for none."""
    if names is None:
        return tuple(fields)
    known = dict(fields)
    if isinstance(names, str) or not names or not set(names) <= known.keys():
        raise ConfigError(f"columns are a list of {', '.join(known)}; not {names!r}")
    return tuple((name, known[name]) for name in dict.fromkeys(names))


def schema_of(fields: Sequence[Field]) -> Any:
    """Return the ``pyarrow.Schema`` of columns."""
    return pa.schema([pa.field(name, kind) for name, kind in fields])


def record_batch(fields: Sequence[Field], walked: Walked, deliveries: Deliveries) -> Any:
    """Return messages as a ``pyarrow.RecordBatch`` with these columns.

    Raises
    ------
    UnsupportedVersionError
        A message's headers hold a field of a newer Holdfast that must be understood.
    """
    for encoded in set(walked.headers.values()):
        _headers_of(encoded)  # may hold a field that must be understood, under any selection
    columns = [_MAKERS[name](walked, deliveries) for name, _ in fields]
    if not columns:  # Spark counts rows and wants no column
        return pa.RecordBatch.from_struct_array(pa.array([{}] * len(walked), pa.struct([])))
    return pa.RecordBatch.from_arrays(columns, schema=schema_of(fields))


def _payload(walked: Walked, _: Deliveries) -> Any:
    data = pa.py_buffer(walked.data)
    if walked.is_dense:  # values of header and payload; Arrow then cuts off the headers
        ends = array("i", walked.bounds[1::2])
        starts = array("i", (walked.bounds[0] - FRAME_HEADER_BYTES,)) + ends
        whole = pa.Array.from_buffers(pa.binary(), len(walked), [None, pa.py_buffer(starts), data])
        return pc.binary_slice(whole, FRAME_HEADER_BYTES, _SLICE_END)
    bounds = array("i", walked.bounds)  # values of payload, what is between, payload ...
    both = pa.Array.from_buffers(pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), data])
    return both.take(_integers("i", pa.int32(), range(0, len(bounds), 2)))


def _integers(code: str, kind: Any, values: Any) -> Any:
    numbers = array(code, values)
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])


def _offset(walked: Walked, _: Deliveries) -> Any:
    return _integers("q", pa.int64(), walked.offsets)


def _timestamp_ns(walked: Walked, _: Deliveries) -> Any:
    return _integers("q", pa.int64(), walked.timestamps_ns)


def _timestamp(walked: Walked, _: Deliveries) -> Any:
    return pc.divide(_timestamp_ns(walked, None), 1000).cast(pa.timestamp("us", tz="UTC"))


def _delivery_count(walked: Walked, deliveries: Deliveries) -> Any:
    if deliveries is None:
        return pa.nulls(len(walked), pa.int32())
    if not deliveries:
        return _integers("i", pa.int32(), [0] * len(walked))
    return _integers("i", pa.int32(), [deliveries.get(offset, 0) for offset in walked.offsets])


def _of_headers(kind: Any, decode: Callable[[bytes], Any]) -> Callable[[Walked, Deliveries], Any]:
    """Return what makes a column of encoded headers; those that many messages share are decoded once."""

    def column(walked: Walked, _: Deliveries) -> Any:
        distinct: dict[bytes, int] = {b"": 0}
        if walked.headers:
            get, number = walked.headers.get, distinct.setdefault
            places = [number(get(place, b""), len(distinct)) for place in range(len(walked))]
        else:
            places = [0] * len(walked)
        values = pa.array([decode(headers) for headers in distinct], kind)
        return values.take(_integers("i", pa.int32(), places))

    return column


@lru_cache(maxsize=_DISTINCT_MAX)
def _headers_of(encoded: bytes) -> list[tuple[str, str]]:
    try:
        return list(decode_headers(encoded).items())
    except ValueError as error:
        raise StorageError(f"the headers of a message cannot be read ({error}): use a newer Holdfast") from error


@lru_cache(maxsize=_DISTINCT_MAX)
def _priority_of(encoded: bytes) -> int:
    return decode_options(encoded).priority


@lru_cache(maxsize=_DISTINCT_MAX)
def _order_key_of(encoded: bytes) -> str | None:
    return decode_options(encoded).order_key or None


_MAKERS: dict[str, Callable[[Walked, Deliveries], Any]] = {
    "payload": _payload,
    "offset": _offset,
    "timestamp": _timestamp,
    "timestamp_ns": _timestamp_ns,
    "headers": _of_headers(pa.map_(pa.string(), pa.string()), _headers_of),
    "delivery_count": _delivery_count,
    "priority": _of_headers(pa.int32(), _priority_of),
    "order_key": _of_headers(pa.string(), _order_key_of),
}
assert list(_MAKERS) == [name for name, _ in FIELDS]
