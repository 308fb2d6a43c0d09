"""Where calls of tasks run: what a cancelled put says, and that nobody waits for a thread of others."""

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from holdfast import ClosedError, ForkedError, Full
from holdfast.service.aio import thread_pool
from holdfast.service.aio.async_queue import AsyncQueue
from holdfast.service.aio.async_service import AsyncQueueService
from holdfast.service.aio.async_threads import THREADS_MAX, Threads
from support.builders.handles import handle_of
from support.processes.loops import in_a_loop, turns, until


async def cancelled_put(numbers: AsyncQueue[int], put: Callable[..., int], begin: threading.Event) -> list[str]:
    """Cancel a put that has begun, and which does what ``put`` does; return the notes of the error that comes out."""
    numbers.sync.put = put  # type: ignore[method-assign]
    task = asyncio.create_task(numbers.put(1, dedup_id="one"))
    await until(begin.is_set)
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    return caught.value.__notes__


@in_a_loop
async def test_a_put_that_is_cancelled_says_that_nobody_knows_and_may_be_there_all_the_same(tmp_path: Path) -> None:
    """Put again with the same id it counts once."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await service.queue("numbers", type=int)
        put, begin, go_on, over = numbers.sync.put, threading.Event(), threading.Event(), threading.Event()

        def slow_put(body: int, **options: object) -> int:
            begin.set()
            assert go_on.wait(30)
            offset = put(body, **options)  # type: ignore[arg-type]
            over.set()
            return offset

        (note,) = await cancelled_put(numbers, slow_put, begin)
        assert "whether the message was put is unknown" in note
        assert "dedup_id" in note
        assert (await numbers.stats()).depth == 0
        go_on.set()
        await until(over.is_set)
        assert (await numbers.stats()).depth == 1
        assert await numbers.put(1, dedup_id="one") == 0
        assert (await numbers.stats()).depth == 1


@in_a_loop
async def test_an_acknowledgement_that_is_cancelled_before_it_begins_goes_on(tmp_path: Path) -> None:
    """All threads were busy. Else its message would be in hand for ever."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await service.queue("numbers", type=int)
        await numbers.put_many([1, 2])
        first, second = await numbers.receive(), await numbers.receive()
        go_on = threading.Event()
        busy = [asyncio.create_task(service._threads.run(go_on.wait, 30)) for _ in range(THREADS_MAX)]
        tasks = [asyncio.create_task(first.ack()), asyncio.create_task(second.release())]
        await turns()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert all(task.cancelled() for task in tasks)
        go_on.set()
        await asyncio.gather(*busy)
        await until(lambda: first.is_settled and second.is_settled)
        assert (await numbers.receive(timeout=30)).body == 2
        assert (await numbers.stats()).depth == 1


@in_a_loop
async def test_a_put_that_is_cancelled_before_it_begins_says_that_nothing_was_written(tmp_path: Path) -> None:
    """All threads were busy."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await service.queue("numbers", type=int)
        go_on = threading.Event()
        busy = [asyncio.create_task(service._threads.run(go_on.wait, 30)) for _ in range(THREADS_MAX)]
        task = asyncio.create_task(numbers.put(1))
        await turns()
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        assert caught.value.__notes__ == ["cancelled before it began: nothing was written"]
        go_on.set()
        await asyncio.gather(*busy)
        assert (await numbers.stats()).depth == 0


@in_a_loop
async def test_a_timeout_around_a_put_keeps_the_note_as_its_cause(tmp_path: Path) -> None:
    """Here the queue is full, so that it is known that nothing was written, or not known."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await service.queue("numbers", type=int, maxsize=1)
        await numbers.put(1)
        with pytest.raises(TimeoutError) as caught:
            async with asyncio.timeout(0.02):
                await numbers.put(2)
        assert isinstance(caught.value.__cause__, asyncio.CancelledError)
        assert len(caught.value.__cause__.__notes__) == 1


@in_a_loop
async def test_puts_that_wait_for_room_end_soon_after_they_were_cancelled(tmp_path: Path) -> None:
    """Their threads are free again, and nothing is put later on."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await service.queue("numbers", type=int, maxsize=1)
        await numbers.put(0)
        tasks = [asyncio.create_task(numbers.put(number)) for number in range(1, 2 * THREADS_MAX)]
        await until(lambda: len(handle_of(numbers.sync.raw).capacity.space_available.waiting) == THREADS_MAX)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        all_free = threading.Barrier(THREADS_MAX)
        await asyncio.gather(*(numbers._threads.run_patiently(all_free.wait) for _ in range(THREADS_MAX)))
        assert (await (await numbers.receive()).ack()) is None
        assert await numbers.put(1, timeout=0) == 1


@in_a_loop
async def test_puts_that_wait_in_one_queue_keep_none_of_another_waiting(tmp_path: Path) -> None:
    """They take turns in the threads for those who wait."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        full = await service.queue("full", type=int, maxsize=1)
        other = await service.queue("other", type=int, maxsize=1)
        await asyncio.gather(full.put(0), other.put(0))
        waiting = [asyncio.create_task(full.put(1)) for _ in range(2 * THREADS_MAX)]
        behind = asyncio.create_task(other.put(1))
        async with await other.receive():
            pass
        assert await behind == 1
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)


@in_a_loop
async def test_full_is_raised_when_the_time_is_over() -> None:
    """However many slices the wait has."""
    threads = Threads("test")
    seen: list[float | None] = []

    def put(seconds: float | None) -> int:
        seen.append(seconds)
        if len(seen) < 4:
            raise Full
        return 7

    assert await threads.run_put(put, None, "unknown") == 7
    assert seen == [0.0, 0.25, 0.25, 0.25]
    with pytest.raises(Full):
        await threads.run_put(_never_room, 0, "unknown")
    with pytest.raises(Full):
        await threads.run_put(_never_room, 0.001, "unknown")
    threads.close()


def _never_room(_: float | None) -> int:
    raise Full


@in_a_loop
async def test_a_thread_without_memory_tells_its_caller_later_and_makes_the_next_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the caller would wait for ever, and the thread would count."""
    monkeypatch.setattr(thread_pool, "TROUBLE_SECONDS", 0.001)
    threads = Threads("data")
    with monkeypatch.context() as patched:
        for name in ("set_result", "set_exception"):
            errors, real = [MemoryError()], getattr(Future, name)

            def tell(future: Future[Any], told: Any, errors: list[MemoryError] = errors, real: Any = real) -> None:
                if errors:
                    raise errors.pop()
                real(future, told)

            patched.setattr(Future, name, tell)
        with pytest.raises(MemoryError):
            await threads.run(int)
    for _ in range(20):
        assert await threads.run(int) == 0
    threads.close()


@in_a_loop
async def test_nothing_runs_in_threads_that_were_closed() -> None:
    """What nobody waits for is left out silently: closing a queue does it."""
    threads = Threads("data")
    threads.close()
    with pytest.raises(ClosedError, match="data is closed"):
        await threads.run(print)
    threads.start(lambda: pytest.fail("it runs"))


@in_a_loop
async def test_threads_that_are_closed_just_now_refuse_in_the_same_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever saw them open a moment before hears nothing of executors."""
    threads = Threads("data")
    threads.close()
    answers = iter([False, True])
    monkeypatch.setattr(Threads, "_is_closed", property(lambda _: next(answers)), raising=False)
    del threads.__dict__["_is_closed"]
    with pytest.raises(ClosedError, match="data is closed"):
        await threads.run(print)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_forked_child_is_told_so_and_the_parent_goes_on(tmp_path: Path) -> None:
    """Its copy has no threads: it must not wait for one."""
    service = AsyncQueueService(tmp_path, mode="exclusive", catalog=False)

    async def use() -> AsyncQueue[int]:
        numbers = await service.queue("numbers", type=int)
        await numbers.put(1)
        return numbers

    async def use_in_child(numbers: AsyncQueue[int]) -> None:
        for call in (numbers.put(2), numbers.receive(), service.queue("numbers")):
            with pytest.raises(ForkedError):
                await call
        with pytest.raises(ForkedError):
            service.transaction()
        await service.close()

    numbers = asyncio.run(use())
    child = os.fork()
    if not child:
        status = 1
        try:
            asyncio.run(use_in_child(numbers))
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    async def go_on() -> None:
        assert (await numbers.receive()).body == 1
        await service.close()

    asyncio.run(go_on())
