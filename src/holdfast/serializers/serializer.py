"""Turns objects into bytes and back: the port that a codec of one's own implements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

Encode = Callable[[Any], bytes]
Decode = Callable[[bytes], Any]


class Serializer(Protocol):
    """Objects <-> bytes, for one content type.

    One instance serves every queue of a service, and all threads: it keeps nothing of a message. Every exception of
    ``encode`` becomes an ``EncodeError``, every exception of ``decode`` a ``DecodeError``.

    Attributes
    ----------
    name : str
        What ``service.queue(serializer=...)`` names.
    content_type : str
        The value of the header ``content-type`` of each message, such as ``application/json``.
    """

    name: str
    content_type: str

    def encode(self, body: Any) -> bytes:
        """Return the payload."""
        ...

    def decode(self, payload: bytes, type: Any) -> Any:
        """Return the object: one of ``type``, which is ``typing.Any`` if the queue declares none."""
        ...


@runtime_checkable
class BoundSerializer(Serializer, Protocol):
    """A serializer that prepares itself for a type once, and is quicker for each message then.

    Both raise ConfigError for a type that it cannot serialize: so the queue is refused, not its messages.
    """

    def encoder(self, type: Any) -> Encode:
        """Return what encodes objects of a type."""
        ...

    def decoder(self, type: Any) -> Decode:
        """Return what decodes to a type."""
        ...


def encoder_of(serializer: Serializer, type: Any) -> Encode:
    """Return what encodes objects of a type with any serializer."""
    if isinstance(serializer, BoundSerializer):
        return serializer.encoder(type)

    def encode(body: Any) -> bytes:
        payload = serializer.encode(body)
        if not isinstance(payload, bytes):
            raise TypeError(
                f"encode of serializer {serializer.name!r} returned {payload.__class__.__name__}, not bytes"
            )
        return payload

    return encode


def decoder_of(serializer: Serializer, type: Any) -> Decode:
    """Return what decodes to a type with any serializer."""
    if isinstance(serializer, BoundSerializer):
        return serializer.decoder(type)
    return lambda payload: serializer.decode(payload, type)
