"""The port that a codec of one's own implements."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.serializers.content_types.json_serializer import JsonSerializer
from holdfast.serializers.serializer import BoundSerializer, decoder_of, encoder_of
from support.service.typed_bodies import Order, ReversedText


class Sloppy(ReversedText):
    """Returns text."""

    def encode(self, body: Any) -> Any:
        return body


def test_two_methods_are_enough() -> None:
    """What prepares itself for a type is quicker, and has more."""
    plain = ReversedText()
    assert not isinstance(plain, BoundSerializer)
    assert encoder_of(plain, str)("abc") == b"cba"
    assert decoder_of(plain, str)(b"cba") == "abc"
    assert isinstance(JsonSerializer(), BoundSerializer)
    assert decoder_of(JsonSerializer(), Order)(encoder_of(JsonSerializer(), Order)(Order(1))) == Order(1)


@pytest.mark.parametrize("payload", ["text", None, bytearray(b"x")])
def test_a_serializer_that_returns_no_bytes_is_told_so(payload: Any) -> None:
    """By its name, at the put."""
    with pytest.raises(TypeError, match="'reversed' returned"):
        encoder_of(Sloppy(), Any)(payload)
