"""The schemas of a queue: found by the class of an object, and by the header of a message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from holdfast import ConfigError
from holdfast.errors import DecodeError
from holdfast.serializers.schemas import Schema, Schemas
from support.service.typed_bodies import BigOrder, Letter, Order, Point


def name_for(schemas: Schemas, kind: type) -> str | None:
    """Return the name of the schema that objects of a class get."""
    schema = schemas.of_class(kind)
    return None if schema is None else schema.name


def test_an_object_gets_the_schema_that_is_nearest_to_its_class() -> None:
    """Its own, that of a base, or one that takes it otherwise."""
    schemas = Schemas((Order, BigOrder, Sequence[int], float), 1)
    assert name_for(schemas, Order) == "Order"
    assert name_for(schemas, BigOrder) == "BigOrder"
    assert name_for(schemas, type("Biggest", (BigOrder,), {})) == "BigOrder"
    assert name_for(schemas, range) == "Sequence[int]"
    assert name_for(schemas, int) == "float"
    assert name_for(schemas, bool) is None
    assert name_for(schemas, Letter) is None


def test_an_int_is_an_int_where_floats_are_taken_too() -> None:
    """In any order."""
    for declared in ((float, int), (int, float)):
        schemas = Schemas(declared, 1)
        assert (name_for(schemas, int), name_for(schemas, float)) == ("int", "float")


def test_without_a_type_everything_has_the_same_schema() -> None:
    """That of no name."""
    schemas = Schemas(Any, 3)
    assert schemas.takes_anything
    assert schemas.of_class(bool) == schemas.named(None) == Schema(Any, "", 3)
    assert schemas.named("Order") == Schema(Any, "Order", None)


def test_a_name_leads_to_its_schema_and_an_unknown_one_to_an_error() -> None:
    """Which says what the queue takes."""
    schemas = Schemas((Order, Letter), {Letter: 2})
    assert schemas.named("Order") == Schema(Order, "Order", 1)
    assert schemas.named("Letter") == Schema(Letter, "Letter", 2)
    assert schemas.named(None) == Schema(Order | Letter, "", None)
    with pytest.raises(DecodeError, match="'Point', and the queue takes Order or Letter"):
        schemas.named("Point")


def test_a_schema_is_declared_by_type_or_name() -> None:
    """None where there is one only."""
    assert Schemas(Order, 2).declared(None).name == "Order"
    both = Schemas((Order, Point), 1)
    assert both.declared(Point) is both.declared("Point")
    for unknown in (None, "Letter", Letter):
        with pytest.raises(ConfigError, match="takes Order or Point"):
            both.declared(unknown)
