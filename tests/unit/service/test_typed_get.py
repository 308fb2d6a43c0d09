"""``get``, iteration, ``qsize`` and ``purge`` of a typed queue, for threads and for tasks."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import msgspec
import pytest

from holdfast import AsyncQueueService, Empty, QueueService
from support.processes.loops import in_a_loop


class Order(msgspec.Struct):
    """An object."""

    number: int


def test_get_returns_an_object_that_is_acknowledged(tmp_path: Path) -> None:
    """A restart does not bring it back."""
    with QueueService(tmp_path, mode="exclusive", catalog=False) as service:
        orders = service.queue("orders", type=Order)
        orders.put_many([Order(1), Order(2)])
        assert (orders.get(), orders.qsize()) == (Order(1), 1)
    with QueueService(tmp_path, mode="exclusive", catalog=False) as service:
        orders = service.queue("orders", type=Order)
        assert orders.get(timeout=0) == Order(2)
        with pytest.raises(Empty):
            orders.get(block=False)


def test_get_skips_what_cannot_be_decoded(tmp_path: Path) -> None:
    """It has become a dead letter."""
    with QueueService(tmp_path, mode="exclusive", catalog=False) as service:
        orders = service.queue("orders", type=Order)
        orders.raw.put(b"no order")
        orders.put(Order(1))
        assert orders.get(timeout=0) == Order(1)
        assert [letter.reason for letter in orders.dead.list()] == ["undecodable"]


def test_a_loop_over_a_queue_yields_objects_until_it_is_shut_down(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each is acknowledged before it is yielded; what is left is in the log."""
    with QueueService(tmp_path, mode="exclusive", catalog=False) as service:
        orders = service.queue("orders", type=Order)
        orders.put_many([Order(1), Order(2)])
        orders.put(Order(3), delay=3600)
        orders.raw.shutdown()
        with caplog.at_level(logging.WARNING, "holdfast"):
            assert list(orders) == [Order(1), Order(2)]
        assert "1 message left: 1 delayed" in caplog.text


def test_purge_leaves_nothing_that_is_ready(tmp_path: Path) -> None:
    """And returns how many it were."""
    with QueueService(tmp_path, mode="exclusive", catalog=False) as service:
        orders = service.queue("orders", type=Order)
        orders.put_many([Order(1), Order(2)])
        assert (orders.purge(), orders.qsize()) == (2, 0)


@in_a_loop
async def test_tasks_have_the_same(tmp_path: Path) -> None:
    """Awaited."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        orders = await service.queue("orders", type=Order)
        await orders.put_many([Order(number) for number in range(5)])
        assert (await orders.get(), await orders.qsize()) == (Order(0), 4)
        async for order in orders:
            assert order == Order(1)
            break
        assert await orders.purge() == 3
        with pytest.raises(Empty):
            await orders.get(timeout=0)
        await orders.put(Order(9))
        await asyncio.to_thread(orders.sync.raw.shutdown)
        assert [order async for order in orders] == [Order(9)]
