"""MessagePack, by msgspec."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec

from holdfast.serializers.content_types import pydantic_models
from holdfast.serializers.content_types.msgspec_types import TYPES_CACHED_MAX, build_decoder, decode_other, encode_other
from holdfast.serializers.serializer import Decode, Encode

_ENCODER = msgspec.msgpack.Encoder(enc_hook=encode_other)


class MsgpackSerializer:
    """MessagePack: the types of JSON, smaller, and with bytes as they are."""

    name = "msgpack"
    content_type = "application/vnd.msgpack"

    def encode(self, body: Any) -> bytes:
        return _ENCODER.encode(body)

    def decode(self, payload: bytes, type: Any) -> Any:
        return _decoder(type)(payload)

    def encoder(self, type: Any) -> Encode:
        if pydantic_models.is_model(type):
            return lambda body: _ENCODER.encode(pydantic_models.to_builtins(body))
        return _ENCODER.encode

    def decoder(self, type: Any) -> Decode:
        return _decoder(type)


@lru_cache(TYPES_CACHED_MAX)
def _decoder(type: Any) -> Decode:
    if pydantic_models.is_model(type):
        return lambda payload: pydantic_models.from_builtins(type, msgspec.msgpack.decode(payload))
    return build_decoder(lambda: msgspec.msgpack.Decoder(type, dec_hook=decode_other).decode, type)
