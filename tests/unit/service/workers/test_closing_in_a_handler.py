"""A handler that closes its service waits for nobody: it continues, its message is done, and run() closes then."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from holdfast import ClosedError
from holdfast.service.aio.async_service import AsyncQueueService
from holdfast.service.queue_service import QueueService
from support.processes.loops import in_a_loop
from support.processes.threads import Threads
from support.service.consumers import SECONDS, running

GRACE_SECONDS = 600.0
"""Longer than a test may take: whoever waits for it fails."""


def left_in(path: Path) -> list[tuple[int, int]]:
    """Return what is left of the messages, and how often each was handed out, the next time included."""
    with QueueService(path, mode="exclusive", catalog=False) as service:
        queue = service.queue("orders", type=int)
        taken = [queue.receive(timeout=SECONDS) for _ in range(queue.stats().depth)]
        return [(each.body, each.delivery_count) for each in taken]


def assert_once(handled: list[int], left: list[tuple[int, int]], count: int) -> None:
    """What was handled is not left, the message of the handler that closed is not, and nothing was counted in vain."""
    assert handled[:2] == [0, 1]
    assert [*handled, *(order for order, _ in left)] == list(range(count))
    assert {delivery_count for _, delivery_count in left} <= {1}


def test_a_handler_closes_its_service(tmp_path: Path) -> None:
    """Its message is finished; those behind it are as if they had never been handed out."""
    service = QueueService(tmp_path, mode="exclusive", catalog=False)
    handled: list[int] = []

    @service.consumer("orders")
    def handle(order: int) -> None:
        if order == 1:
            service.close()
            service.close()
            orders.put(4)  # the queue is open for as long as handlers run
        handled.append(order)

    orders = service.queue("orders", type=int)
    orders.put_many([0, 1, 2, 3])
    service.run(grace_seconds=GRACE_SECONDS)
    with pytest.raises(ClosedError):
        service.queue("orders", type=int)
    assert_once(handled, left_in(tmp_path), 5)


def test_handlers_beside_the_one_that_closes_are_waited_for(tmp_path: Path) -> None:
    """They have their grace; only then is anything closed."""
    service = QueueService(tmp_path, mode="exclusive", catalog=False)
    both, closed = threading.Barrier(2), threading.Event()

    @service.consumer("orders", concurrency=2)
    def handle(order: int) -> None:
        both.wait(SECONDS)
        if order == 0:
            service.close()
            closed.set()
        else:
            assert closed.wait(SECONDS)
            service.queue("others", type=int).put(order)

    service.queue("orders", type=int).put_many([0, 1])
    service.run(grace_seconds=GRACE_SECONDS)
    assert left_in(tmp_path) == []
    with QueueService(tmp_path, mode="exclusive", catalog=False) as again:
        assert again.queue("others", type=int).receive(timeout=0).body == 1


def test_a_thread_that_a_handler_has_not_started_waits_for_it_still(tmp_path: Path) -> None:
    """When close() has returned there, everything is closed."""
    service = QueueService(tmp_path, mode="exclusive", catalog=False)
    threads, begun, go_on = Threads(), threading.Event(), threading.Event()
    closed = threading.Event()

    @service.consumer("orders")
    def handle(_: int) -> None:
        begun.set()
        assert go_on.wait(SECONDS)

    service.queue("orders", type=int).put(0)
    with running(service, grace_seconds=GRACE_SECONDS):
        assert begun.wait(SECONDS)
        threads.start(lambda: (service.close(), closed.set()))
        assert not closed.wait(0.1)
        go_on.set()
        threads.join()
        assert closed.is_set()
    assert left_in(tmp_path) == []


def test_a_handler_that_outlived_run_closes_by_itself(tmp_path: Path) -> None:
    """There is nobody any more who would do it in its place."""
    service = QueueService(tmp_path, mode="exclusive", catalog=False)
    begun, go_on, closed = threading.Event(), threading.Event(), threading.Event()

    @service.consumer("orders")
    def handle(_: int) -> None:
        begun.set()
        assert go_on.wait(SECONDS)
        service.close()
        closed.set()

    orders = service.queue("orders", type=int)
    orders.put(0)
    with running(service, grace_seconds=0):
        assert begun.wait(SECONDS)
    go_on.set()
    assert closed.wait(SECONDS)
    with pytest.raises(ClosedError):
        orders.put(1)
    assert left_in(tmp_path) == [(0, 1)]


@in_a_loop
async def test_an_async_handler_closes_its_service(tmp_path: Path) -> None:
    """As in threads; so does a task that it has started."""
    service = AsyncQueueService(tmp_path, mode="exclusive", catalog=False)
    handled: list[int] = []

    @service.consumer("orders")
    async def handle(order: int) -> None:
        if order == 1:
            await service.close()
            await asyncio.create_task(service.close())
        handled.append(order)

    orders = await service.queue("orders", type=int)
    await orders.put_many([0, 1, 2])
    await service.run(grace_seconds=GRACE_SECONDS)
    with pytest.raises(ClosedError):
        await service.queue("orders", type=int)
    assert_once(handled, left_in(tmp_path), 3)


@in_a_loop
async def test_a_handler_in_a_thread_closes_an_async_service(tmp_path: Path) -> None:
    """In its loop, and waits there for no more than it has to."""
    service = AsyncQueueService(tmp_path, mode="exclusive", catalog=False)
    loop = asyncio.get_running_loop()
    handled: list[int] = []

    @service.consumer("orders")
    def handle(order: int) -> None:
        asyncio.run_coroutine_threadsafe(service.close(), loop).result(SECONDS)
        handled.append(order)

    await (await service.queue("orders", type=int)).put(0)
    await service.run(grace_seconds=GRACE_SECONDS)
    assert handled == [0]
    with pytest.raises(ClosedError):
        await service.queue("orders", type=int)
    assert left_in(tmp_path) == []
