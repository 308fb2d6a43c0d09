"""What every serializer does, whoever wrote it: a round trip, and an error of ours for everything that is none."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import ConfigError
from holdfast.errors import DecodeError, EncodeError
from holdfast.serializers.codec import Codec
from holdfast.serializers.registry import Registry
from holdfast.serializers.serializer import decoder_of, encoder_of
from support.service.extra_bodies import Event, Person
from support.service.typed_bodies import Letter, Order, Parcel, Point, ReversedText

GARBAGE = b"\xff\xfe\xfd\xfc" * 4
TEXT = st.text(st.characters(codec="utf-8"))
ORDERS = st.builds(Order, st.integers(-(2**63), 2**63 - 1), TEXT)


@dataclass(frozen=True)
class Kind:
    """One serializer, a type, and objects of it."""

    serializer: str
    type: Any
    bodies: Sequence[Any]
    stranger: Any
    """What is of another type."""
    empty: Any
    """An empty one."""
    any_bytes: bool = False
    """Whether all bytes mean something to it, so that there is no garbage."""


KINDS = [
    Kind("raw", bytes, [b"x", bytes(range(256))], "text", b"", any_bytes=True),
    Kind("json", Order, [Order(1, "Zoë"), Order(-(2**63))], Letter("Zoë"), Order(0)),
    Kind("json", list[Parcel], [[Parcel(1, [Order(2)]), Parcel(3)]], {}, []),
    Kind(
        "json",
        Person,
        [Person(name="Zoë", nickName="Z"), Person(name="x", home=Point(1.5, 2))],
        {},
        Person(name=""),
    ),
    Kind("json", str, ["text", "\0"], b"bytes", ""),
    Kind("msgpack", Order, [Order(1, "Zoë"), Order(2**63 - 1)], Letter("Zoë"), Order(0)),
    Kind("msgpack", dict[str, Point], [{"a": Point(1.5, -2)}], [], {}),
    Kind("msgpack", Person, [Person(name="Zoë", nickName="Z")], {}, Person(name="")),
    Kind("msgpack", bytes, [b"x", bytes(range(256))], "text", b""),
    Kind("pickle", Order, [Order(1, "Zoë")], Letter("Zoë"), Order(0)),
    Kind("pickle", dict, [{1: {2, 3}}], [], {}),
    Kind("protobuf", Event, [Event(id=1, name="Zoë"), Event(id=-1)], Order(1), Event()),
    Kind("reversed", str, ["text", "\0"], b"bytes", "", any_bytes=True),
]


@pytest.fixture(params=KINDS, ids=lambda kind: f"{kind.serializer}-{getattr(kind.type, '__name__', kind.type)}")
def kind(request: pytest.FixtureRequest) -> Kind:
    """One after the other."""
    kind: Kind = request.param
    return kind


@pytest.fixture
def codec(kind: Kind) -> Codec[Any]:
    """What a queue of that kind has."""
    return codec_for(kind.serializer, kind.type)


def codec_for(serializer: str, type: Any, **options: Any) -> Codec[Any]:
    """Return a codec, pickles allowed where they are what it is about, without the warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        allow = serializer == "pickle"
        return Codec(Registry([ReversedText()]), type=type, serializer=serializer, allow_pickle=allow, **options)


def test_every_object_comes_back_as_it_was(kind: Kind, codec: Codec[Any]) -> None:
    """Equal, and of its own class; the headers name the content type."""
    for body in [*kind.bodies, kind.empty]:
        payload, headers = codec.encode(body)
        assert type(payload) is bytes
        assert headers["content-type"] == codec.content_type
        back = codec.decode(payload, dict(headers))
        assert back == body
        assert type(back) is type(body)


def test_an_object_that_is_compressed_comes_back_as_it_was(kind: Kind) -> None:
    """Whether compression has made it smaller or not."""
    codec = codec_for(kind.serializer, kind.type, compress_bytes=1)
    for body in [*kind.bodies, kind.empty]:
        payload, headers = codec.encode(body)
        assert codec.decode(payload, dict(headers)) == body


def test_bound_and_plain_verbs_of_a_serializer_are_the_same(kind: Kind) -> None:
    """``encode`` and ``decode`` by themselves do what ``encoder`` and ``decoder`` prepare."""
    serializer = Registry([ReversedText()]).named(kind.serializer)
    for body in [*kind.bodies, kind.empty]:
        payload = serializer.encode(body)
        assert serializer.decode(payload, kind.type) == body
        assert decoder_of(serializer, kind.type)(encoder_of(serializer, kind.type)(body)) == body


def test_an_object_of_another_type_is_refused(kind: Kind, codec: Codec[Any]) -> None:
    """The error says what the queue takes and what it got."""
    with pytest.raises(EncodeError, match=type(kind.stranger).__name__) as caught:
        codec.encode(kind.stranger)
    assert caught.value.content_type == codec.content_type
    assert caught.value.type == type(kind.stranger).__name__


def test_garbage_is_an_error_of_ours_with_its_cause(kind: Kind, codec: Codec[Any]) -> None:
    """But for raw: all bytes mean something to it, themselves."""
    headers = codec.encode(kind.empty)[1]
    if kind.serializer == "raw":
        assert codec.decode(GARBAGE, headers) == GARBAGE
        return
    with pytest.raises(DecodeError) as caught:
        codec.decode(GARBAGE, headers)
    assert caught.value.__cause__ is not None
    assert (caught.value.content_type, caught.value.offset) == (codec.content_type, None)


def test_what_was_cut_off_is_never_taken_for_whole(kind: Kind, codec: Codec[Any]) -> None:
    """At any length: an error, or, where the format has no end, an object of the type and not the one that was put."""
    body = kind.bodies[0]
    payload, headers = codec.encode(body)
    for size in range(len(payload)):
        try:
            back = codec.decode(payload[:size], headers)
        except DecodeError:
            continue
        assert kind.any_bytes or kind.serializer == "protobuf"
        assert type(back) is type(body)
        assert back != body


def test_what_another_type_has_encoded_is_never_the_wrong_object(kind: Kind, codec: Codec[Any]) -> None:
    """With its own headers it is refused before it is looked at; all serializers, all types."""
    for other in KINDS:
        for body in other.bodies:
            payload, headers = codec_for(other.serializer, other.type).encode(body)
            try:
                back = codec.decode(payload, headers)
            except DecodeError:
                continue
            assert type(back) is type(kind.bodies[0])
            assert back == body


@pytest.mark.parametrize("serializer", ["raw", "protobuf"])
def test_serializers_of_few_types_refuse_the_others_at_once(serializer: str) -> None:
    """The queue is refused, not its messages."""
    with pytest.raises(ConfigError, match=serializer):
        codec_for(serializer, Order)


@pytest.mark.parametrize(
    ("serializer", "type", "bodies"),
    [
        ("raw", bytes, st.binary()),
        ("json", Order, ORDERS),
        ("json", list[Order], st.lists(ORDERS, max_size=5)),
        ("json", dict[str, Letter], st.dictionaries(TEXT, st.builds(Letter, TEXT, st.integers(0, 9)), max_size=5)),
        ("json", Person, st.builds(lambda name, nick: Person(name=name, nickName=nick), TEXT, TEXT)),
        ("json", Any, st.recursive(st.none() | st.booleans() | TEXT, lambda some: st.lists(some, max_size=3))),
        ("msgpack", Parcel, st.builds(Parcel, st.integers(0, 9), st.lists(ORDERS, max_size=3), st.datetimes())),
        ("msgpack", tuple[float, bytes], st.tuples(st.floats(allow_nan=False), st.binary())),
        ("pickle", set, st.sets(st.integers() | TEXT)),
        ("protobuf", Event, st.builds(Event, id=st.integers(-(2**63), 2**63 - 1), name=TEXT)),
        ("reversed", str, TEXT),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize("compress_bytes", [None, 1])
def test_whatever_is_put_comes_back(
    serializer: str, type: Any, bodies: st.SearchStrategy[Any], compress_bytes: int | None
) -> None:
    """Round trips of any objects."""
    codec = codec_for(serializer, type, compress_bytes=compress_bytes)

    @given(bodies)
    def round_trip(body: Any) -> None:
        payload, headers = codec.encode(body)
        assert codec.decode(payload, headers) == body

    round_trip()


@pytest.mark.parametrize("serializer", ["json", "msgpack", "pickle", "protobuf"])
def test_any_bytes_are_decoded_to_the_type_or_refused(serializer: str) -> None:
    """Nothing else comes out of a codec, whatever is on the disk."""
    type: Any = Event if serializer == "protobuf" else Order
    codec = codec_for(serializer, type)
    decode: Callable[[bytes], Any] = codec.decoder({})

    @given(st.binary(max_size=40))
    def decode_bytes(payload: bytes) -> None:
        try:
            body = decode(payload)
        except DecodeError:
            return
        assert isinstance(body, type)

    decode_bytes()
