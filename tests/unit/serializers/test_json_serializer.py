"""JSON, by msgspec: typed objects and what JSON has."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
import pytest

from holdfast import ConfigError
from holdfast.serializers.content_types.json_serializer import JsonSerializer
from support.service.typed_bodies import Address, Letter, Order, Parcel, Plain, Point

JSON = JsonSerializer()


@pytest.mark.parametrize(
    ("body", "type", "payload"),
    [
        (Order(1, "x"), Order, b'{"id":1,"customer":"x"}'),
        (
            Parcel(1, [Order(2)], datetime(2030, 1, 2, tzinfo=UTC)),
            Parcel,
            b'{"id":1,"orders":[{"id":2,"customer":""}],"sent":"2030-01-02T00:00:00Z"}',
        ),
        (Letter("x"), Letter, b'{"stamps":1,"to":"x"}'),
        (Point(1, 2.5), Point, b"[1,2.5]"),
        (Address(city="x", zip=1), Address, b'{"city":"x","zip":1}'),
        ([Order(1)], list[Order], b'[{"id":1,"customer":""}]'),
        ({"a": (1, 2)}, dict[str, tuple[int, ...]], b'{"a":[1,2]}'),
        (None, None, b"null"),
        ([5], list[Annotated[int, Plain]], b"[5]"),
    ],
)
def test_typed_objects_are_plain_json(body: Any, type: Any, payload: bytes) -> None:
    """Which other programs can read and write."""
    assert JSON.encode(body) == payload
    assert JSON.decode(payload, type) == body


def test_fields_that_are_not_known_are_ignored_and_missing_ones_have_their_default() -> None:
    """A field without a default has to be there."""
    assert JSON.decode(b'{"id":1,"new":true}', Order) == Order(1, "")
    with pytest.raises(msgspec.ValidationError, match="missing required field `id`"):
        JSON.decode(b"{}", Order)


@pytest.mark.parametrize("payload", [b'{"id":"1"}', b'{"id":1.5}', b'{"id":null}', b"[]", b'{"id":1} {}'])
def test_a_payload_of_another_type_is_never_bent_to_fit(payload: bytes) -> None:
    """Not even a number in a string."""
    with pytest.raises(msgspec.DecodeError):
        JSON.decode(payload, Order)


def test_a_decoder_is_built_once() -> None:
    """The same one for the same type."""
    assert JSON.decoder(list[Order]) == JSON.decoder(list[Order])


@pytest.mark.parametrize("type", [Plain, complex, list[Plain], dict[str, Plain | None]])
def test_a_class_that_says_nothing_of_its_fields_is_refused_before_the_first_message(type: Any) -> None:
    """The error says what to declare."""
    with pytest.raises(ConfigError, match="dataclass"):
        JSON.decoder(type)


def test_a_class_with_an_annotation_that_leads_nowhere_is_refused() -> None:
    """By the name that is missing."""

    class Lost(msgspec.Struct):
        other: Nowhere  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(ConfigError, match="Nowhere"):
        JSON.decoder(Lost)


def test_an_object_that_json_does_not_have_is_refused() -> None:
    """At any depth."""
    with pytest.raises(TypeError, match="Plain"):
        JSON.encode([Plain(1)])


def test_a_type_inside_a_class_that_nobody_can_make_is_refused_when_a_message_comes() -> None:
    """Classes are not looked into."""
    holder = msgspec.defstruct("Holder", [("plain", Plain)])
    with pytest.raises(msgspec.ValidationError, match="Plain"):
        JSON.decode(b'{"plain":{"id":1}}', holder)
