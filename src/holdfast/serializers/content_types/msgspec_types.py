"""The types that msgspec takes, and the handling of those that it does not know."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, get_args, get_origin

from holdfast.errors import ConfigError
from holdfast.serializers.content_types import pydantic_models
from holdfast.serializers.serializer import Decode

TYPES_CACHED_MAX = 256
"""Decoders kept by a serializer. A queue keeps its own besides; more types than this only cost building them again."""


def encode_other(body: Any) -> Any:
    """Return what msgspec can encode in place of an object that it does not know; raises TypeError."""
    if pydantic_models.is_model(type(body)):
        return pydantic_models.to_builtins(body)
    raise TypeError(f"{type(body).__name__} is no type that json and msgpack take")


def decode_other(kind: Any, value: Any) -> Any:
    """Return an object of a type that msgspec does not know, from decoded data; raises TypeError."""
    if pydantic_models.is_model(kind):
        return pydantic_models.from_builtins(kind, value)
    raise TypeError(f"{kind!r} is no type that json and msgpack give")


def build_decoder(build: Callable[[], Decode], kind: Any) -> Decode:
    """Return a decoder of msgspec's.

    Raises
    ------
    ConfigError
        It cannot decode to the type.
    """
    try:
        decode = build()
        stranger = _stranger(kind)
    except Exception as error:  # any error in the annotations of a class, a NameError for one
        raise ConfigError(f"json and msgpack cannot decode to {kind!r}: {error}") from error
    if stranger is not None:
        raise ConfigError(
            f"json and msgpack cannot decode to {stranger!r}: declare a dataclass, a msgspec.Struct, an attrs class, "
            "a TypedDict, a NamedTuple, a pydantic model or a builtin; or pass a serializer of your own"
        )
    return decode


def _stranger(kind: Any) -> Any:
    """Return a type without possible objects, as far as can be seen without inspecting classes."""
    from msgspec.inspect import CustomType, type_info

    info = type_info(kind)
    if isinstance(info, CustomType):
        return None if pydantic_models.is_model(info.cls) else info.cls
    arguments = get_args(kind)[:1] if get_origin(kind) is Annotated else get_args(kind)
    arguments = tuple(argument for argument in arguments if isinstance(argument, type) or get_args(argument))
    return next((stranger for argument in arguments if (stranger := _stranger(argument)) is not None), None)
