"""Bytes as they are."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import ConfigError
from holdfast.serializers.content_types.raw_serializer import RawSerializer

RAW = RawSerializer()


@pytest.mark.parametrize("body", [b"x", bytearray(b"x"), memoryview(b"x")])
def test_it_takes_what_is_like_bytes_and_gives_bytes(body: Any) -> None:
    """A copy: what is changed later does not change the message."""
    payload = RAW.encode(body)
    assert (payload, type(payload)) == (b"x", bytes)
    assert RAW.decode(payload, bytes) == RAW.decode(payload, Any) == b"x"


@pytest.mark.parametrize("body", ["x", None, [1], 5])
def test_it_takes_nothing_else(body: Any) -> None:
    """Not even a number, of which ``bytes`` would make zeros."""
    with pytest.raises(TypeError, match=f"raw takes bytes, not {type(body).__name__}"):
        RAW.encode(body)


@pytest.mark.parametrize("declared", [str, bytearray, dict, list[bytes]])
def test_it_gives_no_other_type(declared: Any) -> None:
    """The queue is refused."""
    for bind in (RAW.encoder, RAW.decoder):
        with pytest.raises(ConfigError, match="type=bytes"):
            bind(declared)
