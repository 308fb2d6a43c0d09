"""Bytes as they are."""

from __future__ import annotations

from typing import Any

from holdfast.errors import ConfigError
from holdfast.serializers.serializer import Decode, Encode


class RawSerializer:
    """Takes bytes-like objects, gives bytes."""

    name = "raw"
    content_type = "application/octet-stream"

    def encode(self, body: Any) -> bytes:
        if isinstance(body, bytes | bytearray | memoryview):
            return bytes(body)
        raise TypeError(f"raw takes bytes, not {type(body).__name__}; serializer='json' takes objects")

    def decode(self, payload: bytes, type: Any) -> Any:
        return self.decoder(type)(payload)

    def encoder(self, type: Any) -> Encode:
        _check(type)
        return self.encode

    def decoder(self, type: Any) -> Decode:
        _check(type)
        return bytes


def _check(type: Any) -> None:
    if type is not bytes and type is not Any:
        raise ConfigError(f"serializer 'raw' gives bytes, not {type!r}: declare type=bytes, or use serializer='json'")
