"""pydantic models, through ``TypeAdapter``: by themselves, and inside of other classes."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Any

import pydantic
import pydantic.dataclasses
import pytest

from holdfast import ConfigError
from holdfast.errors import DecodeError, EncodeError
from holdfast.serializers.codec import Codec
from holdfast.serializers.content_types.pydantic_models import is_model
from holdfast.serializers.registry import Registry
from support.service.extra_bodies import Person, Team
from support.service.typed_bodies import Order, Point

ZOE = Person(name="Zoë", born=datetime(1990, 5, 1, tzinfo=UTC), home=Point(1, 2), nickName="Z")


class Strict(pydantic.BaseModel, strict=True):
    """Takes a date from JSON, and no text from Python."""

    when: datetime


@pydantic.dataclasses.dataclass
class Checked:
    """A dataclass that pydantic checks."""

    share: float = pydantic.Field(ge=0, le=1)


def codec(type: Any, serializer: str = "json") -> Codec[Any]:
    """Return a codec."""
    return Codec(Registry(), type=type, serializer=serializer)


def test_models_are_recognized() -> None:
    """And nothing else."""
    assert is_model(Person)
    assert is_model(Checked)
    assert not is_model(Order)
    assert not is_model(ZOE)
    assert not is_model(list[Person])


@pytest.mark.parametrize("serializer", ["json", "msgpack"])
@pytest.mark.parametrize(
    ("type", "body"),
    [
        (Person, ZOE),
        (Person | None, ZOE),
        (list[Person], [ZOE, Person(name="x")]),
        (dict[str, Person], {"a": ZOE}),
        (Team, Team(ZOE, [ZOE])),
        (Strict, Strict(when=datetime(2030, 1, 1, tzinfo=UTC))),
        (list[Strict], [Strict(when=datetime(2030, 1, 1, tzinfo=UTC))]),
        (Checked, Checked(0.5)),
    ],
    ids=str,
)
def test_models_come_back_as_they_were(type: Any, body: Any, serializer: str) -> None:
    """Dates, aliases and nested types too."""
    queue = codec(type, serializer)
    assert queue.decode(*queue.encode(body)) == body


def test_the_payload_is_what_pydantic_writes_by_alias() -> None:
    """Other programs read the same."""
    assert codec(Person).encode(ZOE)[0] == ZOE.model_dump_json(by_alias=True).encode()


@pytest.mark.parametrize("serializer", ["json", "msgpack"])
def test_what_breaks_a_rule_of_the_model_is_undecodable(serializer: str) -> None:
    """The model has the last word."""
    payload, headers = codec(dict, serializer).encode({"share": 7})
    with pytest.raises(DecodeError, match="less than or equal to 1") as caught:
        codec(Checked, serializer).decode(payload, {**headers, "ce-type": "Checked"})
    assert isinstance(caught.value.__cause__, pydantic.ValidationError)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("serializer", ["json", "msgpack"])
def test_a_model_that_was_bent_is_refused_when_it_is_put(serializer: str) -> None:
    """Not when somebody takes it out."""
    bent = Person(name="x")
    bent.name = 5  # type: ignore[assignment]
    with pytest.raises(EncodeError, match="Person"):
        codec(Person, serializer).encode(bent)


def test_a_model_with_an_annotation_that_leads_nowhere_is_refused() -> None:
    """When the queue is opened."""

    class Lost(pydantic.BaseModel):
        other: Nowhere  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(ConfigError, match="Lost cannot be used"):
        codec(Lost)


def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that comes from elsewhere, as far as one can come."""
    model = pydantic.create_model("Elsewhere", a=(int, 0))
    monkeypatch.setitem(sys.modules, "pydantic", None)
    with pytest.raises(ConfigError, match=r"pip install 'holdfast\[pydantic\]'"):
        codec(model)
