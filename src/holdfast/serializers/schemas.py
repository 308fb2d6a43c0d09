"""The schemas of a queue: its types, each with its name and the version that this program knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any

from holdfast.errors import ConfigError, DecodeError
from holdfast.serializers.declared_types import classes_of, split, takes, type_name


@dataclass(frozen=True, slots=True)
class Schema:
    """One type of a queue.

    Attributes
    ----------
    type : type or generic
        The type of decoded objects.
    name : str
        The value of the header ``ce-type``; empty for ``typing.Any``, which has none.
    version : int or None
        What this program writes, and the newest that it reads; None if nothing is known of its versions.
    """

    type: Any
    name: str
    version: int | None


class Schemas:
    """Finds the schema of an object, and of a header.

    Parameters
    ----------
    declared : type, generic, union, or tuple of types
        The types that the queue takes.
    versions : int, or mapping of type to int
        The version of all of them, or of each; 1 if a mapping has none.

    Raises
    ------
    ConfigError
        No types, versions that cannot be, or types that could not be told apart.
    """

    def __init__(self, declared: Any, versions: int | Mapping[type, int]) -> None:
        types = split(declared)
        if isinstance(versions, Mapping):
            strangers = [each for each in versions if each not in types]
            if strangers:
                raise ConfigError(f"version names {type_name(strangers[0])}, which the queue's type does not")
        self.all: Sequence[Schema] = [Schema(each, _name(each), _version(each, versions)) for each in types]
        self._by_name = {schema.name: schema for schema in self.all}
        if len(self._by_name) < len(types):
            raise ConfigError(
                f"two of the types have the same name ({', '.join(map(type_name, types))}): rename one, or give it "
                "another name for its messages in the class attribute __schema__"
            )
        self._by_class: dict[type, Schema] = {}
        for schema in self.all:
            self._claim(schema)

    def _claim(self, schema: Schema) -> None:
        own, *others = classes_of(schema.type)
        rival = self._by_class.get(own)
        if rival is not None and classes_of(rival.type)[0] is own:
            raise ConfigError(
                f"{rival.name} and {schema.name} cannot be told apart, as objects of both are {own.__name__}: use a "
                "class for one of them, or two queues"
            )
        self._by_class[own] = schema
        for other in others:
            self._by_class.setdefault(other, schema)

    @property
    def takes_anything(self) -> bool:
        """Whether nothing is declared."""
        return self.all[0].type is Any

    @property
    def names(self) -> str:
        """The types that the queue takes, for people."""
        return " or ".join(type_name(schema.type) for schema in self.all)

    def by_class(self) -> Mapping[type, Schema]:
        """Return the schemas by the classes of their objects."""
        return {} if self.takes_anything else self._by_class

    def of_class(self, kind: type) -> Schema | None:
        """Return the schema for objects of a class: the one that is nearest to it; None if none takes it."""
        if self.takes_anything:
            return self.all[0]
        if kind is not bool:
            for base in kind.__mro__:
                if base in self._by_class:
                    return self._by_class[base]
        return next((schema for schema in self.all if takes(schema.type, kind)), None)

    def named(self, name: str | None) -> Schema:
        """Return the schema of a message by its header, which may be missing: then the one it must be.

        Raises
        ------
        DecodeError
            The queue has no schema of this name.
        """
        if name is None:
            if len(self.all) == 1:
                return self.all[0]
            return Schema(reduce(or_, (schema.type for schema in self.all)), "", None)
        if self.takes_anything:
            return Schema(Any, name, None)
        if name not in self._by_name:
            raise DecodeError(f"the message is {name!r}, and the queue takes {self.names}: declare its type too")
        return self._by_name[name]

    def declared(self, schema: type | str | None) -> Schema:
        """Return a schema by its type or its name, or the only one; raises ConfigError."""
        if schema is None:
            if len(self.all) > 1:
                raise ConfigError(f"the queue takes {self.names}: say which one with schema=")
            return self.all[0]
        found = next((each for each in self.all if schema in (each.type, each.name)), None)
        if found is None:
            raise ConfigError(f"the queue takes {self.names}, not {schema!r}")
        return found


_VERSION_MAX = 10**9 - 1
"""Enough for a date, and a number that takes no time to read from a header."""


def _name(declared: Any) -> str:
    return "" if declared is Any else type_name(declared)


def _version(declared: Any, versions: int | Mapping[type, int]) -> int:
    version = versions.get(declared, 1) if isinstance(versions, Mapping) else versions
    if type(version) is not int or not 1 <= version <= _VERSION_MAX:
        raise ConfigError(f"version is a number from 1 on, or a mapping of types to such numbers; not {version!r}")
    return version
