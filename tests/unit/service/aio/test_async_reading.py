"""Reading the log in a task: without a group, and as messages come."""

import asyncio
from pathlib import Path

import pytest

from holdfast import ClosedError, ConfigError
from holdfast.service.aio.async_service import AsyncQueueService
from support.processes.loops import in_a_loop


@in_a_loop
async def test_the_log_is_read_in_a_task(tmp_path: Path) -> None:
    """All of it, or a range; nothing is taken."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await service.queue("numbers", type=int)
        await numbers.put_many(range(200))
        reading = numbers.read()
        assert (reading.gaps, reading.damage) == ([], [])
        assert [numbers.decode(each) async for each in reading] == list(range(200))
        assert [each.offset async for each in numbers.read(-3, "latest")] == [197, 198, 199]
        assert (reading.gaps, reading.damage) == ([], [])
        assert [each async for each in reading] == []
        assert (await numbers.stats()).depth == 200
        with pytest.raises(ConfigError):
            await anext(numbers.read("newest"))


@in_a_loop
async def test_a_task_follows_what_other_tasks_put(tmp_path: Path) -> None:
    """Until nothing comes for the time that it waits; a block closes it before."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await service.queue("numbers", type=int)

        async def follow() -> list[int]:
            return [numbers.decode(each) async for each in numbers.read(follow=True, timeout=0.5)]

        task = asyncio.create_task(follow())
        for number in range(5):
            await numbers.put(number)
            await asyncio.sleep(0.02)
        assert await task == list(range(5))
        numbers.read().close()
        async with numbers.read(follow=True) as reading:
            assert (await anext(reading)).offset == 0
        assert [each.offset async for each in reading] == [1, 2, 3, 4]  # those that were read already


@in_a_loop
@pytest.mark.extra("filter")
async def test_a_task_reads_what_matches(tmp_path: Path) -> None:
    """The others are passed without a pause."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await service.queue("numbers", type=int)
        await numbers.put_many(range(2_000))
        await numbers.put(2_000, priority=3)
        assert [each.offset async for each in numbers.read(filter="priority > 2")] == [2_000]


@in_a_loop
async def test_a_service_that_is_closed_ends_its_readers(tmp_path: Path) -> None:
    """With an error, as every other call."""
    service = AsyncQueueService(tmp_path, mode="exclusive", catalog=False)
    numbers = await service.queue("numbers", type=int)
    reading = numbers.read(follow=True)
    await numbers.put(1)
    assert (await anext(reading)).offset == 0
    await service.close()
    with pytest.raises(ClosedError):
        await anext(reading)
