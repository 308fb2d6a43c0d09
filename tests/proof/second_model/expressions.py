"""The filters that histories give to groups, each with what filters.md says of it: whether a message matches.

None: "an expression has no answer", and the message is delivered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from proof.second_model.facts import Message


def kind_of(message: Message) -> str | None:
    """Return the header ``kind``."""
    return dict(message.headers).get("kind")


def kind_is_a(message: Message) -> bool | None:
    """Compare it; there is no answer if it is not there."""
    kind = kind_of(message)
    return None if kind is None else kind == "a"


EXPRESSIONS: dict[str, Callable[[Message], bool | None]] = {
    "headers.kind == 'a'": kind_is_a,
    "has(headers.kind) && headers.kind == 'a'": lambda message: kind_of(message) == "a",
    "!has(headers.kind)": lambda message: kind_of(message) is None,
    "key == 'x' || priority > 3": lambda message: message.order_key == "x" or message.priority > 3,
    "size > 1000 || key == 'y'": lambda message: len(message.payload) > 1000 or message.order_key == "y",
}

REFUSED = "headers.kind =="
"""This is none: no group is made with it."""
