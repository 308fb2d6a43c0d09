"""The options of a read or a stream that say how payloads are decoded. Pure, but for the file of a descriptor."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.arrow.decoding.decoding import Decoding
from holdfast.errors import ConfigError

DECODE_NAMES = ("decode", "codec", "protobufDescriptor", "protobufMessage")

_TRUE, _FALSE = "true", "false"


def decode_option(given: Mapping[str, str]) -> Decoding | None:
    """Return how payloads are decoded; None if they are not.

    Its schema is that of the option ``decode``, as Spark spells it; empty if the DataFrame has a schema of its own.
    """
    text = given.get("decode", _FALSE).strip()
    others = [name for name in DECODE_NAMES[1:] if name.lower() in given]
    if not text:
        raise ConfigError("decode is true, false, or the fields of payloads, as 'id BIGINT, amount DOUBLE'")
    if text.lower() == _FALSE:
        if others:
            raise ConfigError(f"{others[0]} says how payloads are decoded: give decode too")
        return None
    return Decoding(
        "" if text.lower() == _TRUE else text,
        codec=given.get("codec", ""),
        descriptor=given.get("protobufdescriptor", b""),
        message=given.get("protobufmessage", ""),
    )
