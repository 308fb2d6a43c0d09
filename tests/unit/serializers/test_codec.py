"""What one queue's objects become, and how they come back: types, headers, versions, and everything that is refused."""

from __future__ import annotations

import pickle
import subprocess
import sys
from asyncio import CancelledError
from collections.abc import Callable, Mapping
from typing import Any, NewType

import msgspec
import pytest

from holdfast import ConfigError
from holdfast.errors import DecodeError, EncodeError, UnknownContentTypeError
from holdfast.messages import CommonHeaders
from holdfast.serializers.codec import Codec
from holdfast.serializers.content_types.json_serializer import JsonSerializer
from holdfast.serializers.registry import Registry
from support.service.typed_bodies import (
    Address,
    BigOrder,
    Invoice,
    Letter,
    Order,
    Parcel,
    Plain,
    Point,
    Renamed,
    ReversedText,
    add_customer,
)

ORDER_HEADERS = {"content-type": "application/json", "ce-type": "Order", "ce-schemaversion": "1"}
PICKLE_HEADERS = {"content-type": "application/x-python-pickle", "ce-type": "Order", "ce-schemaversion": "1"}
OrderId = NewType("OrderId", int)


def codec(type: Any = Any, **options: Any) -> Codec[Any]:
    """Return a codec of the built-in serializers."""
    return Codec(Registry(), type=type, **options)


class TimeIsOver(BaseException):
    """As the timeouts of gevent, and what a program raises in another thread."""


class Bomb:
    """Says so when it is unpickled."""

    exploded = False

    def __reduce__(self) -> tuple[Any, ...]:
        return setattr, (Bomb, "exploded", True)


class Broken:
    """A serializer that raises what it is told to."""

    name = "broken"
    content_type = "application/x-broken"

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def encode(self, body: Any) -> bytes:
        raise self.error

    def decode(self, payload: bytes, type: Any) -> Any:
        raise self.error


class TestHeaders:
    """Each message says what it is."""

    def test_a_message_names_content_type_schema_and_version(self) -> None:
        """By the names of CloudEvents over HTTP."""
        payload, headers = codec(Order).encode(Order(1, "Zoë"))
        assert payload == '{"id":1,"customer":"Zoë"}'.encode()
        assert dict(headers) == ORDER_HEADERS

    @pytest.mark.extra("protobuf")
    def test_a_message_of_protobuf_names_the_schema_that_protobuf_knows(self) -> None:
        """With its package."""
        from support.service.extra_bodies import Event

        assert dict(codec(Event, serializer="protobuf").encode(Event(id=1))[1]) == {
            "content-type": "application/protobuf",
            "ce-type": "shop.Event",
            "ce-schemaversion": "1",
        }

    def test_messages_of_one_type_share_their_headers(self) -> None:
        """The same object, which is encoded once."""
        orders = codec((Order, Letter), version={Letter: 3})
        first, second = orders.encode(Order(1))[1], orders.encode(Order(2))[1]
        assert first is second
        assert type(first) is CommonHeaders
        assert orders.encode(Letter("x"))[1]["ce-schemaversion"] == "3"

    def test_a_queue_without_a_type_names_no_schema(self) -> None:
        """Objects come back as what the serializer makes of them."""
        anything = codec()
        for body in ({"a": [1, None]}, "text", 1.5, [True], None):
            payload, headers = anything.encode(body)
            assert dict(headers) == {"content-type": "application/json", "ce-schemaversion": "1"}
            assert anything.decode(payload, headers) == body
        assert anything.decode(*codec(Order).encode(Order(1, "x"))) == {"id": 1, "customer": "x"}
        assert anything.decode(b"[1]", {"ce-type": "Some", "ce-schemaversion": "7"}) == [1]

    def test_bytes_are_raw_unless_a_serializer_is_named(self) -> None:
        """And everything else is JSON."""
        assert codec(bytes).content_type == "application/octet-stream"
        assert codec(bytes, serializer="json").content_type == "application/json"
        assert codec((bytes, str)).content_type == "application/json"
        assert codec(bytes).encode(bytearray(b"x"))[0] == b"x"
        assert codec(bytes).encode(memoryview(b"x"))[0] == b"x"

    def test_a_schema_may_have_another_name_than_its_class(self) -> None:
        """So a class can be renamed while its messages are on the disk."""
        renamed = codec(Renamed)
        assert dict(renamed.encode(Renamed(1))[1]) == ORDER_HEADERS
        assert renamed.decode(*codec(Order).encode(Order(5))) == Renamed(5)


class TestTypes:
    """What a queue takes, and to what it is decoded."""

    @pytest.mark.parametrize("type", [(Order, Invoice, Letter), Order | Invoice | Letter])
    def test_the_header_chooses_the_type_where_there_are_several(self, type: Any) -> None:
        """Also where their fields are the same."""
        several = codec(type)
        for body in (Order(1, "a"), Invoice(1, "a"), Letter("b")):
            payload, headers = several.encode(body)
            assert several.decode(payload, dict(headers)) == body

    def test_none_is_a_type_of_its_own(self) -> None:
        """In a union, as type checkers have it."""
        optional = codec(Order | None)
        for body in (None, Order(1)):
            assert optional.decode(*optional.encode(body)) == body
        assert optional.encode(None)[1]["ce-type"] == "None"

    def test_a_message_without_headers_is_what_the_queue_declares(self) -> None:
        """Put by a plain PersistentQueue: default serializer, default type, present version."""
        orders = codec(Order, version=4)
        orders.upcast(1, 2)(add_customer)
        assert orders.decode(b'{"id":1}', {}) == Order(1)
        assert orders.decode(b'{"id":1}', {"tenant": "acme"}) == Order(1)
        assert codec(bytes).decode(b"as it is", {}) == b"as it is"

    def test_a_message_without_headers_may_be_any_of_several_types_that_can_be_told_apart(self) -> None:
        """By its form; where that does not say it, the message is refused."""
        either = codec((Order, list[int], None))
        assert [either.decode(payload, {}) for payload in (b'{"id":1}', b"[1]", b"null")] == [Order(1), [1], None]
        with pytest.raises(DecodeError, match="tagged"):
            codec((Order, Invoice)).decode(b'{"id":1}', {})

    def test_a_schema_the_queue_does_not_take_is_refused(self) -> None:
        """Never decoded to something that only looks alike."""
        with pytest.raises(DecodeError, match="'Invoice', and the queue takes Order") as caught:
            codec(Order).decoder(codec(Invoice).encode(Invoice(1))[1])
        assert (caught.value.content_type, caught.value.offset) == ("application/json", None)

    def test_a_subclass_goes_as_the_class_that_is_declared(self) -> None:
        """And as the nearest one, where several are."""
        payload, headers = codec(Order).encode(BigOrder(1, "x", 0.5))
        assert headers["ce-type"] == "Order"
        assert codec(Order).decode(payload, headers) == Order(1, "x")
        both = codec((Order, BigOrder))
        assert both.decode(*both.encode(BigOrder(1, "x", 0.5))) == BigOrder(1, "x", 0.5)

    @pytest.mark.parametrize(
        ("type", "body", "words"),
        [
            (Order, Letter("x"), "takes Order, not Letter"),
            (Order, {"id": 1}, "takes Order, not dict"),
            ((Order, Letter), 5, "takes Order or Letter, not int"),
            (list[Order], (Order(1),), r"takes list\[Order\], not tuple"),
            (Address, [1], "takes Address, not list"),
            (int, True, "takes int, not bool"),
            (OrderId, "5", "takes OrderId, not str"),
            (bytes, "text", "takes bytes, not str"),
        ],
    )
    def test_another_type_is_refused_by_name(self, type: Any, body: Any, words: str) -> None:
        """Before anything is encoded."""
        with pytest.raises(EncodeError, match=words) as caught:
            codec(type).encode(body)
        assert caught.value.type == body.__class__.__name__

    def test_what_encodes_a_class_is_remembered_for_few_classes_only(self) -> None:
        """A program that makes classes as it goes does not fill the memory."""
        orders = codec(Order)
        for number in range(300):
            subclass = msgspec.defstruct(f"Order{number}", [], bases=(Order,))
            assert orders.encode(subclass(number))[0] == b'{"id":%d,"customer":""}' % number
        assert len(orders._lanes) < 300


class TestErrors:
    """Whatever goes wrong in a serializer is an error of ours, with its cause."""

    def test_an_error_in_encoding_is_the_cause(self) -> None:
        """The message names serializer and class."""
        with pytest.raises(EncodeError, match="msgpack cannot encode this Parcel") as caught:
            codec(Parcel, serializer="msgpack").encode(Parcel(2**70))
        assert isinstance(caught.value.__cause__, OverflowError)
        assert "\n" not in str(caught.value)

    def test_a_body_without_end_is_refused(self) -> None:
        """A list that holds itself."""
        endless: list[Any] = []
        endless.append(endless)
        with pytest.raises(EncodeError, match="Recursion") as caught:
            codec().encode(endless)
        assert isinstance(caught.value.__cause__, RecursionError)

    def test_a_payload_too_deep_is_refused(self) -> None:
        """As every other payload that cannot be decoded."""
        with pytest.raises(DecodeError) as caught:
            codec().decode(b"[" * 200_000, {})
        assert isinstance(caught.value.__cause__, RecursionError)

    def test_an_error_of_a_serializer_may_have_no_text(self) -> None:
        """It is somebody else's code, too."""

        class CannotSayError(Exception):
            def __str__(self) -> str:
                raise ValueError

        with pytest.raises(DecodeError, match="CannotSayError: "):
            codec(serializer=Broken(CannotSayError())).decode(b"", {})

    def test_a_panic_of_a_serializer_is_an_error_of_its_payload(self) -> None:
        """An extension in Rust raises what is no Exception: else that message would stop each consumer for ever."""

        class PanicException(BaseException):
            pass

        with pytest.raises(DecodeError, match="PanicException: out of bounds"):
            codec(serializer=Broken(PanicException("out of bounds"))).decode(b"", {})

    @pytest.mark.parametrize(
        "error", [MemoryError(), KeyboardInterrupt(), SystemExit(), GeneratorExit(), CancelledError(), TimeIsOver()]
    )
    def test_what_is_no_fault_of_the_message_passes_through(self, error: BaseException) -> None:
        """Nothing is parked because the machine is short of memory, or somebody pressed Ctrl-C."""
        broken = codec(serializer=Broken(error))
        with pytest.raises(type(error)):
            broken.encode(1)
        with pytest.raises(type(error)):
            broken.decode(b"", {})

    def test_a_serializer_may_raise_our_errors_itself(self) -> None:
        """They keep what they say, and get what they promise."""
        with pytest.raises(DecodeError, match=r"^not today$") as caught:
            codec(serializer=Broken(DecodeError("not today"))).decode(b"", {})
        assert (caught.value.content_type, caught.value.offset) == ("application/x-broken", None)

    def test_the_queue_can_say_which_message_it_was(self) -> None:
        """Where the error comes from, nobody knows the offset."""
        with pytest.raises(DecodeError) as caught:
            codec(Order).decode(b"", {})
        caught.value.context["offset"] = 42
        assert pickle.loads(pickle.dumps(caught.value)).offset == 42

    @pytest.mark.parametrize(
        ("headers", "words"),
        [
            ({"content-encoding": "gzip"}, "'gzip'"),
            ({"ce-schemaversion": "new"}, "'new'"),
            ({"ce-schemaversion": "0"}, "'0'"),
            ({"ce-schemaversion": "-1"}, "'-1'"),
            ({"ce-schemaversion": "²"}, "'²'"),
            ({"ce-schemaversion": "1" * 5000}, "from 1 on"),
            ({"ce-schemaversion": ""}, "''"),
        ],
    )
    def test_headers_that_mean_nothing_are_refused(self, headers: Mapping[str, str], words: str) -> None:
        """Before the payload is looked at."""
        with pytest.raises(DecodeError, match=words):
            codec(Order).decoder(headers)


class TestContentTypes:
    """A message is decoded by what its own header says."""

    def test_a_queue_reads_what_it_wrote_with_another_serializer(self) -> None:
        """So a queue can change from one to another while messages wait."""
        for serializer in ("json", "msgpack"):
            payload, headers = codec(Order, serializer=serializer).encode(Order(1, "x"))
            assert codec(Order, serializer="msgpack").decode(payload, headers) == Order(1, "x")

    def test_parameters_and_case_of_a_content_type_do_not_matter(self) -> None:
        """As HTTP has it."""
        headers = {"content-type": "Application/JSON; charset=utf-8"}
        assert codec(Order, serializer="msgpack").decode(b'{"id":1}', headers) == Order(1)
        assert codec(Order).decode(b'{"id":1}', headers) == Order(1)

    def test_an_unknown_content_type_is_an_error_that_names_the_known_ones(self) -> None:
        """Before the payload is looked at."""
        with pytest.raises(UnknownContentTypeError, match="application/json") as caught:
            codec(Order).decoder({"content-type": "image/png"})
        assert caught.value.content_type == "image/png"
        assert "application/json" in caught.value.known

    def test_a_serializer_that_fails_to_prepare_itself_does_not_stop_the_queue(self) -> None:
        """The message is set aside as any other."""

        class Unprepared(JsonSerializer):
            name = "unprepared"
            content_type = "application/x-unprepared"

            def __init__(self, error: Exception) -> None:
                self.error = error

            def decoder(self, type: Any) -> Any:
                raise self.error

        headers = {"content-type": "application/x-unprepared"}
        broken: Codec[Order] = Codec(Registry([Unprepared(LookupError("no table"))]), type=Order)
        with pytest.raises(DecodeError, match="LookupError: no table"):
            broken.decoder(headers)
        exhausted: Codec[Order] = Codec(Registry([Unprepared(MemoryError())]), type=Order)
        with pytest.raises(MemoryError):
            exhausted.decoder(headers)

    def test_a_serializer_of_ones_own_is_named_or_passed(self) -> None:
        """By its name where it is registered; an instance for one queue only, too."""
        named: Codec[str] = Codec(Registry([ReversedText()]), type=str, serializer="reversed")
        assert named.encode("abc")[0] == b"cba"
        passed = codec(str, serializer=ReversedText())
        assert passed.decode(*passed.encode("abc")) == "abc"
        with pytest.raises(ConfigError, match="reversed"):
            codec(str, serializer="reversed")


class TestPickle:
    """Only where it was asked for."""

    def test_naming_it_without_leave_is_refused(self) -> None:
        """At once, not at the first message."""
        with pytest.raises(ConfigError, match="allow_pickle=True"):
            codec(Plain, serializer="pickle")

    def test_a_pickle_that_claims_more_than_there_is_cannot_be_decoded(self) -> None:
        """A few bytes ask for terabytes: that is no lack of memory."""
        with pytest.warns(UserWarning, match="pickle"):
            trusting = codec(Plain, serializer="pickle", allow_pickle=True)
        with pytest.raises(DecodeError):
            trusting.decode(b"\x8e\x00\x00\x00\x00\x00\x00\x00\x01", {"content-type": PICKLE_HEADERS["content-type"]})

    def test_a_pickle_is_refused_before_a_byte_of_it_is_decoded(self) -> None:
        """Whoever wrote it: its code does not run."""
        with pytest.raises(DecodeError, match="allow_pickle=True") as caught:
            codec(Order).decode(pickle.dumps(Bomb()), PICKLE_HEADERS)
        assert not Bomb.exploded
        assert (caught.value.content_type, caught.value.offset) == ("application/x-python-pickle", None)

    def test_with_leave_there_is_a_warning_and_it_works(self) -> None:
        """Once, when the queue is opened."""
        with pytest.warns(UserWarning, match="can run code in this process") as warned:
            allowed = codec(Plain, serializer="pickle", allow_pickle=True)
        assert len(warned) == 1
        assert allowed.decode(*allowed.encode(Plain(5))) == Plain(5)

    def test_a_queue_of_json_may_read_pickles_with_leave(self) -> None:
        """So a queue can leave pickle behind."""
        with pytest.warns(UserWarning, match="allow_pickle"):
            orders = codec(Order, allow_pickle=True)
        assert orders.decode(pickle.dumps(Order(1)), PICKLE_HEADERS) == Order(1)
        with pytest.raises(DecodeError, match="holds Letter, not Order"):
            orders.decode(pickle.dumps(Letter("x")), PICKLE_HEADERS)


class TestVersions:
    """Older messages become what the program knows now, newer ones wait for a newer program."""

    def test_a_newer_version_is_refused_and_says_so(self) -> None:
        """Before the payload is looked at."""
        with pytest.raises(DecodeError, match="Order has version 3, newer than version 2 of this program"):
            codec(Order, version=2).decoder(codec(Order, version=3).encode(Order(1))[1])

    def test_an_older_version_is_decoded_as_it_is_where_there_are_no_upcasts(self) -> None:
        """Unknown fields are ignored, additions have defaults."""
        assert codec(Order, version=9).decode(b'{"id":1,"gone":true}', ORDER_HEADERS) == Order(1)

    @pytest.mark.parametrize("serializer", ["json", "msgpack"])
    def test_upcasts_run_on_plain_data(self, serializer: str) -> None:
        """And what comes out becomes the type."""
        old = codec(dict, serializer=serializer)
        payload, headers = old.encode({"id": 7})
        new = codec(Order, serializer=serializer, version=2)
        new.upcast(1, 2)(add_customer)
        assert new.decode(payload, {**headers, "ce-type": "Order"}) == Order(7, "customer of 7")
        assert new.decode(*new.encode(Order(8))) == Order(8)

    def test_an_upcast_that_is_registered_late_counts_for_decoders_made_before(self) -> None:
        """Callers keep them."""
        orders = codec(Order, version=2)
        decode = orders.decoder(ORDER_HEADERS)
        assert decode(b'{"id":7}') == Order(7)
        orders.upcast(1, 2)(add_customer)
        assert decode(b'{"id":7}') == Order(7, "customer of 7")

    def test_each_type_has_its_own_versions_and_upcasts(self) -> None:
        """By class or by name."""
        both = codec((Order, Invoice), version={Order: 2})
        both.upcast(1, 2, schema=Order)(add_customer)
        assert both.decode(b'{"id":7}', ORDER_HEADERS) == Order(7, "customer of 7")
        assert both.decode(b'{"id":7}', {**ORDER_HEADERS, "ce-type": "Invoice"}) == Invoice(7)
        by_name = codec((Order, Invoice), version=2)
        by_name.upcast(1, 2, schema="Order")(add_customer)
        assert by_name.decode(b'{"id":7}', ORDER_HEADERS) == Order(7, "customer of 7")

    def test_an_upcast_that_raises_makes_the_message_undecodable(self) -> None:
        """With what it raised as the cause."""
        orders = codec(Order, version=2)

        @orders.upcast(1, 2)
        def needs_more(order: dict[str, Any]) -> dict[str, Any]:
            return {"id": order["number"]}

        with pytest.raises(DecodeError, match="needs_more raised KeyError: 'number'") as caught:
            orders.decode(b'{"id":7}', ORDER_HEADERS)
        assert isinstance(caught.value.__cause__, KeyError)
        assert caught.value.content_type == "application/json"

    def test_an_upcast_that_makes_something_else_makes_the_message_undecodable(self) -> None:
        """The type has the last word."""
        orders = codec(Order, version=2)
        orders.upcast(1, 2)(lambda order: None)
        with pytest.raises(DecodeError, match="Expected `object`, got `null`"):
            orders.decode(b'{"id":7}', ORDER_HEADERS)

    def test_a_queue_without_a_type_has_versions_of_its_own_messages(self) -> None:
        """Plain data is what the application gets then."""
        anything = codec(version=2)
        anything.upcast(1, 2)(add_customer)
        _, headers = codec().encode({})
        assert anything.decode(b'{"id":7}', headers) == {"id": 7, "customer": "customer of 7"}

    @pytest.mark.parametrize(
        ("register", "words"),
        [
            (lambda orders: orders.upcast(1, 2), "say which one"),
            (lambda orders: orders.upcast(1, 2, schema="Other"), "takes Order or Letter, not 'Other'"),
            (lambda orders: orders.upcast(1, 2, schema=Invoice), "takes Order or Letter"),
        ],
    )
    def test_an_upcast_of_no_schema_of_the_queue_is_refused(
        self, register: Callable[[Codec[Any]], object], words: str
    ) -> None:
        """When it is registered."""
        with pytest.raises(ConfigError, match=words):
            register(codec((Order, Letter), version=2))

    @pytest.mark.extra("protobuf")
    def test_protobuf_has_no_upcasts(self) -> None:
        """It has no plain data, and its own way to grow."""
        from support.service.extra_bodies import Event

        with pytest.raises(ConfigError, match="protobuf"):
            codec(Event, serializer="protobuf", version=2).upcast(1, 2)


class TestOptions:
    """Options that cannot work are refused when the queue is opened."""

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"serializer": "yaml"}, "yaml"),
            ({"serializer": object()}, "serializer"),
            ({"type": Plain}, "Plain"),
            ({"type": list[Plain]}, "Plain"),
            ({"type": "Order"}, "'Order'"),
            ({"type": ()}, "at least one"),
            ({"type": (Order, Any)}, "Any"),
            ({"type": (list[int], list[str])}, "told apart"),
            ({"type": (Address, dict)}, "told apart"),
            ({"type": (Order, Renamed)}, "__schema__"),
            ({"type": Order, "version": 0}, "version"),
            ({"type": Order, "version": True}, "version"),
            ({"type": Order, "version": "1"}, "version"),
            ({"type": Order, "version": 10**9}, "version"),
            ({"type": Order, "version": {Order: 0}}, "version"),
            ({"type": Order, "version": {Letter: 1}}, "Letter"),
            ({"compress_bytes": 0}, "compress_bytes"),
            ({"compress_bytes": 1.5}, "compress_bytes"),
            ({"compress_bytes": True}, "compress_bytes"),
        ],
    )
    def test_options_that_cannot_work_are_refused(self, options: dict[str, Any], words: str) -> None:
        """One line that names the option."""
        with pytest.raises(ConfigError, match=words):
            codec(**options)


class TestOtherProcesses:
    """Worker processes get the codec as a pickle."""

    @pytest.mark.extra("zstd")
    def test_a_codec_can_be_pickled_with_its_upcasts(self) -> None:
        """And does the same there."""
        registry = Registry([ReversedText()])
        orders: Codec[Any] = Codec(registry, type=Order | list[Point], version={Order: 2}, compress_bytes=10_000)
        orders.upcast(1, 2, schema=Order)(add_customer)
        there: Codec[Any] = pickle.loads(pickle.dumps(orders))
        for body in (Order(1, "x" * 20_000), [Point(1, 2)]):
            assert there.encode(body)[0] == orders.encode(body)[0]
            assert there.encode(body)[1] == orders.encode(body)[1]
            assert there.decode(*orders.encode(body)) == body
        assert there.decode(b'{"id":7}', ORDER_HEADERS) == Order(7, "customer of 7")
        headers = {"content-type": "text/x-reversed", "ce-type": "Order", "ce-schemaversion": "2"}
        assert there.decode(b"cba", headers) == "abc"

    def test_leave_to_unpickle_is_kept_and_not_warned_about_again(self) -> None:
        """One line in the log, not one for each worker; warnings are errors here."""
        with pytest.warns(UserWarning, match="allow_pickle"):
            allowed = codec(Plain, serializer="pickle", allow_pickle=True)
        there: Codec[Plain] = pickle.loads(pickle.dumps(allowed))
        assert there.decode(*allowed.encode(Plain(5))) == Plain(5)

    def test_nothing_optional_is_imported_before_it_is_used(self) -> None:
        """Neither pydantic nor protobuf nor zstd, nor pickles of anybody."""
        script = (
            "import sys\n"
            "from holdfast.serializers.codec import Codec\n"
            "from holdfast.serializers.registry import Registry\n"
            "queue = Codec(Registry(), type=list[int])\n"
            "assert queue.decode(*queue.encode([1])) == [1]\n"
            "names = ('pydantic', 'google.protobuf', 'backports.zstd', 'compression.zstd')\n"
            "sys.exit(str([name for name in names if name in sys.modules] or ''))\n"
        )
        run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
        assert run.stderr.strip() == ""
