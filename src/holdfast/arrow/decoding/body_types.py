"""The Python types that decode to Arrow types: strict, so that a value of another type is an error and no null.

Fields that a message lacks are null, and those that the schema lacks are ignored: as in schema evolution.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Annotated, Any, Optional, TypedDict

import msgspec
import pyarrow as pa

from holdfast.errors import ConfigError

_BOUND_BITS_MAX = 64
"""No bound of msgspec is larger than an integer of so many bits."""


_FLOAT_ENDS = {16: 2.0**16 - 2.0**4, 32: 2.0**128 - 2.0**103}
"""By bits: from here on Arrow makes a number infinite."""

_STEPS = {"s": 1_000_000, "ms": 1000}
"""By unit, in microseconds, which Python has: Arrow cuts off what is finer."""

Check = Callable[[Any], object]


def python_type(kind: Any, name: str = "Body") -> Any:
    """Return what msgspec decodes to for an Arrow type; raises ConfigError if no payload has such values."""
    if pa.types.is_struct(kind):
        fields = [kind.field(place) for place in range(kind.num_fields)]
        twice = {field.name for field in fields if sum(each.name == field.name for each in fields) > 1}
        if twice:
            raise ConfigError(f"the schema of bodies has the field {min(twice)!r} twice")
        types = {field.name: Optional[python_type(field.type, f"{name}.{field.name}")] for field in fields}  # noqa: UP045
        return TypedDict(name, types, total=False)  # type: ignore[operator]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return list[Optional[python_type(kind.value_type, name)]]  # type: ignore[misc]  # noqa: UP045
    if pa.types.is_map(kind) and _is_text(kind.key_type):
        return dict[str, Optional[python_type(kind.item_type, name)]]  # type: ignore[misc]  # noqa: UP045
    if pa.types.is_integer(kind):
        return _integer(kind)
    if pa.types.is_timestamp(kind):
        return dt.datetime if kind.tz else Annotated[dt.datetime, msgspec.Meta(tz=False)]
    for is_of, plain in _PLAIN:
        if is_of(kind):
            return plain
    raise ConfigError(f"a body cannot have {name!r} as {kind}: choose another type, such as string")


def _integer(kind: Any) -> Any:
    if kind.bit_width == _BOUND_BITS_MAX:  # Arrow refuses what is larger
        return int
    is_signed = pa.types.is_signed_integer(kind)
    smallest = -(2 ** (kind.bit_width - 1)) if is_signed else 0
    largest = 2 ** (kind.bit_width - 1 if is_signed else kind.bit_width) - 1
    return Annotated[int, msgspec.Meta(ge=smallest, le=largest)]


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


_PLAIN = (
    (pa.types.is_boolean, bool),
    (pa.types.is_floating, float),
    (_is_text, str),
    (lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind), bytes),
    (lambda kind: pa.types.is_date32(kind) or pa.types.is_date64(kind), dt.date),
    (pa.types.is_duration, dt.timedelta),
    (pa.types.is_decimal, Decimal),
    (pa.types.is_null, type(None)),
)


def check_of(kind: Any) -> Check | None:
    """Return what raises ValueError for a value that Arrow would change to make it fit; None if it changes none."""
    check = _check_of(kind)
    return None if check is None else lambda value: None if value is None else check(value)


def _check_of(kind: Any) -> Check | None:
    if pa.types.is_struct(kind):
        fields = [kind.field(place) for place in range(kind.num_fields)]
        checks = {field.name: check for field in fields if (check := check_of(field.type)) is not None}
        return (lambda row: [check(row.get(name)) for name, check in checks.items()]) if checks else None
    if pa.types.is_map(kind):
        item = check_of(kind.item_type)
        return None if item is None else lambda items: [item(each) for each in items.values()]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        value = check_of(kind.value_type)
        return None if value is None else lambda values: [value(each) for each in values]
    return _plain_check_of(kind)


def _plain_check_of(kind: Any) -> Check | None:
    if pa.types.is_floating(kind) and kind.bit_width in _FLOAT_ENDS:
        end = _FLOAT_ENDS[kind.bit_width]
        return lambda number: _refuse(number, kind) if end <= abs(number) < math.inf else None
    if pa.types.is_timestamp(kind) and kind.unit in _STEPS:
        step = _STEPS[kind.unit]
        return lambda time: _refuse(time, kind) if time.microsecond % step else None
    if pa.types.is_duration(kind) and kind.unit in _STEPS:
        step = _STEPS[kind.unit]
        return lambda span: _refuse(span, kind) if span.microseconds % step else None
    return None


def _refuse(value: object, kind: Any) -> None:
    raise ValueError(f"{value} does not fit into {kind}")


def has_map(kind: Any) -> bool:
    """Whether a type contains a map, whose values Arrow takes as pairs."""
    if pa.types.is_struct(kind):
        return any(has_map(kind.field(place).type) for place in range(kind.num_fields))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return has_map(kind.value_type)
    return bool(pa.types.is_map(kind))


def with_pairs(value: Any, kind: Any) -> Any:
    """Return a value whose maps are pairs."""
    if value is None or not has_map(kind):
        return value
    if pa.types.is_struct(kind):
        return {name: with_pairs(each, kind.field(name).type) for name, each in value.items()}
    if pa.types.is_map(kind):
        return [(key, with_pairs(each, kind.item_type)) for key, each in value.items()]
    return [with_pairs(each, kind.value_type) for each in value]
