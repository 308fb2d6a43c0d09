"""Protocol Buffers: messages of declared classes."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from google.protobuf.message import DecodeError as ProtobufDecodeError
from google.protobuf.struct_pb2 import Struct
from google.protobuf.wrappers_pb2 import StringValue

from holdfast import ConfigError
from holdfast.errors import DecodeError
from holdfast.serializers.codec import Codec
from holdfast.serializers.content_types.protobuf_serializer import ProtobufSerializer
from holdfast.serializers.registry import Registry
from support.service.extra_bodies import Event
from support.service.typed_bodies import Order

PROTOBUF = ProtobufSerializer()


def test_it_takes_messages_and_gives_their_class() -> None:
    """The payload is that of protobuf itself."""
    event = Event(id=5, name="Zoë")
    assert PROTOBUF.encode(event) == event.SerializeToString()
    assert PROTOBUF.decode(event.SerializeToString(), Event) == event
    with pytest.raises(ProtobufDecodeError):
        PROTOBUF.decode(b"\xff", Event)


def test_the_full_name_of_the_message_chooses_the_class() -> None:
    """Several in one queue."""
    several: Codec[Any] = Codec(Registry(), type=(Event, StringValue, Struct), serializer="protobuf")
    struct = Struct()
    struct["a"] = 1
    for body, name in (
        (Event(id=1), "shop.Event"),
        (StringValue(value="x"), "google.protobuf.StringValue"),
        (struct, "google.protobuf.Struct"),
    ):
        payload, headers = several.encode(body)
        assert headers["ce-type"] == name
        assert several.decode(payload, headers) == body


@pytest.mark.parametrize("declared", [Order, Any, dict, list[Event]])
def test_it_takes_no_other_class(declared: Any) -> None:
    """Without a class nobody knows what the bytes mean."""
    with pytest.raises(ConfigError, match="classes of messages"):
        Codec(Registry(), type=declared, serializer="protobuf")
    with pytest.raises(ConfigError, match="classes of messages"):
        PROTOBUF.encode(Order(1))


def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """When a queue asks for it, and when a message needs it."""
    monkeypatch.setitem(sys.modules, "google.protobuf.message", None)
    with pytest.raises(ConfigError, match=r"pip install 'holdfast\[protobuf\]'") as caught:
        Codec(Registry(), type=Event, serializer="protobuf")
    assert caught.value.extra == "protobuf"
    orders: Codec[Order] = Codec(Registry(), type=Order)
    with pytest.raises(DecodeError, match=r"pip install 'holdfast\[protobuf\]'"):
        orders.decoder({"content-type": "application/protobuf", "ce-type": "Order"})
