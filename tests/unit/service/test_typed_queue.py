"""Objects go in and come out: typed, with their headers, and what cannot be read is set aside."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import Empty, Put, StaleReceiptError, UsageError
from holdfast.errors import DecodeError, EncodeError
from holdfast.service import taking
from holdfast.service.queue_service import QueueService
from holdfast.service.typed_queue import TypedQueue
from support.builders.clocks import FakeClock


class Order(msgspec.Struct):
    """What is ordered."""

    number: int
    item: str = "book"


class Refund(msgspec.Struct):
    """What is given back."""

    number: int
    cents: int


@pytest.fixture
def orders(service: QueueService) -> TypedQueue[Order]:
    """A queue of orders whose failures come again at once."""
    return service.queue("orders", type=Order, backoff=[])


def test_an_object_comes_out_as_it_was_put(orders: TypedQueue[Order]) -> None:
    """Its type, its offset and its headers are there; the block's end finishes it."""
    assert orders.put(Order(42, "lamp"), headers={"tenant": "acme"}) == 0
    with orders.receive(timeout=0) as message:
        assert message.body == Order(42, "lamp")
        assert (message.offset, message.delivery_count, message.is_settled) == (0, 1, False)
        assert message.headers["tenant"] == "acme"
        assert message.headers["content-type"] == "application/json"
        assert message.headers["ce-type"] == "Order"
        assert message.headers["ce-schemaversion"] == "1"
        assert msgspec.json.decode(message.payload) == {"number": 42, "item": "lamp"}
        assert message.timestamp_ns > 0
    assert message.is_settled
    assert orders.stats().depth == 0


def test_a_batch_takes_objects_and_what_is_asked_for_them(orders: TypedQueue[Order]) -> None:
    """Put(object, ...) asks for one of them; the batch is one."""
    assert orders.put_many([Order(1), Put(Order(2), ttl=3600), Put(Order(3), headers={"a": "b"})]) == range(3)
    batch = orders.receive_many(10, timeout=0)
    assert batch.bodies == [Order(1), Order(2), Order(3)]
    assert batch[2].headers["a"] == "b"
    assert batch[2].headers["ce-type"] == "Order"
    assert [each.body.number for each in batch[1:]] == [2, 3]
    batch.ack()
    assert len(batch) == 3
    assert orders.stats().depth == 0


def test_headers_of_a_batch_are_those_of_each_message(orders: TypedQueue[Order]) -> None:
    """A Put adds its own, which win; what says how to read the payload stays."""
    orders.put_many([Order(1), Put(Order(2), headers={"tenant": "b", "trace": "7"})], headers={"tenant": "a"})
    batch = orders.receive_many(10, timeout=0)
    own = [{k: v for k, v in each.headers.items() if k in ("tenant", "trace")} for each in batch]
    assert own == [{"tenant": "a"}, {"tenant": "b", "trace": "7"}]
    assert [each.headers["ce-type"] for each in batch] == ["Order", "Order"]
    batch.ack()


def test_what_may_be_asked_of_bytes_may_be_asked_of_objects(orders: TypedQueue[Order]) -> None:
    """Delay, deduplication, priority and the rest reach the queue below."""
    first = orders.put(Order(1), dedup_id="order-1")
    assert orders.put(Order(1), dedup_id="order-1") == first
    orders.put(Order(2), delay=3600)
    orders.put(Order(3), priority=1, ttl=3600)
    orders.put(Order(4), order_key="a", timeout=1)
    assert [orders.decode(each).number for each in orders.browse("delayed")] == [2]
    assert [orders.decode(each).number for each in orders.peek(10)] == [3, 1, 4]


@pytest.mark.parametrize("wrong", [Refund(1, 2), {"number": 1}, b"bytes", None, "text", 7])
def test_an_object_of_another_type_is_refused_and_nothing_is_written(orders: TypedQueue[Order], wrong: Any) -> None:
    """Neither alone nor in a batch."""
    with pytest.raises(EncodeError, match="Order"):
        orders.put(wrong)
    with pytest.raises(EncodeError, match="Order"):
        orders.put_many([Order(1), wrong])
    assert orders.stats().next_offset == 0


@pytest.mark.parametrize("name", ["content-type", "content-encoding", "ce-type", "ce-schemaversion"])
def test_headers_that_say_how_to_read_are_not_an_applications(orders: TypedQueue[Order], name: str) -> None:
    """They are refused by name, and nothing is written."""
    with pytest.raises(UsageError, match=name):
        orders.put(Order(1), headers={name: "x"})
    with pytest.raises(UsageError, match=name):
        orders.put_many([Put(Order(1), headers={name: "x"})])
    with pytest.raises(UsageError, match=name):
        orders.put_many([Order(1)], headers={name: "x"})
    assert orders.stats().next_offset == 0


def test_what_cannot_be_decoded_is_a_dead_letter_and_the_next_one_comes(orders: TypedQueue[Order]) -> None:
    """It carries its raw bytes and the reason, and its delivery does not count."""
    orders.raw.put(b'{"number": "not a number"}')
    orders.put(Order(2))
    assert orders.receive(timeout=0).body == Order(2)
    (letter,) = orders.dead.list(reason="undecodable")
    assert letter.payload == b'{"number": "not a number"}'
    assert (letter.offset, letter.delivery_count) == (0, 0)
    assert "number" in letter.detail
    assert letter.exception == "holdfast.errors.DecodeError"
    with pytest.raises(DecodeError):
        orders.decode(letter)


def test_an_undecodable_message_has_all_its_deliveries_once_the_program_can_read_it(service: QueueService) -> None:
    """Retried after an update, it comes as if it never had been handed out."""
    old = service.queue("orders", type=Order)
    old.raw.put(b'{"number": 1, "item": 5}')
    with pytest.raises(Empty):
        old.receive(timeout=0)
    service.close()
    with QueueService(service.path, mode="exclusive", catalog=False) as updated:
        new = updated.queue("orders", type=dict)
        assert new.dead.retry(reason="undecodable") == 1
        with new.receive(timeout=0) as message:
            assert message.body == {"number": 1, "item": 5}
            assert message.delivery_count == 1


def test_a_batch_is_without_what_cannot_be_decoded(orders: TypedQueue[Order]) -> None:
    """A batch that has nothing else is passed by."""
    orders.raw.put_many([b"garbage", b"garbage"])
    orders.put_many([Order(1), Order(2)])
    orders.raw.put(b"garbage")
    first = orders.receive_many(2, timeout=0)
    assert first.bodies == [Order(1), Order(2)]
    first.ack()
    with pytest.raises(Empty):
        orders.receive_many(2, timeout=0)
    assert len(orders.dead) == 3
    assert orders.stats().depth == 0


def test_time_that_went_into_undecodable_messages_is_part_of_the_timeout(orders: TypedQueue[Order]) -> None:
    """There is nothing behind them, and the wait ends."""
    orders.raw.put_many([b"garbage"] * 3)
    with pytest.raises(Empty):
        orders.receive(timeout=0.01)
    assert len(orders.dead) == 3


def test_a_message_is_given_back_where_decoding_is_interrupted(orders: TypedQueue[Order]) -> None:
    """Not counted, and at once: its lease is not waited for."""

    class Interrupting:
        name = "interrupting"
        content_type = "application/x-interrupting"

        def encode(self, body: Any) -> bytes:
            return b"x"

        def decode(self, payload: bytes, type: Any) -> Any:
            raise KeyboardInterrupt

    with QueueService(orders.path.parent, mode="exclusive", serializers=[Interrupting()], catalog=False) as other:
        queue = other.queue("interrupted", serializer="interrupting")
        queue.put("anything")
        for take in (lambda: queue.receive(timeout=0), lambda: queue.receive_many(2, timeout=0)):
            with pytest.raises(KeyboardInterrupt):
                take()
            assert queue.stats().in_flight == 0
        assert queue.browse()[0].delivery_count == 0


def test_a_message_that_takes_too_much_memory_counts_as_failed(service: QueueService) -> None:
    """So it is a dead letter in the end, and the next one comes."""

    class Greedy:
        name = "greedy"
        content_type = "application/x-greedy"

        def encode(self, body: str) -> bytes:
            return body.encode()

        def decode(self, payload: bytes, type: Any) -> str:
            if payload == b"huge":
                raise MemoryError
            return payload.decode()

    with QueueService(service.path, mode="exclusive", serializers=[Greedy()], catalog=False) as other:
        queue = other.queue("greedy", serializer="greedy", max_deliveries=2, backoff=[])
        queue.put_many(["huge", "small"])
        for _ in range(2):
            with pytest.raises(MemoryError):
                queue.receive(timeout=0)
        assert queue.receive(timeout=0).body == "small"
        assert [letter.exception for letter in queue.dead.list()] == ["builtins.MemoryError"]


@pytest.mark.parametrize("verb", ["ack", "release", "nack", "extend", "reject"])
def test_verbs_of_a_typed_delivery_are_those_of_the_delivery(orders: TypedQueue[Order], verb: str) -> None:
    """Each does what it does on bytes, and a stale one raises."""
    orders.put(Order(1))
    message = orders.receive(timeout=0)
    getattr(message, verb)(*(["no"] if verb == "reject" else []))
    depth, dead = orders.stats().depth, len(orders.dead)
    assert (depth, dead) == {"ack": (0, 0), "reject": (0, 1)}.get(verb, (1, 0))
    if verb == "extend":
        message.ack()
    with pytest.raises(StaleReceiptError):
        message.ack()


@pytest.mark.parametrize("verb", ["ack", "release", "nack", "extend", "reject"])
def test_verbs_of_a_typed_batch_take_some_or_all(orders: TypedQueue[Order], verb: str) -> None:
    """Some of its deliveries, then the rest; naming one that is settled raises."""
    orders.put_many([Order(1), Order(2), Order(3)])
    batch = orders.receive_many(3, timeout=0)
    call = getattr(batch, verb)
    arguments = {"reject": ["no"], "extend": [60]}.get(verb, [])
    call(*arguments, [batch[0]])
    settled = [each.is_settled for each in batch]
    assert settled == ([False] * 3 if verb == "extend" else [True, False, False])
    call(*arguments)
    if verb == "extend":
        batch.ack()
    assert all(each.is_settled for each in batch)
    with pytest.raises(StaleReceiptError):
        batch.ack([batch[0]])


def test_a_failed_delivery_keeps_its_error_for_the_dead_letter(orders: TypedQueue[Order]) -> None:
    """nack(error=...) says why, as an exception in the block does."""
    orders.put(Order(1))
    for _ in range(5):
        orders.receive(timeout=0).nack(0, error=ValueError("no stock"))
    (letter,) = orders.dead.list()
    assert (letter.reason, letter.detail, letter.exception) == ("exception", "no stock", "builtins.ValueError")


def test_deliveries_of_several_takes_are_acknowledged_in_one_step(orders: TypedQueue[Order]) -> None:
    """Or, where one of them is stale, none of them."""
    orders.put_many([Order(1), Order(2), Order(3)])
    messages = [orders.receive(timeout=0) for _ in range(3)]
    messages[0].ack()
    with pytest.raises(StaleReceiptError):
        orders.ack(messages)
    orders.ack(messages[1:])
    assert orders.stats().depth == 0


def test_pause_and_resume_reach_the_queue_below(orders: TypedQueue[Order]) -> None:
    """A paused queue hands out nothing."""
    orders.put(Order(1))
    orders.pause(reason="audit")
    assert orders.stats().paused == "audit"
    with pytest.raises(Empty):
        orders.receive(timeout=0)
    orders.resume()
    assert orders.receive(timeout=0).body == Order(1)


def test_older_versions_are_cast_up_also_behind_messages_that_were_read_before(service: QueueService) -> None:
    """An upcast that is registered late counts for the messages that come then."""
    queue = service.queue("orders", type=dict, version=2)
    encoded, headers = queue.codec.encode({"number": 1})
    for _ in range(2):
        queue.raw.put(encoded, headers={**headers, "ce-schemaversion": "1"})
    assert queue.receive(timeout=0).body == {"number": 1}

    @queue.upcast(1, 2)
    def add_currency(order: dict[str, Any]) -> dict[str, Any]:
        return {**order, "currency": "EUR"}

    assert queue.receive(timeout=0).body == {"number": 1, "currency": "EUR"}


def test_a_put_is_no_object(service: QueueService) -> None:
    """It would be written as one, delay and all; inside of a batch it is what it says."""
    anything = service.queue("anything")
    with pytest.raises(TypeError, match="belongs into a batch"):
        anything.put(Put("later", delay=60))
    with pytest.raises(TypeError, match="belongs into a batch"), service.transaction() as tx:
        tx.put(anything, Put("later", delay=60))
    assert anything.stats().next_offset == 0


@pytest.mark.parametrize("one", ["abc", b"abc", {"number": 1}])
def test_one_object_is_no_batch(service: QueueService, one: Any) -> None:
    """Its letters or its keys would be put."""
    anything = service.queue("anything")
    with pytest.raises(TypeError, match="put takes one"):
        anything.put_many(one)
    with pytest.raises(TypeError, match="put takes one"), service.transaction() as tx:
        tx.put_many(anything, one)
    assert anything.stats().next_offset == 0


def test_what_takes_longer_to_decode_than_its_lease_is_passed_by_and_counted(tmp_path: Path) -> None:
    """It cannot be parked any more; after as many deliveries as there may be it is a dead letter all the same."""
    clock = FakeClock()

    class Slow:
        name = "slow"
        content_type = "text/x-slow"

        def encode(self, body: bytes) -> bytes:
            return body

        def decode(self, payload: bytes, type: Any) -> bytes:
            clock.advance(20)
            raise ValueError("too late")

    with QueueService(tmp_path / "slow", mode="exclusive", catalog=False, clock=clock, serializers=[Slow()]) as service:
        queue = service.queue("queue", serializer="slow", lease_seconds=10, max_deliveries=2)
        queue.put(b"x")
        with pytest.raises(Empty):
            queue.receive(timeout=0)
        assert [letter.reason for letter in queue.dead.list()] == ["lease_expired"]


def test_a_take_that_is_interrupted_behind_its_decoding_gives_everything_back(
    service: QueueService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What could be decoded too: nobody would have it before its lease is over."""
    numbers = service.queue("numbers", type=int)
    numbers.raw.put_many([b"1", b"no number"])

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(taking, "by_queue", interrupt)
        with pytest.raises(KeyboardInterrupt):
            numbers.receive_many(2, timeout=0)
    assert numbers.stats().in_flight == 0
    assert numbers.receive(timeout=0).delivery_count == 1


def test_a_loop_has_objects_and_finishes_each_by_coming_back_for_the_next(orders: TypedQueue[Order]) -> None:
    """What cannot be decoded is a dead letter; what the loop is left with has failed, and the rest goes back."""
    orders.put(Order(1))
    orders.raw.put(b"no order")
    orders.put_many([Order(2), Order(3)])
    assert [each.body for each in orders.consume(timeout=0)] == [Order(1), Order(2), Order(3)]
    assert (len(orders.dead.list(reason="undecodable")), orders.qsize()) == (1, 0)
    orders.put_many([Order(4), Order(5), Order(6)])
    for each in orders.consume(timeout=0):
        if each.body == Order(5):
            break
    del each
    left = [orders.receive(timeout=0) for _ in range(2)]
    assert [(each.body, each.delivery_count) for each in left] == [(Order(5), 2), (Order(6), 1)]
    with pytest.raises(ValueError, match="at least 1"):
        orders.consume(prefetch=0)


def test_a_loop_that_is_interrupted_while_it_decodes_gives_the_message_back(
    orders: TypedQueue[Order], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uncounted: it was never handed out."""
    orders.put(Order(1))

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(orders, "decode_delivery", interrupt)
        with pytest.raises(KeyboardInterrupt):
            next(orders.consume(timeout=0))
    assert orders.receive(timeout=0).delivery_count == 1


def test_objects_are_read_without_a_group_and_read_again_with_one(orders: TypedQueue[Order]) -> None:
    """As bytes, which decode; the groups of the queue are at hand."""
    orders.groups.create("audit", -1)
    orders.put_many([Order(1), Order(2), Order(3)])
    orders.receive_many(3, timeout=0).ack()
    assert [orders.decode(each).number for each in orders.read(1)] == [2, 3]
    assert [orders.decode(each).number for each in orders.read(-1, follow=True, timeout=0)] == [3]
    orders.groups.seek("default", 2)
    assert [each.body.number for each in orders.receive_many(3, timeout=0)] == [3]
