"""The serializers of a service, by name and by content type."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from holdfast.errors import ConfigError, UnknownContentTypeError
from holdfast.serializers.content_types.json_serializer import JsonSerializer
from holdfast.serializers.content_types.msgpack_serializer import MsgpackSerializer
from holdfast.serializers.content_types.pickle_serializer import PickleSerializer
from holdfast.serializers.content_types.protobuf_serializer import ProtobufSerializer
from holdfast.serializers.content_types.raw_serializer import RawSerializer
from holdfast.serializers.serializer import Serializer

__all__ = ["Registry"]

_BUILT_IN: tuple[Serializer, ...] = (
    RawSerializer(),
    JsonSerializer(),
    MsgpackSerializer(),
    PickleSerializer(),
    ProtobufSerializer(),
)


class Registry:
    """The built-in serializers, and those that were added.

    Parameters
    ----------
    serializers : iterable of Serializer
        Added to the built-in ones. If names or content types are the same, the last one counts.

    Raises
    ------
    ConfigError
        One of them is no serializer.
    """

    def __init__(self, serializers: Iterable[Serializer] = ()) -> None:
        self._by_name: dict[str, Serializer] = {}
        self._by_content_type: dict[str, Serializer] = {}
        self._added: list[Serializer] = []
        for serializer in _BUILT_IN:
            self._add(serializer)
        for serializer in serializers:
            self.register(serializer)

    def register(self, serializer: Serializer) -> None:
        """Add a serializer, or put it in the place of one with the same name or content type."""
        check_serializer(serializer)
        self._added.append(serializer)
        self._add(serializer)

    def _add(self, serializer: Serializer) -> None:
        self._by_name[serializer.name] = serializer
        self._by_content_type[media_type(serializer.content_type)] = serializer

    def named(self, name: str) -> Serializer:
        """Return a serializer by its name; raises ConfigError for an unknown one."""
        if name not in self._by_name:
            known = ", ".join(self._by_name)
            raise ConfigError(f"no serializer is named {name!r}; there are {known}, and those you register")
        return self._by_name[name]

    def of(self, content_type: str) -> Serializer:
        """Return what decodes a content type; raises UnknownContentTypeError."""
        serializer = self._by_content_type.get(media_type(content_type))
        if serializer is None:
            raise UnknownContentTypeError(
                f"no serializer takes content type {content_type!r}; known are {', '.join(self._by_content_type)}. "
                "Register one that does",
                content_type=content_type,
                known=tuple(self._by_content_type),
            )
        return serializer

    def __reduce__(self) -> tuple[Any, ...]:
        return Registry, (self._added,)


def media_type(content_type: str) -> str:
    """Return a content type as it is compared: without parameters such as ``charset``, in lower case."""
    return content_type.partition(";")[0].strip().lower()


def check_serializer(serializer: object) -> None:
    """Refuse an object that is not a serializer; raises ConfigError that names the missing attribute."""
    for name in ("name", "content_type"):
        value = getattr(serializer, name, None)
        if not isinstance(value, str) or not value:
            raise ConfigError(f"a serializer has a {name}, a string; {serializer!r} has {value!r}")
    for name in ("encode", "decode"):
        if not callable(getattr(serializer, name, None)):
            raise ConfigError(f"a serializer has a method {name}; {serializer!r} has none")
    if isinstance(serializer, type):
        raise ConfigError(f"register an instance, {serializer.__name__}(), not the class")
