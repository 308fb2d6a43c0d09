"""The way of plain data from an older version of its schema to the present one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.errors import ConfigError, DecodeError
from holdfast.serializers.schemas import Schema

Upcast = Callable[[Any], Any]


class Upcasts:
    """Functions by schema and version; each leads from a version to a later one.

    A version that no function leads from differs from the next one by additions only: data stays as it is, up to the
    next version that a function leads from. So no function has to be written for additions, and a function that is
    written later does not strand older messages.
    """

    def __init__(self) -> None:
        self._steps: dict[str, dict[int, tuple[int, Upcast]]] = {}

    def add(self, schema: Schema, from_version: int, to_version: int, function: Upcast) -> None:
        """Register a function; raises ConfigError if it cannot be part of a chain."""
        if type(from_version) is not int or type(to_version) is not int or not 1 <= from_version < to_version:
            raise ConfigError(f"an upcast leads to a later version, not from {from_version!r} to {to_version!r}")
        if schema.version is None or to_version > schema.version:
            raise ConfigError(
                f"an upcast to version {to_version}, and the queue writes version {schema.version}: declare "
                f"version={to_version}"
            )
        steps = self._steps.setdefault(schema.name, {})
        if from_version in steps:
            raise ConfigError(f"there is an upcast from version {from_version} already: one leads from each version")
        steps[from_version] = (to_version, function)

    def chain(self, schema: Schema, version: int) -> list[Upcast]:
        """Return the functions that a message of a version goes through, in order."""
        steps = self._steps.get(schema.name, {})
        chain: list[Upcast] = []
        for each in sorted(steps):
            if each >= version:
                version, function = steps[each]
                chain.append(function)
        return chain


def apply(chain: list[Upcast], body: Any) -> Any:
    """Return plain data after a chain of functions.

    Raises
    ------
    DecodeError
        One of them raised; it is the cause.
    """
    for function in chain:
        try:
            body = function(body)
        except MemoryError:
            raise
        except Exception as error:
            name = getattr(function, "__qualname__", repr(function))
            raise DecodeError(f"the upcast {name} raised {type(error).__name__}: {error}") from error
    return body
