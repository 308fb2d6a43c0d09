"""What a queue declares as its type: one type or several, their classes, their names."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from types import NoneType
from typing import Annotated, Any, Literal, NewType, Optional, TypeVar, Union

import msgspec
import pytest
import typing_extensions

from holdfast import ConfigError
from holdfast.serializers.declared_types import classes_of, holds, split, type_name
from support.service.typed_bodies import Address, BigOrder, Order, Point, Renamed

UserId = NewType("UserId", int)
Positive = Annotated[int, msgspec.Meta(gt=0)]


class OldStyle(typing_extensions.TypedDict):
    """As pydantic wants it before Python 3.12."""

    city: str


@pytest.mark.parametrize(
    ("declared", "types"),
    [
        (Order, (Order,)),
        (Any, (Any,)),
        (object, (Any,)),
        (None, (NoneType,)),
        ((Order, Point), (Order, Point)),
        (Order | Point | None, (Order, Point, NoneType)),
        (Optional[Order], (Order, NoneType)),  # noqa: UP045  # the old way to write it
        (Union[Order, Union[Point, int]], (Order, Point, int)),  # noqa: UP007
        ((Order, Point | Order), (Order, Point)),
        (list[Order | Point], (list[Order | Point],)),
        (UserId, (UserId,)),
    ],
)
def test_tuples_and_unions_are_several_types(declared: Any, types: tuple[Any, ...]) -> None:
    """Each once, in order."""
    assert split(declared) == types


@pytest.mark.parametrize("declared", ["Order", 5, (), (Order, "x"), TypeVar("T"), [Order], (Order, Any)])
def test_what_is_no_type_is_refused(declared: Any) -> None:
    """When the queue is opened."""
    with pytest.raises(ConfigError, match="type"):
        split(declared)


@pytest.mark.parametrize(
    ("declared", "classes"),
    [
        (Order, (Order,)),
        (list[Order], (list,)),
        (Address, (dict,)),
        (OldStyle, (dict,)),
        (dict[str, Order], (dict,)),
        (bytes, (bytes, bytearray, memoryview)),
        (float, (float, int)),
        (UserId, (int,)),
        (Positive, (int,)),
        (Sequence[int], (Sequence,)),
        (Order | Point, (Order, Point)),
    ],
)
def test_a_type_has_the_classes_of_its_objects(declared: Any, classes: tuple[type, ...]) -> None:
    """Its own first."""
    assert classes_of(declared) == classes


def test_a_literal_has_the_classes_of_its_values() -> None:
    """Each once, in order."""
    assert classes_of(Literal["a", "b", 1]) == (str, int)


@pytest.mark.parametrize(
    ("declared", "body", "expected"),
    [
        (Any, object(), True),
        (Order, Order(1), True),
        (Order, BigOrder(1), True),
        (BigOrder, Order(1), False),
        (Sequence[int], (1, 2), True),
        (int, True, False),
        (bool, True, True),
        (float, 1, True),
        (float, True, False),
        (int, 1.0, False),
        (Address, {}, True),
    ],
)
def test_an_object_is_of_a_type_by_its_class(declared: Any, body: object, expected: bool) -> None:
    """What is inside is not looked at."""
    assert holds(declared, body) is expected


@pytest.mark.parametrize(
    ("declared", "name"),
    [
        (Order, "Order"),
        (Renamed, "Order"),
        (type("Sub", (Renamed,), {}), "Sub"),
        (list[Order], "list[Order]"),
        (dict[str, list[Renamed]], "dict[str, list[Order]]"),
        (NoneType, "None"),
        (UserId, "UserId"),
        (Positive, "int"),
        (Literal["a"], "Literal['a']"),
        (datetime, "datetime"),
        (Address, "Address"),
        (Any, "Any"),
    ],
)
def test_the_name_of_a_schema_says_nothing_of_the_module(declared: Any, name: str) -> None:
    """It is on the disk; a class may move, or say what its messages are called."""
    assert type_name(declared) == name


@pytest.mark.extra("protobuf")
def test_the_name_of_a_schema_of_protobuf_is_its_own() -> None:
    """Programs of other languages know it by that."""
    from support.service.extra_bodies import Event

    assert type_name(Event) == "shop.Event"
