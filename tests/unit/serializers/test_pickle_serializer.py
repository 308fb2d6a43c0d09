"""Pickle, once it is allowed."""

from __future__ import annotations

import pickle
import pickletools
from typing import Any

import pytest

from holdfast.serializers.content_types.pickle_serializer import PickleSerializer
from support.service.typed_bodies import Order, Plain

PICKLE = PickleSerializer()


def test_it_takes_any_object_whose_class_can_be_imported() -> None:
    """With or without a type."""
    body = Plain(5)
    assert PICKLE.decode(PICKLE.encode(body), Plain) == body
    assert PICKLE.decode(PICKLE.encode([body]), Any) == [body]
    with pytest.raises((pickle.PicklingError, AttributeError)):
        PICKLE.encode(lambda: None)


def test_it_writes_what_every_python_reads() -> None:
    """Another version of Python does not strand a queue."""
    opcode, protocol, _ = next(pickletools.genops(PICKLE.encode(1)))
    assert (opcode.name, protocol) == ("PROTO", 5)


def test_it_never_gives_another_type() -> None:
    """What came out is refused, if too late for what its code did."""
    with pytest.raises(TypeError, match="holds Plain, not Order"):
        PICKLE.decode(PICKLE.encode(Plain(5)), Order)
