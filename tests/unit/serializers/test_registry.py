"""The serializers of a service, by name and by content type."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from holdfast import ConfigError
from holdfast.errors import UnknownContentTypeError
from holdfast.serializers.registry import Registry
from support.service.typed_bodies import ReversedText

BUILT_IN = {
    "raw": "application/octet-stream",
    "json": "application/json",
    "msgpack": "application/vnd.msgpack",
    "pickle": "application/x-python-pickle",
    "protobuf": "application/protobuf",
}


class OtherJson(ReversedText):
    """Takes the place of a built-in one."""

    name = "json"
    content_type = "application/json"


@pytest.mark.parametrize(("name", "content_type"), BUILT_IN.items())
def test_the_built_in_serializers_are_found_both_ways(name: str, content_type: str) -> None:
    """Their content types are on the disk: they do not change."""
    registry = Registry()
    assert registry.named(name).content_type == content_type
    assert registry.of(content_type) is registry.named(name)


def test_one_of_ones_own_is_one_class_and_one_call() -> None:
    """At once or later."""
    at_once, later = Registry([ReversedText()]), Registry()
    later.register(ReversedText())
    for registry in (at_once, later):
        assert registry.of("text/x-reversed; charset=utf-8") is registry.named("reversed")


def test_the_last_one_of_a_name_or_content_type_counts() -> None:
    """So a built-in one can be replaced, in one service."""
    other = OtherJson()
    registry = Registry([other])
    assert registry.named("json") is registry.of("application/json") is other
    assert Registry().named("json") is not other


def test_unknown_names_and_content_types_are_errors_that_name_the_known_ones() -> None:
    """A name is the program's fault, a content type the message's."""
    registry = Registry([ReversedText()])
    with pytest.raises(ConfigError, match=r"'yaml'.*raw, json, msgpack, pickle, protobuf, reversed"):
        registry.named("yaml")
    with pytest.raises(UnknownContentTypeError, match=r"'text/yaml'.*text/x-reversed") as caught:
        registry.of("text/yaml")
    assert caught.value.content_type == "text/yaml"
    assert caught.value.known == (*BUILT_IN.values(), "text/x-reversed")


def test_what_was_added_is_pickled_and_the_built_in_ones_are_not() -> None:
    """They are there in every process."""
    there: Registry = pickle.loads(pickle.dumps(Registry([ReversedText()])))
    assert isinstance(there.of("text/x-reversed"), ReversedText)
    assert there.named("json") is Registry().named("json")


@pytest.mark.parametrize(
    ("serializer", "words"),
    [
        (object(), "has a name"),
        (ReversedText, "an instance, ReversedText"),
        (type("Nameless", (ReversedText,), {"name": ""})(), "has a name"),
        (type("Typeless", (ReversedText,), {"content_type": None})(), "has a content_type"),
        (type("Deaf", (ReversedText,), {"decode": None})(), "has a method decode"),
        (type("Dumb", (ReversedText,), {"encode": "x"})(), "has a method encode"),
    ],
)
def test_what_is_no_serializer_is_refused(serializer: Any, words: str) -> None:
    """When it is registered."""
    with pytest.raises(ConfigError, match=words):
        Registry([serializer])
