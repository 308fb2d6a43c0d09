"""What a put can ask for, where it cannot be had: one clear line, and nothing is written, not even of a batch."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from unittest import mock

import pytest

from holdfast import PersistentQueue, Put, RecordTooLargeError, UsageError
from holdfast.queue.client.shared_engine import SharedEngine
from support.builders.clocks import FakeClock
from support.builders.takes import taken
from support.builders.transactions import open_queue
from support.owners.machine_link import machine_links
from support.storages.simulated_storage import SimulatedStorage

BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"delay": -1}, UsageError, "delay"),
    ({"delay": float("nan")}, UsageError, "delay"),
    ({"delay": float("inf")}, UsageError, "delay"),
    ({"delay": timedelta(seconds=-1)}, UsageError, "delay"),
    ({"delay": "5"}, TypeError, "delay"),
    ({"delay": True}, TypeError, "delay"),
    ({"delay": datetime(2030, 1, 1)}, TypeError, "delay"),
    ({"delay": 1, "not_before": 5}, UsageError, "not_before"),
    ({"not_before": datetime(2030, 1, 1)}, UsageError, "time zone"),
    ({"not_before": datetime.fromisoformat("1969-12-31T00:00:00+00:00")}, UsageError, "not_before"),
    ({"not_before": -5}, UsageError, "not_before"),
    ({"not_before": float("nan")}, UsageError, "not_before"),
    ({"not_before": timedelta(seconds=5)}, TypeError, "not_before"),
    ({"not_before": "2030-01-01"}, TypeError, "not_before"),
    ({"priority": -1}, UsageError, "priority"),
    ({"priority": 10}, UsageError, "priority"),
    ({"priority": 1.0}, UsageError, "priority"),
    ({"priority": True}, UsageError, "priority"),
    ({"priority": "high"}, UsageError, "priority"),
    ({"priority": 1, "order_key": "a"}, UsageError, "order_key"),
    ({"ttl": 0}, UsageError, "ttl"),
    ({"ttl": -5}, UsageError, "ttl"),
    ({"ttl": 1e-12}, UsageError, "ttl"),
    ({"ttl": float("nan")}, UsageError, "ttl"),
    ({"ttl": float("inf")}, UsageError, "ttl"),
    ({"ttl": "5"}, TypeError, "ttl"),
    ({"order_key": ""}, UsageError, "order_key"),
    ({"order_key": "k" * 256}, UsageError, "order_key"),
    ({"order_key": "ü" * 128}, UsageError, "order_key"),
    ({"order_key": "\ud800"}, UsageError, "order_key"),
    ({"order_key": b"bytes"}, TypeError, "order_key"),
    ({"order_key": 5}, TypeError, "order_key"),
    ({"ttl": 5, "headers": {"name": "x" * 65520}}, RecordTooLargeError, "headers"),
]
Call = Callable[[PersistentQueue, dict[str, Any]], object]


def by_put(queue: PersistentQueue, options: dict[str, Any]) -> object:
    """One message."""
    return queue.put(b"bad", **options)


def by_put_many(queue: PersistentQueue, options: dict[str, Any]) -> object:
    """The last one of a batch."""
    return queue.put_many([b"good", Put(b"good", delay=5), Put(b"bad", **options)])


def by_transaction(queue: PersistentQueue, options: dict[str, Any]) -> object:
    """A transaction that ends with the exception."""
    with queue.transaction() as tx:
        tx.put(b"good")
        tx.put_many([b"good", Put(b"bad", **options)])
    return tx


@pytest.mark.parametrize("put", [by_put, by_put_many, by_transaction])
@pytest.mark.parametrize(("options", "kind", "says"), BAD, ids=lambda value: str(value)[:40])
def test_a_value_that_cannot_work_is_refused_in_one_line(
    storage: SimulatedStorage, put: Call, options: dict[str, Any], kind: type[Exception], says: str
) -> None:
    """It names the argument; nothing is there, and the next put gets the offset."""
    with open_queue(storage, clock=FakeClock()) as queue:
        queue.put(b"first")
        size = len(storage.log)
        with pytest.raises(kind, match=says) as caught:
            put(queue, options)
        assert "\n" not in str(caught.value)
        assert len(storage.log) == size or put is by_transaction
        assert queue.put(b"second") == 1
        assert taken(queue) == [b"first", b"second"]


@pytest.mark.parametrize("put", [by_put, by_put_many])
def test_a_bad_value_is_refused_before_the_owner_is_asked(storage: SimulatedStorage, put: Call) -> None:
    """Who puts through an owner hears of it at once."""
    with machine_links(), open_queue(storage, mode="shared") as queue:
        engine = queue._engine
        assert isinstance(engine, SharedEngine)
        before = storage.tree()
        with (
            mock.patch.object(engine.membership, "ask", side_effect=AssertionError("it asks")),
            pytest.raises(UsageError, match="priority"),
        ):
            put(queue, {"priority": 10})
        assert storage.tree() == before


def test_a_put_inside_of_a_put_is_refused(storage: SimulatedStorage) -> None:
    """``put`` takes a payload, ``put_many`` several of those or ``Put``."""
    with open_queue(storage) as queue:
        for call in (lambda: queue.put(Put(b"x")), lambda: queue.put_many([Put(Put(b"x"))])):  # type: ignore[arg-type]
            with pytest.raises(TypeError):
                call()
        with pytest.raises(TypeError):
            queue.put_many([Put("text")])  # type: ignore[arg-type]
        assert queue.stats().next_offset == 0


@pytest.mark.parametrize("key", ["k", "k" * 255, "ü" * 127, "\0", "a b\n"])
def test_keys_of_every_permitted_length_work(storage: SimulatedStorage, key: str) -> None:
    """They come back as they were put."""
    with open_queue(storage) as queue:
        queue.put(b"one", order_key=key, headers={"a": "b"})
        (message,) = queue.browse()
        assert (message.order_key, dict(message.headers)) == (key, {"a": "b"})
        assert queue.receive(timeout=0).headers == {"a": "b"}


def test_options_do_not_show_among_the_headers(storage: SimulatedStorage) -> None:
    """They stand in front of them in the record, and are nobody's headers."""
    with open_queue(storage, clock=FakeClock()) as queue:
        queue.put(b"one", priority=3, ttl=60, headers={"a": "b"})
        queue.put(b"two", delay=0, ttl=60, order_key="k")
        assert [dict(message.headers) for message in queue.peek(2)] == [{"a": "b"}, {}]
        assert [dict(queue.receive(timeout=0).headers) for _ in range(2)] == [{"a": "b"}, {}]


def test_all_of_a_put_arrives(storage: SimulatedStorage) -> None:
    """Of ``put``, of ``put_many``, of both verbs of a transaction, and of a prepared one."""
    clock = FakeClock()
    wanted: dict[str, Any] = {"delay": 30, "ttl": 90, "order_key": "k", "headers": {"a": "b"}}
    with open_queue(storage, clock=clock) as queue:
        queue.put(b"m", **wanted)
        queue.put_many([Put(b"m", **wanted)])
        with queue.transaction() as tx:
            tx.put(Put(b"m", **wanted))
            tx.put_many([Put(b"m", **wanted)])
        tx = queue.begin()
        tx.put_many([Put(b"m", **wanted)])
        tx.prepare("p")
        tx.commit()
        found = queue.browse("delayed")
        assert len(found) == 5
        assert {(each.order_key, each.until_ns, each.headers["a"]) for each in found} == {
            ("k", clock.time_ns() + 30 * 10**9, "b")
        }
        clock.advance(90)
        assert taken(queue) == []
        assert queue.stats().dropped == 5
