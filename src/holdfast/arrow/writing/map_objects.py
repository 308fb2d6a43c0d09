"""Maps as objects of JSON: pyarrow returns a map as a list of pairs, at any depth of a nested value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa

_ENCODER = msgspec.json.Encoder()


def objects_of(kind: Any) -> Callable[[Any], Any] | None:
    """Return a function that makes objects of the maps in a value of a type; None if the type has no maps."""
    made = _made(kind)
    return None if made is None else lambda value: None if value is None else made(value)


def _made(kind: Any) -> Callable[[Any], Any] | None:
    if pa.types.is_map(kind):
        item = objects_of(kind.item_type) or _unchanged
        return lambda pairs: {_key(key): item(value) for key, value in pairs}
    if pa.types.is_struct(kind):
        fields = {field.name: convert for field in kind if (convert := objects_of(field.type)) is not None}
        if not fields:
            return None
        return lambda row: row | {name: convert(row[name]) for name, convert in fields.items()}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        each = objects_of(kind.value_type)
        return None if each is None else lambda values: [each(value) for value in values]
    return None


def _unchanged(value: Any) -> Any:
    return value


def _key(key: Any) -> str:
    """Return a key as a string: as the value is spelled in JSON."""
    plain = msgspec.to_builtins(key)
    return plain if isinstance(plain, str) else _ENCODER.encode(plain).decode()
