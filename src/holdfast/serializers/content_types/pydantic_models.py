"""pydantic models: recognized without pydantic, encoded and decoded through its ``TypeAdapter``.

Both ways go by alias, and a model that does not fit its own fields is refused when it is put.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.errors import ConfigError
from holdfast.serializers.extras import import_extra
from holdfast.serializers.serializer import Decode, Encode

if TYPE_CHECKING:
    from pydantic import TypeAdapter


def is_model(kind: Any) -> bool:
    """Whether it is a model or a dataclass of pydantic's."""
    return isinstance(kind, type) and hasattr(kind, "__pydantic_validator__")


def encoder(model: type) -> Encode:
    """Return what encodes a model as JSON."""
    dump = _adapter(model).dump_json
    return lambda body: dump(body, by_alias=True, warnings="error")


def decoder(model: type) -> Decode:
    """Return what decodes a model from JSON."""
    return _adapter(model).validate_json


def to_builtins(body: Any) -> Any:
    """Return a model inside another object as what JSON has."""
    model: Any = type(body)
    return _adapter(model).dump_python(body, mode="json", by_alias=True, warnings="error")


def from_builtins(model: type, value: Any) -> Any:
    """Return a model from what :func:`to_builtins` made, by the rules for JSON: they differ if a model is strict."""
    return _adapter(model).validate_json(msgspec.json.encode(value))


@lru_cache(256)  # building one takes longer than hundreds of messages
def _adapter(model: Any) -> TypeAdapter[Any]:
    pydantic = import_extra("pydantic", "pydantic", f"the model {model.__name__}")
    try:
        adapter: TypeAdapter[Any] = pydantic.TypeAdapter(model)
        adapter.validator.validate_json  # noqa: B018 # raises if an annotation of the model is not defined yet
    except Exception as error:  # any error in the annotations of a class
        raise ConfigError(f"the model {model.__name__} cannot be used: {' '.join(str(error).split())}") from error
    return adapter
