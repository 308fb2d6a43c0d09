"""Reading the log in a task: without a group, and as messages come."""

import asyncio
import threading
from collections.abc import Callable
from functools import partialmethod
from pathlib import Path
from typing import Any

import pytest

from holdfast import ClosedError, ConfigError, StorageError
from holdfast.queue.inspect.log_reading import LogReading
from holdfast.service.aio.async_service import AsyncQueueService
from support.processes.loops import in_a_loop, until


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


class Held:
    """A call that waits behind its end until it may return; counts how often it is made."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call
        self.count = 0
        self.may_return = threading.Event()

    def __call__(self, *arguments: Any) -> Any:
        """Make the call, and wait."""
        self.count += 1
        try:
            return self._call(*arguments)
        finally:
            assert self.may_return.wait(30)


async def cancelled_in(held: Held, reading: Any) -> None:
    """Cancel a task that waits for a message, while its thread is in that call."""
    task = asyncio.create_task(anext(reading))
    await until(lambda: held.count == 1)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


@in_a_loop
async def test_no_message_is_skipped_by_a_task_that_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread continues: the next task gets what it reads, and does not read beside it."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await service.queue("numbers", type=int)
        reading = numbers.read(follow=True)
        begin = Held(reading._begin)
        monkeypatch.setattr(reading, "_begin", begin)
        await cancelled_in(begin, reading)
        await numbers.put(0)
        begin.may_return.set()
        assert (await anext(reading)).offset == 0
        assert begin.count == 1
        await numbers.put(1)
        read_on = Held(LogReading.read_on)
        monkeypatch.setattr(LogReading, "read_on", partialmethod(read_on))
        await cancelled_in(read_on, reading)
        again = asyncio.create_task(anext(reading))
        await asyncio.sleep(0.05)
        assert read_on.count == 1
        read_on.may_return.set()
        assert (await again).offset == 1


@in_a_loop
async def test_a_reader_is_closed_once_its_thread_has_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether that begins to read, or reads on; what it has read by then still comes out."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await service.queue("numbers", type=int)
        await numbers.put(0)
        reading = numbers.read(follow=True)
        begin = Held(reading._begin)
        monkeypatch.setattr(reading, "_begin", begin)
        await cancelled_in(begin, reading)
        reading.close()
        begin.may_return.set()
        assert [each async for each in reading] == []
        read_on = Held(LogReading.read_on)
        monkeypatch.setattr(LogReading, "read_on", partialmethod(read_on))
        async with numbers.read(follow=True) as other:
            await cancelled_in(read_on, other)
        assert not other._reading.is_over  # type: ignore[union-attr]
        read_on.may_return.set()
        assert [each.offset async for each in other] == [0]
        assert other._reading.is_over  # type: ignore[union-attr]


@in_a_loop
async def test_an_error_of_a_call_whose_task_was_cancelled_comes_out_of_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And closing a reader that could not begin does nothing."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:

        def fail() -> LogReading:
            raise StorageError("the disk is gone")

        reading = (await service.queue("numbers", type=int)).read()
        begin = Held(fail)
        monkeypatch.setattr(reading, "_begin", begin)
        await cancelled_in(begin, reading)
        reading.close()
        begin.may_return.set()
        with pytest.raises(StorageError, match="the disk is gone"):
            await anext(reading)
        assert begin.count == 1
