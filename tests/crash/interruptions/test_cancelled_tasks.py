"""Tasks that are cancelled at each of their turns, as by Ctrl-C in ``asyncio.run``: verbs on deliveries.

A verb that is cancelled has been done, or can be done again. Nothing is lost, and what is finished never comes again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast import Empty, StaleReceiptError
from holdfast.queue.options.queue_options import Mode
from holdfast.service.aio.async_delivery import AsyncDelivery
from holdfast.service.aio.async_queue import AsyncQueue
from holdfast.service.aio.async_service import AsyncQueueService
from support.processes.loops import in_a_loop, turns, until

TURNS_MAX = 60
Message = AsyncDelivery[int]


async def _use(message: Message) -> None:
    async with message:
        pass


async def _use_and_fail(message: Message) -> None:
    with suppress(RuntimeError):
        async with message:
            raise RuntimeError


ENDING: dict[str, Callable[[Message], Awaitable[None]]] = {
    "ack": lambda message: message.ack(),
    "block": _use,
    "block that fails": _use_and_fail,
    "nack": lambda message: message.nack(0),
    "reject": lambda message: message.reject("no use"),
    "release": lambda message: message.release(),
}
FINISHES = {"ack", "block"}


async def _cancelled(call: Awaitable[object], turn_count: int) -> bool:
    """Cancel a call after so many turns; return whether that ended it."""
    task = asyncio.ensure_future(call)
    await turns(turn_count)
    task.cancel()
    await asyncio.wait([task])
    return task.cancelled()


async def _in_flight(queue: AsyncQueue[int]) -> int:
    return (await queue.stats()).in_flight


@pytest.mark.parametrize("mode", ["shared", "exclusive"])
@pytest.mark.parametrize("name", ENDING)
@in_a_loop
async def test_a_verb_that_is_cancelled_is_done_or_can_be_done_again(name: str, mode: Mode, tmp_path: Path) -> None:
    """And it is done once."""
    async with AsyncQueueService(tmp_path, mode=mode, catalog=False) as service:
        numbers = await service.queue("numbers", type=int, max_deliveries=2, backoff=[])
        cancelled_count = 0
        for turn_count in range(TURNS_MAX):
            offset = await numbers.put(turn_count)
            message = await numbers.receive(timeout=5)
            assert message.offset == offset, "something has come again"
            is_cancelled = await _cancelled(ENDING[name](message), turn_count)
            cancelled_count += is_cancelled
            with suppress(StaleReceiptError):
                await ENDING[name](message)
            await until(lambda message=message: message.is_settled)  # type: ignore[misc]
            assert await _in_flight(numbers) == 0, f"after {turn_count} turns"
            await _check(name, numbers, turn_count)
            if not is_cancelled and turn_count > 10:
                break
        assert cancelled_count > 2


async def _check(name: str, numbers: AsyncQueue[int], body: int) -> None:
    """Find the message where a verb has to leave it, once, and finish it."""
    dead = await numbers.dead.list()
    assert [numbers.decode(each) for each in dead] == ([body] if name == "reject" else [])
    await numbers.dead.discard(dead)
    if name in FINISHES or name == "reject":
        with pytest.raises(Empty):
            await numbers.receive(timeout=0)
    else:
        message = await numbers.receive(timeout=5)
        assert (message.body, message.delivery_count) == (body, 1 if name == "release" else 2)
        await message.ack()


@pytest.mark.parametrize("mode", ["shared", "exclusive"])
@in_a_loop
async def test_a_loop_that_is_cancelled_leaves_nothing_in_hand(mode: Mode, tmp_path: Path) -> None:
    """What it has not finished comes again, and no more."""
    async with AsyncQueueService(tmp_path, mode=mode, catalog=False) as service:
        numbers = await service.queue("numbers", type=int, max_deliveries=None, backoff=[])
        for turn_count in range(TURNS_MAX):
            await numbers.put_many([1, 2, 3])
            seen: list[int] = []

            async def work(seen: list[int] = seen) -> None:
                async for message in numbers.consume(prefetch=2, timeout=0):
                    await asyncio.sleep(0)
                    seen.append(message.body)

            await _cancelled(work(), turn_count)

            async def is_left() -> bool:
                return await _in_flight(numbers) == 0

            while not await is_left():
                await asyncio.sleep(0.001)
            left = []
            with suppress(Empty):
                while True:
                    left.append(await numbers.get(timeout=0))
            assert sorted({*seen, *left}) == [1, 2, 3], f"lost after {turn_count} turns: {seen} and {left}"
            assert len(left) >= 3 - len(seen)


@pytest.mark.parametrize("mode", ["shared", "exclusive"])
@in_a_loop
async def test_a_lease_that_is_extended_by_a_cancelled_task_stays_in_hand(mode: Mode, tmp_path: Path) -> None:
    """However far that has come."""
    async with AsyncQueueService(tmp_path, mode=mode, catalog=False) as service:
        numbers = await service.queue("numbers", type=int)
        await numbers.put(1)
        message = await numbers.receive(timeout=5)
        for turn_count in range(20):
            await _cancelled(message.extend(60), turn_count)
            assert await _in_flight(numbers) == 1
        await message.ack()
        assert await numbers.qsize() == 0
