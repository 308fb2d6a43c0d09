"""How consumers end whose queues were shut down: with nothing left behind that can become ready, or saying so."""

import asyncio
import logging
import threading
from pathlib import Path

import pytest

from holdfast import AsyncQueueService, Empty, Put, QueueService, Retry, ShutDown
from support.processes.loops import in_a_loop
from support.processes.threads import Threads, wait_until
from support.service.consumers import SECONDS

LEFT = "orders: the queue was shut down with 2 messages left: 2 delayed; they stay, open the queue again to take them"


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what was logged as a warning of what is left."""
    messages = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    return [message for message in messages if " left" in message]


@pytest.mark.parametrize("concurrency", [1, 4])
def test_run_handles_what_fails_meanwhile(service: QueueService, concurrency: int) -> None:
    """Each message fails once and waits behind that, others of its order key behind it: all of them are handled."""
    orders = service.queue("orders", type=int)
    failed: set[int] = set()

    @service.consumer("orders", concurrency=concurrency)
    def handle(order: int) -> None:
        if order not in failed:
            failed.add(order)
            raise Retry(0.1)

    orders.put_many([Put(number, order_key=f"key {number % 10}" if number % 2 else None) for number in range(50)])
    orders.raw.shutdown()
    service.run()
    assert len(failed) == 50
    assert orders.stats().depth == 0


def test_a_thread_with_nothing_to_do_takes_what_a_long_handler_gives_back(service: QueueService) -> None:
    """It waits for it, though the queue was empty when it was shut down."""
    orders = service.queue("orders", type=int)
    threads_seen = []
    begun, go_on = threading.Event(), threading.Event()

    @service.consumer("orders", concurrency=2)
    def handle(order: int) -> None:
        threads_seen.append(threading.current_thread().name)
        if len(threads_seen) == 1:
            begun.set()
            go_on.wait(SECONDS)
            raise Retry(0)

    orders.put(1)
    threads = Threads()
    threads.start(service.run)
    assert begun.wait(SECONDS)
    orders.raw.shutdown()
    go_on.set()
    threads.join()
    assert len(threads_seen) == 2
    assert orders.stats().depth == 0


def test_run_logs_how_many_messages_stay(service: QueueService, caplog: pytest.LogCaptureFixture) -> None:
    """Those that are delayed for longer than it waits; whoever runs it hears of it before it returns."""
    orders = service.queue("orders", type=int)
    handled = []
    service.consumer("orders")(handled.append)
    orders.put_many([Put(1, delay=3600), Put(2, delay=3600), 3])
    orders.raw.shutdown()
    service.run()
    assert handled == [3]
    assert warnings_in(caplog) == [LEFT]
    assert orders.stats().depth == 2


def test_consume_many_logs_how_many_messages_stay(service: QueueService, caplog: pytest.LogCaptureFixture) -> None:
    """The loop itself ends without an error."""
    orders = service.queue("orders", type=int)
    orders.put_many([Put(1, delay=3600), Put(2, delay=3600), 3])
    orders.raw.shutdown()
    assert [batch.bodies for batch in orders.consume_many(10, max_wait=0)] == [[3]]
    assert warnings_in(caplog) == [LEFT]


def test_stop_ends_a_drain_within_its_grace(service: QueueService, caplog: pytest.LogCaptureFixture) -> None:
    """It is no drain: nothing more is waited for, and nothing is said of what is left."""
    orders = service.queue("orders", type=int)
    failed = threading.Event()

    @service.consumer("orders", concurrency=2)
    def handle(order: int) -> None:
        failed.set()
        raise Retry(3600)

    orders.put(1)
    orders.raw.shutdown(timeout=None)
    threads = Threads()
    threads.start(service.run)
    assert failed.wait(SECONDS)
    wait_until(lambda: orders.stats().delayed == 1)
    service.stop()
    threads.join()
    assert not warnings_in(caplog)
    assert orders.stats().depth == 1


@in_a_loop
async def test_tasks_wait_for_what_other_tasks_have_in_hand(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As threads do: they are given what comes back, and end together once nothing is left to wait for."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        orders = await service.queue("orders", type=int)
        await orders.put_many([7, Put(8, delay=3600), Put(9, delay=3600)])
        held = await orders.receive()
        orders.sync.raw.shutdown()
        with pytest.raises(Empty):
            await orders.receive(timeout=0.01)
        takes = [asyncio.create_task(orders.receive()) for _ in range(2)]
        await held.nack(delay=0)
        done, left = await asyncio.wait(takes, return_when=asyncio.FIRST_COMPLETED)
        again = done.pop().result()
        assert again.body == 7
        await again.ack()
        with pytest.raises(ShutDown) as caught:
            await left.pop()
        assert caught.value.left == {"delayed": 2}
        assert [batch async for batch in orders.consume_many(10)] == []
        assert warnings_in(caplog) == [LEFT]


@in_a_loop
async def test_run_of_tasks_handles_what_fails_meanwhile_and_logs_what_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Handlers that are async and handlers that are not."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        failed: dict[str, set[int]] = {"orders": set(), "others": set()}

        def fail_once(name: str, number: int) -> None:
            if number not in failed[name]:
                failed[name].add(number)
                raise Retry(0.1)

        @service.consumer("orders", concurrency=2)
        async def handle(number: int) -> None:
            fail_once("orders", number)

        @service.consumer("others", concurrency=2)
        def handle_others(number: int) -> None:
            fail_once("others", number)

        for name in failed:
            queue = await service.queue(name, type=int)
            await queue.put_many([*range(10), Put(10, delay=3600), Put(11, delay=3600)])
            queue.sync.raw.shutdown()
        await service.run()
        for name, numbers in failed.items():
            assert numbers == set(range(10))
            assert (await (await service.queue(name, type=int)).stats()).depth == 2
        assert sorted(warnings_in(caplog)) == [LEFT, LEFT.replace("orders", "others")]
