"""JSON, by msgspec."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec

from holdfast.serializers.content_types import pydantic_models
from holdfast.serializers.content_types.msgspec_types import TYPES_CACHED_MAX, build_decoder, decode_other, encode_other
from holdfast.serializers.serializer import Decode, Encode

_ENCODER = msgspec.json.Encoder(enc_hook=encode_other)


class JsonSerializer:
    """JSON: dataclasses, ``msgspec.Struct``, attrs, TypedDict, NamedTuple, pydantic models, builtins and generics.

    Without a type it gives what JSON has: objects come back as dicts, tuples and sets as lists, bytes as base64.
    """

    name = "json"
    content_type = "application/json"

    def encode(self, body: Any) -> bytes:
        return _ENCODER.encode(body)

    def decode(self, payload: bytes, type: Any) -> Any:
        return _decoder(type)(payload)

    def encoder(self, type: Any) -> Encode:
        return pydantic_models.encoder(type) if pydantic_models.is_model(type) else _ENCODER.encode

    def decoder(self, type: Any) -> Decode:
        return _decoder(type)


@lru_cache(TYPES_CACHED_MAX)
def _decoder(type: Any) -> Decode:
    if pydantic_models.is_model(type):
        return pydantic_models.decoder(type)
    return build_decoder(lambda: msgspec.json.Decoder(type, dec_hook=decode_other).decode, type)
