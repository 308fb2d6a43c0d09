"""Fields of payloads as text: ``id BIGINT, tags ARRAY<STRING>``, or the JSON of a Spark schema. Pure.

The text that Spark's engine of ``holdfast drain`` reads, as types of Arrow for the engine that has no Spark.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pyarrow as pa

from holdfast.errors import ConfigError

_PLAIN = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ltz": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
"""Types by the names of Spark, in its DDL and in its JSON."""

_DECIMALS = frozenset({"decimal", "dec", "numeric"})
_DECIMAL_DIGITS = (10, 0)
"""Precision and scale of a decimal that names none, as in Spark."""

_TOKEN = re.compile(r"\s*(?:(?P<word>\w+)|`(?P<name>(?:[^`]|``)+)`|'(?P<text>(?:[^'\\]|\\.)*)'|(?P<sign>[<>(),:]))")


def schema_of_text(text: str, where: str) -> Any:
    """Return the ``pyarrow.Schema`` of a text.

    Parameters
    ----------
    text : str
        The fields.
    where : str
        Where it comes from, for errors.

    Raises
    ------
    ConfigError
        It is no schema, or has a type that is not known here.
    """
    try:
        kind = _type_of_json(json.loads(text)) if text.strip().startswith("{") else _Ddl(text).whole()
        if not pa.types.is_struct(kind) or not kind.num_fields:
            raise ValueError("it has no fields")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, pa.ArrowException) as error:
        reason = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
        raise ConfigError(
            f"{where} is no schema ({reason}): write it as `id BIGINT, name STRING`, or as schema.json() of Spark"
        ) from None
    return pa.schema(list(kind))


def _plain(name: str, digits: tuple[int, ...]) -> Any:
    """Return a type that has no types in it."""
    if name.lower() in _DECIMALS:
        precision, scale = (*digits, *_DECIMAL_DIGITS[len(digits) :])
        return pa.decimal128(precision, scale)
    if name.lower() not in _PLAIN or digits:
        raise ValueError(f"{name!r} is no type")
    return _PLAIN[name.lower()]


def _type_of_json(kind: Any) -> Any:
    if isinstance(kind, str):
        name, _, digits = kind.partition("(")
        return _plain(name, tuple(int(each) for each in digits.rstrip(")").split(",") if each))
    if kind["type"] == "struct":
        return pa.struct([pa.field(str(each["name"]), _type_of_json(each["type"])) for each in kind["fields"]])
    if kind["type"] == "array":
        return pa.list_(_type_of_json(kind["elementType"]))
    if kind["type"] == "map":
        return pa.map_(_type_of_json(kind["keyType"]), _type_of_json(kind["valueType"]))
    raise ValueError(f"{kind['type']!r} is no type")


class _Ddl:
    """Reads DDL from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text.rstrip()
        self._at = 0

    def whole(self) -> Any:
        """Return the struct of all fields."""
        kind = self._fields()
        if self._at < len(self._text):
            raise ValueError(f"{self._text[self._at :].strip()[:20]!r} is not expected")
        return kind

    def _peek(self) -> re.Match[str] | None:
        return _TOKEN.match(self._text, self._at)

    def _take(self, *groups: str) -> str:
        found = self._peek()
        value = next((found[group] for group in groups if found[group] is not None), None) if found else None
        if found is None or value is None:
            raise ValueError(f"{self._text[self._at :].strip()[:20]!r} is not expected")
        self._at = found.end()
        return value

    def _skip(self, sign: str) -> bool:
        found = self._peek()
        is_it = found is not None and (found["sign"] or found["word"] or "").upper() == sign
        if found is not None and is_it:
            self._at = found.end()
        return is_it

    def _need(self, sign: str) -> None:
        if not self._skip(sign):
            raise ValueError(f"{sign!r} is missing before {self._text[self._at :].strip()[:20]!r}")

    def _fields(self) -> Any:
        fields = []
        while True:
            name = self._take("word", "name").replace("``", "`")
            self._skip(":")
            fields.append(pa.field(name, self._type()))
            if self._skip("NOT"):
                self._need("NULL")
            if self._skip("COMMENT"):
                self._take("text")
            if not self._skip(","):
                return pa.struct(fields)

    def _type(self) -> Any:
        name = self._take("word")
        if name.lower() in ("array", "map", "struct"):
            self._need("<")
            kind = self._nested(name.lower())
            self._need(">")
            return kind
        digits: tuple[int, ...] = ()
        if self._skip("("):
            digits = (int(self._take("word")),)
            if self._skip(","):
                digits += (int(self._take("word")),)
            self._need(")")
        return _plain(name, digits)

    def _nested(self, name: str) -> Any:
        if name == "struct":
            return self._fields()
        first = self._type()
        if name == "array":
            return pa.list_(first)
        self._need(",")
        return pa.map_(first, self._type())
