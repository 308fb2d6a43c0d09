"""Consumers of a service for asyncio: handlers in tasks, and in threads; how they fail, and how they stop."""

import asyncio
import gc
import logging
import os
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast import ClosedError, ConfigError, LeaseExpiredError, UsageError
from holdfast.errors import StorageError
from holdfast.queue.dispatch.delivery import Delivery
from holdfast.service.aio import async_engine, async_workers
from holdfast.service.aio.async_delivery import AsyncDelivery
from holdfast.service.aio.async_service import AsyncQueueService
from holdfast.service.workers import settle_failed
from holdfast.service.workers.handler_errors import Reject, Retry
from holdfast.service.workers.settler import Settler
from support.builders.handles import handle_of
from support.processes.loops import in_a_loop, turns, until
from support.processes.threads import wait_until


@asynccontextmanager
async def running(service: AsyncQueueService, **options: Any) -> AsyncIterator["asyncio.Task[None]"]:
    """Run the consumers while the block lasts."""
    task = asyncio.create_task(service.run(**options))
    try:
        yield task
    finally:
        service.stop()
        await task


@in_a_loop
async def test_handlers_run_at_the_same_time_and_acknowledge(tmp_path: Path) -> None:
    """As many as ``concurrency`` says: each waits here until all have begun."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await service.queue("numbers", type=int)
        handled: list[int] = []
        all_there = asyncio.Event()

        @service.consumer("numbers", concurrency=4)
        async def handle(number: int) -> None:
            handled.append(number)
            if len(handled) == 4:
                all_there.set()
            await all_there.wait()

        async with running(service):
            await numbers.put_many(range(3))
            await until(lambda: len(handled) == 3)
            assert (await numbers.stats()).depth == 3
            await numbers.put_many(range(3, 20))
            await until(lambda: numbers.sync.stats().depth == 0)
        assert sorted(handled) == list(range(20))


@in_a_loop
async def test_what_a_handler_raises_decides_on_its_message(tmp_path: Path) -> None:
    """Retried with the consumer's own back-off, at once, or a dead letter; whatever it raises, the others go on."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await service.queue("numbers", type=int, max_deliveries=2)
        seen: list[tuple[int, int]] = []

        @service.consumer(numbers, retry=[])
        async def handle(number: int, delivery: AsyncDelivery[int]) -> None:
            seen.append((number, delivery.delivery_count))
            match number:
                case 1:
                    raise ValueError("bad")
                case 2:
                    raise Reject("no use")
                case 3:
                    raise Retry(delay=0)
                case 4:
                    raise SystemExit
                case 5:
                    raise asyncio.CancelledError  # of some work of its own: nobody has cancelled the handler
                case 6:
                    await delivery.ack()

        async with running(service):
            await numbers.put_many(range(1, 7))
            await until(lambda: numbers.sync.stats().depth == 0)
        letters = {numbers.decode(letter): letter for letter in await numbers.dead.list()}
        assert {number: letter.reason for number, letter in letters.items()} == {
            1: "exception",
            2: "rejected",
            3: "max_deliveries",
            4: "exception",
            5: "exception",
        }
        assert letters[2].detail == "no use"
        assert 'raise ValueError("bad")' in letters[1].traceback
        assert sorted(seen) == [(1, 1), (1, 2), (2, 1), (3, 1), (3, 2), (4, 1), (4, 2), (5, 1), (5, 2), (6, 1)]


@in_a_loop
async def test_a_handler_that_awaits_only_half_of_its_work_has_failed(tmp_path: Path) -> None:
    """One whose `await` is missing, or that a decorator has made a function of."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await service.queue("numbers", type=int, max_deliveries=1)
        others = await service.queue("others", type=int, max_deliveries=1)

        async def work(number: int) -> None:
            raise AssertionError

        @service.consumer(numbers)
        async def handle(number: int) -> object:
            return work(number)

        @service.consumer(others)
        def handle_others(number: int) -> object:
            return work(number)

        for queue in (numbers, others):
            await queue.put(1)
            queue.sync.raw.shutdown()
        await service.run()
        for queue in (numbers, others):
            (letter,) = await queue.dead.list()
            assert letter.detail.startswith("the handler returned before its work was done (coroutine): await it")


@in_a_loop
async def test_the_type_of_a_queue_is_that_of_the_handler(tmp_path: Path) -> None:
    """Where neither the consumer nor the queue says one."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        seen: list[set[int]] = []

        @service.consumer("sets")
        async def handle(numbers: set[int]) -> None:
            seen.append(numbers)

        async with running(service):
            await until(lambda: "sets" in service.queues)
            await service.queues["sets"].put({1, 2})
            await until(lambda: seen == [{1, 2}])


@in_a_loop
async def test_a_handler_that_is_not_async_runs_in_a_thread(tmp_path: Path) -> None:
    """It may wait without the event loop waiting too; both kinds start and stop together."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        go_on, done = threading.Event(), asyncio.Event()
        threads: list[bool] = []

        @service.consumer("slow", concurrency=2)
        def handle_slowly(number: int, delivery: Delivery[int]) -> None:
            threads.append(threading.current_thread() is threading.main_thread())
            assert go_on.wait(30)

        @service.consumer("quick")
        async def handle_quickly(number: int) -> None:
            done.set()

        async with running(service):
            slow, quick = await service.queue("slow", type=int), await service.queue("quick", type=int)
            await slow.put_many([1, 2])
            await until(lambda: len(threads) == 2)
            await quick.put(1)
            await done.wait()
            go_on.set()
            await until(lambda: slow.sync.stats().depth == 0)
        assert threads == [False, False]


@in_a_loop
async def test_stop_takes_nothing_more_and_lets_handlers_finish(tmp_path: Path) -> None:
    """Within the grace; what waits stays, uncounted."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await service.queue("numbers", type=int)
        begun, go_on = asyncio.Event(), asyncio.Event()

        @service.consumer("numbers")
        async def handle(number: int) -> None:
            begun.set()
            await go_on.wait()

        async with running(service) as run:
            await numbers.put_many([1, 2])
            await begun.wait()
            service.stop()
            await turns()
            assert not run.done()
            go_on.set()
        batch = await numbers.receive_many(5, timeout=0)
        assert [(each.body, each.delivery_count) for each in batch] == [(2, 1)]


@in_a_loop
async def test_a_handler_whose_grace_is_over_is_cancelled_and_has_not_failed(tmp_path: Path) -> None:
    """Its message comes again uncounted; one that returns all the same has done its work."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await service.queue("numbers", type=int)
        begun: list[int] = []

        @service.consumer("numbers", concurrency=2)
        async def handle(number: int) -> None:
            begun.append(number)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if number == 1:
                    raise

        async with running(service, grace_seconds=0):
            await numbers.put_many([1, 2])
            await until(lambda: len(begun) == 2)
        message = await numbers.receive(timeout=0)
        assert (message.body, message.delivery_count) == (1, 1)
        assert (await numbers.stats()).depth == 1


@in_a_loop
async def test_a_handler_that_does_not_end_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said so, and its message is given back."""
    monkeypatch.setattr(async_engine, "CANCEL_SECONDS", 0.01)
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await service.queue("numbers", type=int)
        begun, go_on = asyncio.Event(), asyncio.Event()

        @service.consumer("numbers")
        async def handle(number: int) -> None:
            begun.set()
            while not go_on.is_set():
                with suppress(asyncio.CancelledError):
                    await go_on.wait()

        async with running(service, grace_seconds=0):
            await numbers.put(1)
            await begun.wait()
        assert "does not end though it was cancelled" in caplog.text
        message = await numbers.receive(timeout=10)
        assert (message.body, message.delivery_count) == (1, 1)
        go_on.set()
        await turns()


@in_a_loop
async def test_cancelling_run_ends_the_grace(tmp_path: Path) -> None:
    """Handlers are cancelled at once, and those in threads waited for no longer."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers, words = await service.queue("numbers", type=int), await service.queue("words", type=str)
        begun, begun_too, go_on = asyncio.Event(), threading.Event(), threading.Event()

        @service.consumer("numbers")
        async def handle(number: int) -> None:
            begun.set()
            await asyncio.Event().wait()

        @service.consumer("words")
        def handle_word(word: str) -> None:
            begun_too.set()
            assert go_on.wait(30)

        run = asyncio.create_task(service.run(grace_seconds=60))
        await numbers.put(1)
        await words.put("one")
        await begun.wait()
        await until(begun_too.is_set)
        run.cancel()
        await asyncio.wait([run])
        assert run.cancelled()
        assert (await numbers.receive(timeout=10)).delivery_count == 1
        go_on.set()
        await until(lambda: words.sync.stats().depth == 0)


@in_a_loop
async def test_cancelling_run_leaves_nothing_behind_for_the_next(tmp_path: Path) -> None:
    """Also if its thread has ended by then, and does not hear of it any more."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await service.queue("numbers", type=int)
        handled: list[int] = []
        service.consumer(numbers)(handled.append)
        run = asyncio.create_task(service.run())
        await until(lambda: service.sync.workers.is_running)
        service.sync.stop()
        wait_until(lambda: not service.sync.workers.is_running)  # the event loop hears nothing meanwhile
        run.cancel()
        await asyncio.wait([run])
        await until(service.sync.workers._commands.empty)
        async with running(service):
            await numbers.put(1)
            await until(lambda: handled == [1])


@in_a_loop
async def test_a_signal_stops_and_a_second_one_ends_the_grace(tmp_path: Path) -> None:
    """Afterwards signals mean what they meant before."""
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await service.queue("numbers", type=int)
        begun = asyncio.Event()

        @service.consumer("numbers")
        async def handle(number: int) -> None:
            begun.set()
            await asyncio.Event().wait()

        run = asyncio.create_task(service.run(grace_seconds=60))
        await numbers.put(1)
        await begun.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        await until(service._workers._stop.is_set)
        assert not run.done()
        os.kill(os.getpid(), signal.SIGINT)
        await run
        assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
        assert (await numbers.receive(timeout=10)).delivery_count == 1


@in_a_loop
async def test_signal_handlers_of_the_program_in_the_loop_stay(tmp_path: Path) -> None:
    """They are called while consumers run, too, and afterwards."""
    loop = asyncio.get_running_loop()
    heard: list[int] = []
    loop.add_signal_handler(signal.SIGTERM, heard.append, signal.SIGTERM)
    try:
        async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
            begun = asyncio.Event()

            @service.consumer("numbers")
            async def handle(number: int) -> None:
                begun.set()

            run = asyncio.create_task(service.run())
            await (await service.queue("numbers", type=int)).put(1)
            await begun.wait()
            os.kill(os.getpid(), signal.SIGTERM)
            await run
            assert heard == [signal.SIGTERM]
            os.kill(os.getpid(), signal.SIGTERM)
            await until(lambda: heard == [signal.SIGTERM] * 2)
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


@in_a_loop
async def test_run_looks_for_signals_that_came_just_before_it_waited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interpreter calls their handlers only once the event loop wakes."""
    monkeypatch.setattr(async_workers, "SIGNAL_SECONDS", 0.001)
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:

        @service.consumer("numbers")
        async def handle(number: int) -> None:
            pass

        async with running(service) as run:
            await asyncio.sleep(0.05)
            assert not run.done()


def test_in_another_thread_it_runs_until_stop(tmp_path: Path) -> None:
    """Only the main thread hears signals; ``stop`` works from any."""
    service = AsyncQueueService(tmp_path, mode="exclusive", catalog=False)
    handled = threading.Event()

    @service.consumer("numbers")
    async def handle(number: int) -> None:
        handled.set()

    thread = threading.Thread(target=lambda: asyncio.run(service.run()))
    thread.start()
    service.sync.queue("numbers", type=int).put(1)
    assert handled.wait(30)
    service.stop()
    thread.join(30)
    assert not thread.is_alive()
    asyncio.run(service.close())


@in_a_loop
async def test_run_ends_when_its_queues_are_shut_down_and_empty(tmp_path: Path) -> None:
    """Both kinds of handlers."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        handled: list[int] = []

        @service.consumer("numbers", concurrency=2)
        async def handle(number: int) -> None:
            handled.append(number)

        @service.consumer("others")
        def handle_others(number: int) -> None:
            handled.append(number)

        for name in ("numbers", "others"):
            queue = await service.queue(name, type=int)
            await queue.put_many(range(5))
            queue.sync.raw.shutdown()
        await service.run()
        assert sorted(handled) == sorted([*range(5)] * 2)


@in_a_loop
async def test_what_keeps_a_consumer_from_going_on_stops_all_and_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In taking, in acknowledging, and in opening the queue of another one."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers, others = await service.queue("numbers", type=int), await service.queue("others", type=int)
        begun = threading.Event()

        @service.consumer("numbers")
        async def handle(number: int) -> None:
            begun.set()

        @service.consumer("others")
        def handle_others(number: int) -> None:
            pass

        def broken(*_: object, **__: object) -> None:
            raise StorageError("the disk is gone")

        with monkeypatch.context() as patched:
            patched.setattr(numbers.sync, "receive", broken)
            with pytest.raises(StorageError, match="the disk is gone"):
                await service.run()
        with monkeypatch.context() as patched:
            patched.setattr(handle_of(numbers.sync.raw).require_read_side(), "ack", broken)
            await numbers.put(1)
            with pytest.raises(StorageError, match="the disk is gone"):
                await service.run()
        assert begun.is_set()
        with monkeypatch.context() as patched:
            patched.setattr(others.sync.raw, "can_take", False)
            with pytest.raises(ConfigError, match="takes nothing"):
                await service.run()
        assert "stopping its consumer, which cannot continue" in caplog.text


@in_a_loop
async def test_closing_stops_the_consumers_first(tmp_path: Path) -> None:
    """And waits for them: what they have finished is acknowledged."""
    service = AsyncQueueService(tmp_path, mode="exclusive", catalog=False)
    numbers = await service.queue("numbers", type=int)
    begun = asyncio.Event()

    @service.consumer("numbers")
    async def handle(number: int) -> None:
        begun.set()
        await asyncio.sleep(0.01)

    run = asyncio.create_task(service.run())
    await numbers.put(1)
    await begun.wait()
    await service.close()
    await run
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as again:
        assert (await (await again.queue("numbers")).stats()).depth == 0
    with pytest.raises(ClosedError):
        await service.run()


@in_a_loop
async def test_a_stop_before_run_makes_it_return_at_once(tmp_path: Path) -> None:
    """So none is lost between the two; the next run runs."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        handled = asyncio.Event()

        @service.consumer("numbers")
        async def handle(number: int) -> None:
            handled.set()

        service.stop()
        await service.run()
        async with running(service):
            await (await service.queue("numbers", type=int)).put(1)
            await handled.wait()


@in_a_loop
async def test_consumers_that_cannot_work_are_refused(tmp_path: Path) -> None:
    """When they are registered, or when they are to run."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:

        async def handle(number: int) -> None:
            await asyncio.sleep(0)

        def handle_too(number: int) -> None:
            pass

        with pytest.raises(UsageError, match="no consumers"):
            await service.run()
        with pytest.raises(ConfigError, match="worker processes do not run"):
            service.consumer("numbers", processes=2)(handle)
        with pytest.raises(ConfigError, match="does not belong to this service"):
            async with AsyncQueueService(tmp_path / "other", mode="exclusive", catalog=False) as other:
                service.consumer(await other.queue("numbers"))(handle)
        assert service.consumer("numbers")(handle) is handle
        assert service.consumer("others")(handle_too) is handle_too
        for name in ("numbers", "others"):
            for each in (handle, handle_too):
                with pytest.raises(ConfigError, match="takes one consumer"):
                    service.consumer(name)(each)
        with pytest.raises(ConfigError, match="grace_seconds"):
            await service.run(grace_seconds=-1)
        async with running(service):
            await until(lambda: len(service.queues) == 2)
            with pytest.raises(UsageError, match="run already"):
                await service.run()


@in_a_loop
async def test_no_lease_runs_out_while_a_handler_works(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """However long that is."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await service.queue("numbers", type=int)
        handled: list[int] = []

        @service.consumer("numbers", concurrency=2)
        async def handle(number: int, delivery: AsyncDelivery[int]) -> None:
            handled.append(number)
            await delivery.extend(0.05)
            await asyncio.sleep(0.3)

        with caplog.at_level(logging.WARNING):
            async with running(service):
                await numbers.put(1)
                await until(lambda: numbers.sync.stats().depth == 0)
        assert handled == [1]
        assert not caplog.records


@in_a_loop
async def test_handlers_wait_where_acknowledging_does_not_keep_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that not too many are done again after a crash."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await service.queue("numbers", type=int)
        handled: list[int] = []

        @service.consumer("numbers")
        async def handle(number: int) -> None:
            handled.append(number)

        rooms = iter([False, False, True, True])
        with monkeypatch.context() as patched:
            patched.setattr(Settler, "wait_for_space", lambda *_: next(rooms))
            async with running(service):
                await numbers.put_many([1, 2])
                await until(lambda: numbers.sync.stats().depth == 0)
        assert (handled, list(rooms)) == ([1, 2], [])


@in_a_loop
async def test_a_message_that_a_failed_handler_has_settled_stays_settled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And one whose lease ran out before is somebody else's."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await service.queue("numbers", type=int, backoff=[])
        seen: list[tuple[int, int]] = []

        @service.consumer("numbers")
        async def handle(number: int, delivery: AsyncDelivery[int]) -> None:
            seen.append((number, delivery.delivery_count))
            if number == 1:
                await delivery.ack()
            raise ValueError("bad")

        def refuse(*_: object) -> None:
            raise LeaseExpiredError("over")

        with monkeypatch.context() as patched:
            patched.setattr(settle_failed, "carry_out", refuse)
            async with running(service):
                await numbers.put_many([1, 2])
                await until(lambda: len(caplog.messages) == 3)
        assert seen == [(1, 1), (2, 1)]
        assert "offset 1 may come again: over" in caplog.text


@in_a_loop
async def test_run_does_nothing_in_a_worker_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which imports the program's modules once more, and is given its work in another way."""
    monkeypatch.setattr(async_workers, "is_worker_process", lambda: True)
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        await service.run()


def test_consumers_run_again_though_the_loop_of_the_run_before_was_closed(tmp_path: Path) -> None:
    """Its run() never returned; what is left of it ends late, and changes nothing of the next one."""
    service = AsyncQueueService(tmp_path, mode="exclusive", catalog=False)
    handled: list[int] = []

    @service.consumer("numbers")
    async def handle(number: int) -> None:
        handled.append(number)

    @service.consumer("others")
    def handle_others(number: int) -> None:
        handled.append(number)

    async def begin() -> "asyncio.Task[None]":
        run = asyncio.create_task(service.run())
        await until(lambda: len(service.queues) == 2 and service.sync.workers.is_running)
        return run

    loop = asyncio.new_event_loop()
    left = [loop.run_until_complete(begin())]
    loop.close()
    service.stop()
    wait_until(lambda: not service.sync.workers.is_running)

    async def run_again() -> None:
        await service.run()  # which was stopped before it began
        async with running(service) as run:
            await until(lambda: service.sync.workers.is_running)
            left.clear()
            gc.collect()
            for name in ("numbers", "others"):
                await service.queues[name].put(1)
            await until(lambda: handled == [1, 1])
            assert not run.done()
        await service.close()

    asyncio.run(run_again())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of the tasks that never ended
def test_a_signal_after_a_loop_that_was_closed_too_early_is_the_programs(tmp_path: Path) -> None:
    """Its run() never returned, and so could not restore the handlers."""
    service = AsyncQueueService(tmp_path, mode="exclusive", catalog=False)

    @service.consumer("numbers")
    async def handle(number: int) -> None:
        raise AssertionError("there is none")

    async def begin() -> "asyncio.Task[None]":
        run = asyncio.create_task(service.run())
        await until(lambda: signal.getsignal(signal.SIGTERM) is not hear)
        return run

    heard: list[int] = []

    def hear(number: int, frame: object) -> None:
        heard.append(number)

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, hear) for number in numbers]
    try:
        loop = asyncio.new_event_loop()
        left = [loop.run_until_complete(begin())]
        loop.close()
        for number in numbers:
            signal.raise_signal(number)
        assert heard == list(numbers)
        assert [signal.getsignal(number) for number in numbers] == [hear, hear]
        left.clear()
        gc.collect()  # what is left of run() ends, and restores them too
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
    service.sync.close()
