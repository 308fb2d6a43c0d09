"""The way from an older version to the present one."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import ConfigError
from holdfast.errors import DecodeError
from holdfast.serializers.schemas import Schema
from holdfast.serializers.upcasts import Upcasts, apply
from support.service.typed_bodies import Order

ORDER = Schema(Order, "Order", 5)


def went_through(*steps: tuple[int, int], version: int) -> list[str]:
    """Return the steps that a message of a version takes."""
    upcasts = Upcasts()
    for start, end in steps:
        upcasts.add(ORDER, start, end, lambda taken, step=f"{start}-{end}": [*taken, step])
    body: list[str] = apply(upcasts.chain(ORDER, version), [])
    return body


def test_a_chain_leads_through_every_version() -> None:
    """From that of the message on, whatever the order they were registered in."""
    steps = [(3, 4), (1, 2), (4, 5), (2, 3)]
    assert went_through(*steps, version=1) == ["1-2", "2-3", "3-4", "4-5"]
    assert went_through(*steps, version=4) == ["4-5"]
    assert went_through(*steps, version=5) == []


def test_a_step_may_pass_over_versions() -> None:
    """What starts inside of it is for messages that start there."""
    assert went_through((1, 4), (2, 4), (4, 5), version=1) == ["1-4", "4-5"]
    assert went_through((1, 4), (2, 4), (4, 5), version=2) == ["2-4", "4-5"]


def test_a_version_without_a_step_goes_on_as_it_is() -> None:
    """It differs by additions only: a step that is written later does not strand what is older."""
    assert went_through((3, 4), version=1) == ["3-4"]
    assert went_through((1, 2), version=1) == ["1-2"]
    assert went_through((1, 2), (4, 5), version=1) == ["1-2", "4-5"]
    assert went_through((1, 2), version=3) == []


def test_schemas_have_steps_of_their_own() -> None:
    """By name."""
    upcasts = Upcasts()
    upcasts.add(ORDER, 1, 2, lambda body: body)
    assert upcasts.chain(Schema(Order, "Other", 5), 1) == []


@pytest.mark.parametrize(
    ("start", "end", "words"),
    [
        (2, 2, "later version"),
        (3, 2, "later version"),
        (0, 1, "later version"),
        (-1, 1, "later version"),
        ("1", 2, "later version"),
        (True, 2, "later version"),
        (1, 6, "version=6"),
        (4, 5, "already"),
    ],
)
def test_a_step_that_cannot_be_part_of_a_chain_is_refused(start: Any, end: Any, words: str) -> None:
    """When it is registered."""
    upcasts = Upcasts()
    upcasts.add(ORDER, 4, 5, lambda body: body)
    with pytest.raises(ConfigError, match=words):
        upcasts.add(ORDER, start, end, lambda body: body)


def test_what_a_step_raises_is_the_cause() -> None:
    """But for what is no fault of the message."""

    def fails(body: Any) -> Any:
        raise body

    with pytest.raises(DecodeError, match="fails raised ValueError: no") as caught:
        apply([fails], ValueError("no"))
    assert isinstance(caught.value.__cause__, ValueError)
    with pytest.raises(MemoryError):
        apply([fails], MemoryError())
