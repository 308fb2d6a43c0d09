"""MessagePack, by msgspec."""

from __future__ import annotations

import pytest

from holdfast import ConfigError
from holdfast.serializers.content_types.json_serializer import JsonSerializer
from holdfast.serializers.content_types.msgpack_serializer import MsgpackSerializer
from support.service.typed_bodies import Order, Plain

MSGPACK = MsgpackSerializer()


def test_it_is_smaller_than_json() -> None:
    """The same objects."""
    order = Order(123_456, "x" * 20)
    assert len(MSGPACK.encode(order)) < len(JsonSerializer().encode(order))
    assert MSGPACK.decode(MSGPACK.encode(order), Order) == order


def test_it_has_bytes_also_without_a_type() -> None:
    """JSON has not."""
    body = {"picture": b"\xff\x00"}
    assert MSGPACK.decode(MSGPACK.encode(body), dict) == body


@pytest.mark.extra("pydantic")
def test_it_takes_models_by_themselves_and_inside_of_others() -> None:
    """Through plain data."""
    from support.service.extra_bodies import Person, Team

    person = Person(name="Zoë", nickName="Z")
    team = Team(person, [person])
    assert MSGPACK.decode(MSGPACK.encode(person), Person) == person
    assert MSGPACK.decoder(Person)(MSGPACK.encoder(Person)(person)) == person
    assert MSGPACK.decode(MSGPACK.encode(team), Team) == team


def test_a_class_that_says_nothing_of_its_fields_is_refused() -> None:
    """As for JSON."""
    with pytest.raises(ConfigError, match="Plain"):
        MSGPACK.decoder(Plain)
