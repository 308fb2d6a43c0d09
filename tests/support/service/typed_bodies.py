"""Objects that tests put into queues: of each kind of class that serializers know. Importable, so that they pickle."""

from __future__ import annotations

import dataclasses
from datetime import datetime
from typing import Any, NamedTuple, TypedDict

import attrs
import msgspec


class Order(msgspec.Struct):
    """The usual one."""

    id: int
    customer: str = ""


class BigOrder(Order):
    """A subclass that no queue declares."""

    discount: float = 0.0


class Invoice(msgspec.Struct):
    """Another one, of the same shape."""

    id: int
    customer: str = ""


@dataclasses.dataclass
class Parcel:
    """A dataclass, with others inside."""

    id: int
    orders: list[Order] = dataclasses.field(default_factory=list)
    sent: datetime | None = None


@attrs.define
class Letter:
    """A class of attrs."""

    to: str
    stamps: int = 1


class Point(NamedTuple):
    """A tuple with names."""

    x: float
    y: float


class Address(TypedDict):
    """A dict with types."""

    city: str
    zip: int


class Renamed(msgspec.Struct):
    """A class whose messages are called otherwise."""

    __schema__ = "Order"

    id: int


class Plain:
    """A class that says nothing of its fields."""

    def __init__(self, id: int) -> None:
        self.id = id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plain) and other.id == self.id

    __hash__ = None  # type: ignore[assignment]


class ReversedText:
    """A serializer as a user writes one: text, backwards."""

    name = "reversed"
    content_type = "text/x-reversed"

    def encode(self, body: Any) -> bytes:
        return bytes(reversed(body.encode()))

    def decode(self, payload: bytes, type: Any) -> Any:
        return bytes(reversed(payload)).decode()


def add_customer(order: dict[str, Any]) -> dict[str, Any]:
    """An upcast that other processes can import."""
    return {**order, "customer": f"customer of {order['id']}"}
