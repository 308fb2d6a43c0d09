"""Objects of classes that need an extra: models of pydantic, and messages of Protocol Buffers."""

from __future__ import annotations

import dataclasses
from datetime import datetime
from typing import Any

import pydantic
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from support.service.typed_bodies import Point


class Person(pydantic.BaseModel):
    """A model of pydantic."""

    name: str
    born: datetime | None = None
    home: Point | None = None
    nick_name: str = pydantic.Field("", alias="nickName")


@dataclasses.dataclass
class Team:
    """A dataclass with models inside."""

    lead: Person
    people: list[Person]


def _event_class() -> Any:
    """Return a class as protoc would make it, from a description."""
    file = descriptor_pb2.FileDescriptorProto(name="holdfast_tests.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Event")
    kinds = descriptor_pb2.FieldDescriptorProto
    message.field.add(name="id", number=1, type=kinds.TYPE_INT64, label=kinds.LABEL_OPTIONAL)
    message.field.add(name="name", number=2, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Event"))


Event = _event_class()
