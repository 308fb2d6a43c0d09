"""Errors on their way from one process to another: as a line of text, and back as the same class."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from holdfast.errors import CorruptionError, Empty, Full, HoldfastError, ShutDown

TEXT_BYTES_MAX = 2**14
"""A longer text is cut: it is for people, and for their logs. Paths of 4,096 bytes, and advice, come through whole."""

_STANDARD: dict[str, type[Exception]] = {"empty": Empty, "full": Full, "shut_down": ShutDown}


def as_text(error: Exception) -> str:
    """Return an error as a line of JSON that fits into an answer; longer text is cut."""
    code = next((code for code, kind in _STANDARD.items() if isinstance(error, kind)), None)
    fields: dict[str, Any] = {"code": code or getattr(error, "code", HoldfastError.code), "message": str(error)}
    context = getattr(error, "context", {})
    fields["context"] = {name: value for name, value in context.items() if isinstance(value, str | int | list | None)}
    text = _dump(fields)
    if len(text.encode()) > TEXT_BYTES_MAX:
        fields["context"] = {name: each for name, each in fields["context"].items() if isinstance(each, int | None)}
    while len((text := _dump(fields)).encode()) > TEXT_BYTES_MAX and fields["message"]:
        fields["message"] = fields["message"][: -1 - len(fields["message"]) // 16]
    return text


def _dump(fields: dict[str, Any]) -> str:
    text = json.dumps(fields, ensure_ascii=False)
    return text.encode(errors="backslashreplace").decode()  # a lone surrogate is no UTF-8; this is JSON for it


def from_text(text: str) -> Exception:
    """Return the error that :func:`as_text` wrote."""
    try:
        fields = json.loads(text)
        code, message, context = str(fields["code"]), str(fields["message"]), dict(fields["context"])
    except (ValueError, KeyError, TypeError):
        return HoldfastError(f"the owner of the queue refused, and its reason cannot be read: {text!r}")
    if code in _STANDARD:
        return _STANDARD[code](*([message] if message else []))
    kind = next((kind for kind in _kinds(HoldfastError) if kind.code == code), HoldfastError)
    if kind is CorruptionError:
        context = {name: value for name, value in context.items() if name in ("path", "position")}
    return kind(message, **context)


def _kinds(base: type[HoldfastError]) -> Iterator[type[HoldfastError]]:
    yield base
    for kind in base.__subclasses__():
        yield from _kinds(kind)
