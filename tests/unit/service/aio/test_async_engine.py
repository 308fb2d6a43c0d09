"""Tasks that are cancelled, messages that died with a process, and leases that ran out before the handler."""

import asyncio
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest

from holdfast import Delivery, RetryableError
from holdfast.service.aio.async_delivery import AsyncDelivery
from holdfast.service.aio.async_service import AsyncQueueService
from holdfast.service.aio.async_threads import THREADS_MAX
from holdfast.service.workers import patience
from holdfast.service.workers.settler import Settler
from support.builders.handles import handle_of
from support.processes.loops import in_a_loop, turns, until


@in_a_loop
async def test_a_message_is_acknowledged_though_its_task_is_cancelled_while_it_waits_for_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its handler has returned: its work is done."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await service.queue("numbers", type=int)
        handled = asyncio.Event()
        monkeypatch.setattr(Settler, "wait_for_space", lambda *_: False)

        @service.consumer(numbers)
        async def handle(number: int) -> None:
            handled.set()

        await numbers.put(1)
        run = asyncio.create_task(service.run(grace_seconds=0))
        await handled.wait()
        service.stop()
        await run
        assert (await numbers.stats()).depth == 0


@in_a_loop
async def test_a_transaction_that_a_handler_leaves_open_does_not_keep_its_message(tmp_path: Path) -> None:
    """Its time runs out, then the message's lease does, and the message comes again."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await service.queue("numbers", type=int, backoff=[], lease_seconds=0.1)
        counts: list[int] = []

        @service.consumer(numbers)
        async def handle(number: int, delivery: AsyncDelivery[int]) -> None:
            counts.append(delivery.delivery_count)
            if delivery.delivery_count == 1:
                await service.transaction(timeout=0.1).ack(delivery)
                raise ValueError("before the commit")

        await numbers.put(1)
        numbers.sync.raw.shutdown(timeout=30)
        await service.run()
        assert counts == [1, 2]


@in_a_loop
async def test_a_redelivered_message_is_acknowledged_before_the_next_one_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which may be the one that kills this process each time: its neighbours would become dead letters with it."""
    acknowledge = Settler.acknowledge

    def acknowledge_slowly(settler: Settler, deliveries: Sequence[Delivery], stopped: threading.Event) -> None:
        time.sleep(0.05)
        acknowledge(settler, deliveries, stopped)

    monkeypatch.setattr(Settler, "acknowledge", acknowledge_slowly)
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await service.queue("numbers", type=int)
        left: list[int] = []

        @service.consumer(numbers)
        async def handle(number: int) -> None:
            left.append(numbers.sync.stats().depth)

        await numbers.put_many(range(3))
        await (await numbers.receive_many(3)).nack(delay=0)
        numbers.sync.raw.shutdown()
        await service.run()
        assert left == [3, 2, 1]


@pytest.mark.parametrize("how", ["noticed", "swallowed", "behind its return"])
@in_a_loop
async def test_a_handler_that_cancels_its_own_task_ends_no_consumer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    """As some library may: its message has failed if that comes out of it, and the next one is handled uncancelled."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await service.queue("numbers", type=int, max_deliveries=1)
        cancelling: list[int] = []

        @service.consumer(numbers)
        async def handle(number: int) -> None:
            task = asyncio.current_task()
            assert task is not None
            cancelling.append(task.cancelling())
            if number == 0:
                task.cancel()
                with suppress(asyncio.CancelledError) if how == "swallowed" else nullcontext():
                    if how != "behind its return":
                        await asyncio.sleep(0)

        await numbers.put_many([0, 1])
        numbers.sync.raw.shutdown()
        await service.run()
        assert cancelling == [0, 0]
        assert [letter.exception for letter in await numbers.dead.list()] == ["asyncio.exceptions.CancelledError"] * (
            how == "noticed"
        )
        is_noticed = how == "behind its return" and sys.version_info < (3, 13)  # from there on uncancel() forgets it
        assert ("the program has cancelled a task" in caplog.text) == is_noticed


def test_a_loop_that_ends_with_its_handlers_gives_their_messages_back_uncounted(tmp_path: Path) -> None:
    """It cancels all tasks, and those of the handlers maybe before the one that runs them."""
    service = AsyncQueueService(tmp_path, mode="exclusive", catalog=False)

    runs: list[asyncio.Task[None]] = []

    async def main() -> None:
        numbers = await service.queue("numbers", type=int)
        begun: list[int] = []

        @service.consumer(numbers, concurrency=8)
        async def handle(number: int) -> None:
            begun.append(number)
            await asyncio.Event().wait()

        await numbers.put_many(range(6))
        runs.append(asyncio.create_task(service.run()))
        await until(lambda: len(begun) == 6)

    asyncio.run(main())
    left = service.sync.queue("numbers").receive_many(10, timeout=10)
    assert [each.delivery_count for each in left] == [1] * 6
    asyncio.run(service.close())


@in_a_loop
async def test_cancelling_run_twice_waits_for_no_handler_and_leaves_no_thread(tmp_path: Path) -> None:
    """What is in hand then is given back."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await service.queue("numbers", type=int)
        begun, go_on = asyncio.Event(), asyncio.Event()

        @service.consumer(numbers, concurrency=2)
        async def handle(number: int) -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                await go_on.wait()

        await numbers.put(1)
        run = asyncio.create_task(service.run())
        await begun.wait()
        run.cancel()
        await turns()
        run.cancel()
        await asyncio.wait([run])
        assert run.cancelled()
        assert (await numbers.receive(timeout=10)).delivery_count == 1
        await until(lambda: not any(each.name.endswith("-settler") for each in threading.enumerate()))
        go_on.set()
        await turns()


@in_a_loop
async def test_a_message_whose_lease_ran_out_before_its_handler_could_begin_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Because the event loop was busy: it comes again, and only then is it handled."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await service.queue("numbers", type=int)
        receive, late, settled = numbers.receive, [True, False], []

        async def receive_late() -> AsyncDelivery[int]:
            message = await receive()
            if late.pop(0):
                message.sync.release()
            return message

        @service.consumer(numbers)
        async def handle(number: int, delivery: AsyncDelivery[int]) -> None:
            settled.append(delivery.is_settled)
            service.stop()

        monkeypatch.setattr(numbers, "receive", receive_late)
        await numbers.put(1)
        await service.run()
        assert settled == [False]


@in_a_loop
async def test_an_owner_that_does_not_answer_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """That is logged once, and no consumer ends; a stop waits for no owner."""
    monkeypatch.setattr(patience, "RETRY_SECONDS", 0.001)
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await service.queue("numbers", type=int)
        receive, handled, count = numbers.receive, asyncio.Event(), 0

        async def refuse_or_receive() -> AsyncDelivery[int]:
            nonlocal count
            count += 1
            if handled.is_set() or count < 3:
                monkeypatch.setattr(patience, "RETRY_SECONDS", 3600 if handled.is_set() else 0)
                raise RetryableError("the owner has not answered within 30 s: try again")
            return await receive()

        monkeypatch.setattr(numbers, "receive", refuse_or_receive)

        @service.consumer(numbers)
        async def handle(number: int) -> None:
            handled.set()

        await numbers.put(1)
        run = asyncio.create_task(service.run())
        await handled.wait()
        await until(lambda: count == 4)
        service.stop()
        await run
        assert (await numbers.stats()).depth == 0
        assert caplog.text.count("numbers: trying again each second: the owner") == 2
        assert "cannot continue" not in caplog.text


@pytest.mark.parametrize("verb", ["ack", "nack"])
@in_a_loop
async def test_an_owner_that_does_not_answer_keeps_no_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, verb: str
) -> None:
    """All queues of the service share them: it is the tasks that wait, until it answers or a stop comes."""
    count = THREADS_MAX + 1
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await service.queue("numbers", type=int, backoff=[])
        others = await service.queue("others", type=int)
        seen: list[Delivery[int]] = []

        @service.consumer(numbers, concurrency=count)
        async def handle(number: int, delivery: AsyncDelivery[int]) -> None:
            seen.append(delivery.sync)
            if verb == "nack":
                raise ValueError("not yet")

        def refuse(*_: object, **__: object) -> None:
            raise RetryableError("the owner has not answered within 30 s: try again")

        await numbers.put_many(range(count))
        for each in numbers.sync.receive_many(count, timeout=0):
            each.nack(delay=0)
        monkeypatch.setattr(patience, "RETRY_SECONDS", 0.01)
        monkeypatch.setattr(handle_of(numbers.sync.raw).require_read_side(), verb, refuse)
        run = asyncio.create_task(service.run())
        await until(lambda: caplog.text.count("trying again each second") == count)
        await asyncio.wait_for(others.put(1), 10)
        assert all(each.is_open for each in seen)
        monkeypatch.setattr(patience, "RETRY_SECONDS", 3600)
        await asyncio.sleep(0.1)
        service.stop()
        await asyncio.wait_for(run, 10)
        assert caplog.text.count("may come again: the owner") == count
        assert not any(each.is_open or each.is_settled for each in seen)
