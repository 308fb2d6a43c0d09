"""A service whose threads cannot be started: it does without them, or says so, and continues once there are some."""

from __future__ import annotations

import asyncio
import gc
import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast import ClosedError, RetryableError
from holdfast.service.aio.async_service import AsyncQueueService
from holdfast.service.aio.async_threads import Threads
from holdfast.service.aio.thread_pool import ThreadPool
from holdfast.service.queue_service import QueueService
from support.processes.loops import in_a_loop, until
from support.processes.thread_starts import StartFaults, no_threads, starting
from support.processes.threads import wait_until
from support.service.consumers import running


@in_a_loop
async def test_a_task_that_cannot_wait_for_messages_is_told_and_the_next_one_waits(tmp_path: Path) -> None:
    """Within its time; and closing waits for no thread that there is not."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await service.queue("numbers", type=int)
        with no_threads("holdfast-takes"):
            for _ in range(2):
                with pytest.raises(RetryableError, match="waiting for messages of 'numbers'"):
                    await numbers.receive(timeout=5)
        await numbers.put(7)
        assert (await numbers.receive(timeout=5)).body == 7
        others = await service.queue("others", type=int)
        with no_threads("holdfast-takes"), pytest.raises(RetryableError):
            await others.receive(timeout=5)


@in_a_loop
async def test_calls_are_made_by_the_threads_that_there_are(tmp_path: Path) -> None:
    """One is enough; none is refused because a second one cannot be started."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await service.queue("numbers", type=int)
        with starting(StartFaults(2, prefix="holdfast-asyncio")) as faults:
            await asyncio.gather(*(numbers.put(number) for number in range(20)))
        assert faults.failed
        assert (await numbers.stats()).depth == 20


@in_a_loop
async def test_a_call_that_no_thread_can_make_is_refused_and_never_made(tmp_path: Path) -> None:
    """Else a put that has failed would be there later on."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        with no_threads("holdfast-asyncio"), pytest.raises(RetryableError, match="nothing was done"):
            await service.queue("numbers", type=int)
        numbers = await service.queue("numbers", type=int)
        with no_threads("holdfast-asyncio"), pytest.raises(RetryableError, match="nothing was done"):
            await numbers.put(1)
        assert await numbers.put(2) == 0
        assert (await numbers.receive(timeout=5)).body == 2


@in_a_loop
async def test_a_service_is_closed_without_a_thread(tmp_path: Path) -> None:
    """By the loop itself, which waits for it."""
    service = AsyncQueueService(tmp_path, mode="exclusive")
    numbers = await service.queue("numbers", type=int)
    await numbers.put(1)
    with no_threads("holdfast-asyncio-close"):
        await service.close()
    with QueueService(tmp_path, mode="exclusive", catalog=False) as again:
        assert again.queue("numbers", type=int).stats().depth == 1


@in_a_loop
async def test_what_nobody_waits_for_is_done_at_once_without_a_thread() -> None:
    """A message that a cancelled task has taken is given back."""
    threads, done = Threads("data"), threading.Event()
    with no_threads("holdfast-asyncio"):
        threads.start(done.set)
    assert done.is_set()
    threads.close()


@in_a_loop
async def test_consumers_that_are_not_async_are_not_run_without_a_thread(tmp_path: Path) -> None:
    """It is said, and they run once there is one."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        handled: list[int] = []

        @service.consumer("numbers")
        def handle(number: int) -> None:
            handled.append(number)
            service.stop()

        numbers = await service.queue("numbers", type=int)
        await numbers.put(1)
        with no_threads("holdfast-asyncio-workers"), pytest.raises(RetryableError):
            await service.run()
        await service.run()
        assert handled == [1]


@in_a_loop
async def test_an_async_consumer_whose_acknowledgements_have_no_thread_makes_them_itself(tmp_path: Path) -> None:
    """In the event loop, which waits for the disk."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        handled: list[int] = []

        @service.consumer("numbers")
        async def handle(number: int) -> None:
            handled.append(number)

        numbers = await service.queue("numbers", type=int)
        await numbers.put_many([1, 2])
        with no_threads("holdfast-numbers-settler"):
            run = asyncio.create_task(service.run())
            await until(lambda: handled == [1, 2] and numbers.sync.stats().depth == 0)
            service.stop()
            await run


@in_a_loop
async def test_the_error_of_a_call_whose_task_was_cancelled_is_nobodys_to_retrieve() -> None:
    """It is expected: the transaction that the task has left is over. asyncio says nothing of an overlooked error."""
    said: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))
    threads, begun, go_on, over = Threads("data"), threading.Event(), threading.Event(), threading.Event()

    def late() -> None:
        begun.set()
        assert go_on.wait(30)
        over.set()
        raise ClosedError("too late")

    task = asyncio.create_task(threads.run(late))
    await until(begun.is_set)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    del task
    go_on.set()
    await until(over.is_set)
    threads.close()
    for _ in range(3):
        await asyncio.sleep(0.01)
        gc.collect()
    assert said == []


def test_handlers_run_in_as_many_threads_as_can_be_started(service: QueueService) -> None:
    """The log says how many are missing; all messages are handled."""
    handled: list[int] = []
    numbers = service.queue("numbers", type=int)
    numbers.put_many(range(20))

    @service.consumer("numbers", concurrency=3)
    def handle(number: int) -> None:
        handled.append(number)

    faults = StartFaults(2, prefix="holdfast-numbers-")  # the first is that of acknowledgements
    with starting(faults), pytest.raises(RetryableError, match="handling messages of 'numbers'"):
        service.run()
    assert len(faults.failed) == 3
    with starting(StartFaults(3, prefix="holdfast-numbers-")), running(service):
        wait_until(lambda: numbers.stats().depth == 0)
    assert sorted(handled) == list(range(20))


def test_handlers_acknowledge_themselves_without_a_thread_for_it(service: QueueService) -> None:
    """A message a step."""
    numbers = service.queue("numbers", type=int)
    numbers.put_many(range(5))
    service.consumer("numbers")(lambda _: None)
    with no_threads("holdfast-numbers-settler"), running(service):
        wait_until(lambda: numbers.stats().depth == 0)


@pytest.mark.extra("catalog")
def test_the_catalogue_is_written_at_the_end_without_a_thread(tmp_path: Path) -> None:
    """The queue is open and works; closing joins nothing that was never started."""
    with no_threads("holdfast-catalog"):
        with QueueService(tmp_path, mode="exclusive") as service:
            service.queue("numbers", type=int).put(1)
        assert (tmp_path / "catalog.db").exists()


def test_a_pool_that_is_closed_takes_no_more_calls() -> None:
    """What stands in line is done before."""
    pool = ThreadPool("holdfast-test", 2)
    go_on = threading.Event()
    results = [pool.submit(lambda: go_on.wait(30)) for _ in range(2)]
    results += [pool.submit(lambda: True) for _ in range(3)]
    dropped = pool.submit(lambda: pytest.fail("it was cancelled in line"))
    assert dropped.cancel()
    go_on.set()
    pool.close()
    assert all(each.result(0) for each in results)
    with pytest.raises(ClosedError):
        pool.submit(print)


def test_a_pool_starts_no_more_threads_than_there_is_work_for() -> None:
    """One that is idle takes the next call."""
    with starting(StartFaults(0, prefix="holdfast-test", forever=False)) as faults:
        pool = ThreadPool("holdfast-test", 16)
        for _ in range(10):
            pool.submit(lambda: None).result(30)
            wait_until(lambda: len(pool._idle) > 0)
        pool.close()
    assert len(faults.tried) == 1
