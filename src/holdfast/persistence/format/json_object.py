"""JSON in files: one object, or a ValueError, for any bytes. Pure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from holdfast.errors import CorruptionError
from holdfast.persistence.format.constants import NUMBER_MAX

_ID_BYTES = 16


def parse_object(text: bytes) -> dict[str, Any]:
    """Return the fields of a JSON object; raises ValueError if it is none, or nests too deep."""
    try:
        fields = json.loads(text)
    except RecursionError:
        raise ValueError("it nests too deep") from None
    if not isinstance(fields, dict):
        raise ValueError("not an object")
    return fields


def as_number(value: object) -> int:
    """Return a whole number from 0 to ``NUMBER_MAX``; raises ValueError for anything else."""
    if type(value) is not int or not 0 <= value <= NUMBER_MAX:
        raise ValueError("not a whole number in range")
    return value


def as_id(digits: object) -> bytes:
    """Return the 16 bytes of an id; raises ValueError for anything else."""
    found = bytes.fromhex(digits) if isinstance(digits, str) else b""
    if len(found) != _ID_BYTES:
        raise ValueError("not an id")
    return found


def read_id(fields: dict[str, Any], name: str, path: Path) -> bytes:
    """Return an id from a document; raises CorruptionError if there is none."""
    try:
        return as_id(fields.get(name))
    except ValueError:
        raise CorruptionError(f"{path} has no valid {name}; restore it", path=str(path)) from None
