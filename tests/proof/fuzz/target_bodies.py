"""Payloads as the serializers read them: whoever can put a message chooses these bytes."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from typing import Any

from holdfast.errors import DecodeError, EncodeError, UnknownContentTypeError
from holdfast.serializers.codec import Codec
from holdfast.serializers.compression import compress
from holdfast.serializers.registry import Registry
from support.service.extra_bodies import Event, Person
from support.service.typed_bodies import Letter, Order, Parcel

KINDS: tuple[tuple[str, Any], ...] = (
    ("json", Order),
    ("json", Any),
    ("json", Person),
    ("json", dict[str, Letter]),
    ("msgpack", Order),
    ("msgpack", Any),
    ("msgpack", Person),
    ("msgpack", list[Parcel]),
    ("protobuf", Event),
    ("raw", bytes),
)
"""Serializer and declared type, by the first byte divided by four."""

IS_COMPRESSED, IS_SEALED = 1, 2
"""Bits of the first byte: the header says zstd; and the bytes are compressed before, so that they decompress."""


@cache
def _codec(number: int) -> Codec[Any]:
    serializer, declared = KINDS[number]
    return Codec(Registry(), type=declared, serializer=serializer)


def body(data: bytes) -> None:
    """Decode a payload: an object that encodes and decodes to itself, or DecodeError."""
    if not data:
        return
    codec = _codec(data[0] // 4 % len(KINDS))
    payload = data[1:]
    headers = {"content-type": codec.content_type}
    if data[0] & IS_COMPRESSED:
        headers["content-encoding"] = "zstd"
        payload = compress(payload) if data[0] & IS_SEALED else payload
    with suppress(DecodeError):
        decoded = codec.decode(payload, headers)
        try:
            again, _ = codec.encode(decoded)
        except EncodeError:  # what one serializer gives without a type, an extension of MessagePack, it need not take
            return
        assert codec.encode(codec.decode(again, {"content-type": codec.content_type}))[0] == again


def named_body(data: bytes) -> None:
    """Decode a payload beside headers of the sender's choice: text up to the first zero says which, line by line."""
    text, _, payload = data.partition(b"\0")
    lines = text.decode(errors="replace").split("\n")
    headers = dict(zip(("content-type", "ce-type", "ce-dataschemaversion", "content-encoding"), lines, strict=False))
    with suppress(DecodeError, UnknownContentTypeError):
        _codec(0).decode(payload, headers)
