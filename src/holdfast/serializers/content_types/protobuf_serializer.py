"""Protocol Buffers: messages of generated classes; the header ``ce-type`` has the message's full name."""

from __future__ import annotations

from typing import Any, cast

from holdfast.errors import ConfigError
from holdfast.serializers.extras import import_extra
from holdfast.serializers.serializer import Decode, Encode


class ProtobufSerializer:
    """Messages of protobuf. The queue declares their classes, because the bytes do not name them."""

    name = "protobuf"
    content_type = "application/protobuf"

    def encode(self, body: Any) -> bytes:
        return self.encoder(type(body))(body)

    def decode(self, payload: bytes, type: Any) -> Any:
        return self.decoder(type)(payload)

    def encoder(self, type: Any) -> Encode:
        return cast("Encode", _message_class(type).SerializeToString)

    def decoder(self, type: Any) -> Decode:
        return cast("Decode", _message_class(type).FromString)


def _message_class(kind: Any) -> Any:
    message = import_extra("google.protobuf.message", "protobuf", "serializer 'protobuf'").Message
    if isinstance(kind, type) and issubclass(kind, message):
        return kind
    raise ConfigError(f"serializer 'protobuf' takes classes of messages, not {kind!r}: declare type=YourMessage")
