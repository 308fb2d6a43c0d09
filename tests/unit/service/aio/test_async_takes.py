"""Tasks that wait for messages: many at a time, woken at once, cancelled without a trace."""

import asyncio
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest

from holdfast import ClosedError, Empty, LeaseExpiredError
from holdfast.errors import HoldfastError
from holdfast.service.aio import async_takes
from holdfast.service.aio.async_queue import AsyncQueue
from holdfast.service.aio.async_service import AsyncQueueService
from holdfast.service.aio.async_takes import Take, Takes
from holdfast.service.aio.async_threads import Threads
from holdfast.service.failover import FailoverSource
from support.builders.handles import handle_of
from support.processes.interruptions import Kind, interrupted, points_of, without_hanging
from support.processes.loops import in_a_loop, turns, until
from support.processes.threads import wait_until


def waiting_count(queue: AsyncQueue[int]) -> int:
    """Return how many threads sleep until a message comes: that of the queue's tasks, once it has found nothing."""
    write_side = handle_of(queue.sync.raw).write_side
    assert write_side is not None
    return len(write_side.data_available.waiting)


@in_a_loop
async def test_a_hundred_tasks_wait_on_several_queues_while_puts_go_on(tmp_path: Path) -> None:
    """With one thread for each queue, and each message to one of them."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        queues = [await service.queue(f"numbers{number}", type=int) for number in range(4)]
        tasks = [asyncio.create_task(queue.receive()) for queue in queues for _ in range(25)]
        await until(lambda: all(waiting_count(queue) == 1 for queue in queues))
        assert sum(thread.name.startswith("holdfast-takes-") for thread in threading.enumerate()) == 4
        await asyncio.gather(*(queue.put(number) for number in range(25) for queue in queues))
        messages = await asyncio.gather(*tasks)
        assert sorted(message.body for message in messages) == sorted([*range(25)] * 4)
        assert all(message.delivery_count == 1 for message in messages)


@in_a_loop
async def test_who_waits_longest_is_served_first(tmp_path: Path) -> None:
    """Whatever each of them asks for."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await service.queue("numbers", type=int)
        first = asyncio.create_task(numbers.receive())
        await turns()
        second = asyncio.create_task(numbers.receive_many(2))
        await turns()
        third = asyncio.create_task(numbers.receive(timeout=30))
        await turns()
        for number in range(3):
            await numbers.put(number)
            await until(lambda number=number: [first, second, third][number].done())  # type: ignore[misc]
        assert ((await first).body, (await second).bodies, (await third).body) == (0, [1], 2)


@in_a_loop
async def test_a_task_wakes_the_thread_only_if_its_time_ends_before_that_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread waits for messages already; in the mode "shared" to wake it costs a connection."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await service.queue("numbers", type=int)
        wakes: list[int] = []
        wake = numbers.sync.failover.wake
        monkeypatch.setattr(numbers.sync.failover, "wake", lambda: (wakes.append(1), wake()))
        tasks = [asyncio.create_task(numbers.receive(timeout=60))]
        await until(lambda: waiting_count(numbers) == 1)
        for timeout in (None, 90):
            tasks.append(asyncio.create_task(numbers.receive(timeout=timeout)))
            await turns()
        assert wakes == []
        with pytest.raises(Empty):
            await numbers.receive(timeout=0.01)
        assert wakes == [1]
        for number in range(3):
            await numbers.put(number)
        assert [(await each).body for each in tasks] == [0, 1, 2]


@in_a_loop
async def test_a_task_with_a_timeout_does_not_wait_for_those_before_it(tmp_path: Path) -> None:
    """Each has its own time."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await service.queue("numbers", type=int)
        patient = asyncio.create_task(numbers.receive())
        await until(lambda: waiting_count(numbers) == 1)
        for timeout in (0, 0.01):
            with pytest.raises(Empty):
                await numbers.receive(timeout=timeout)
        assert not patient.done()
        await numbers.put(1)
        assert (await patient).body == 1


@in_a_loop
async def test_a_cancelled_receive_takes_nothing(tmp_path: Path) -> None:
    """It returns at once, and the next message is another task's, uncounted."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await service.queue("numbers", type=int)
        tasks = [asyncio.create_task(numbers.receive()) for _ in range(3)]
        await until(lambda: waiting_count(numbers) == 1)
        for task in tasks[:2]:
            task.cancel()
        await asyncio.wait(tasks[:2])
        assert all(task.cancelled() for task in tasks[:2])
        await numbers.put(1)
        message = await tasks[2]
        assert (message.body, message.delivery_count) == (1, 1)


@in_a_loop
async def test_a_message_that_comes_for_a_task_that_was_cancelled_is_given_back_uncounted(tmp_path: Path) -> None:
    """Its future was set, the task had not gone on yet, and was cancelled there: at any of these moments."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await service.queue("numbers", type=int, max_deliveries=1)
        await numbers.put(1)
        for turn_count in range(40):
            task = asyncio.create_task(numbers.receive())
            await turns(turn_count)
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                await (await task).release()
            await until(lambda: numbers.sync.stats().in_flight == 0)
        message = await numbers.receive(timeout=5)
        assert (message.body, message.delivery_count) == (1, 1)


@pytest.mark.parametrize("is_told_first", [True, False])
@in_a_loop
async def test_a_task_that_is_cancelled_when_it_is_told_gives_its_message_back(
    is_told_first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Just before, and between that and its own next step, where the result is lost with the task."""
    tell = Take._set_done

    def tell_and_cancel(take: Take[str]) -> None:
        for step in (lambda: tell(take), task.cancel)[:: 1 if is_told_first else -1]:
            step()

    monkeypatch.setattr(Take, "_set_done", tell_and_cancel)
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await service.queue("numbers", type=int)
        given_back: list[str] = []
        takes = Takes("test", numbers.sync.failover, Threads("test"))
        task = asyncio.create_task(takes.take(lambda: "message", given_back.append, None))
        await asyncio.wait([task])
        assert task.cancelled()
        await until(lambda: given_back == ["message"])
        await asyncio.to_thread(takes.close)


@in_a_loop
async def test_a_lack_of_memory_fails_those_that_wait_and_no_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next task that waits has another thread."""
    sleep, errors = Takes._sleep, [MemoryError()]

    def sleep_without_memory(takes: Takes, waiting: list[Take[Any]]) -> None:
        if len(waiting) + len(takes._new) < 2:  # both of them are there
            return
        if errors:
            raise errors.pop()
        sleep(takes, waiting)

    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await service.queue("numbers", type=int)
        with monkeypatch.context() as patched:
            patched.setattr(Takes, "_sleep", sleep_without_memory)
            found = await asyncio.gather(*(numbers.receive() for _ in range(2)), return_exceptions=True)
        assert [type(each) for each in found] == [MemoryError] * 2
        waiting = asyncio.create_task(numbers.receive())
        await until(lambda: waiting_count(numbers) == 1)
        await numbers.put(1)
        assert (await waiting).body == 1


@in_a_loop
async def test_those_that_wait_are_told_of_a_lack_of_memory_once_there_is_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else they would wait for ever, behind the end of the queue too."""
    monkeypatch.setattr(async_takes, "TROUBLE_SECONDS", 0.001)
    tell, errors = Take._tell, [MemoryError()] * 3

    def tell_without_memory(take: Take[Any]) -> bool:
        if errors:
            raise errors.pop()
        return tell(take)

    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await service.queue("numbers", type=int)
        monkeypatch.setattr(Take, "_tell", tell_without_memory)
        monkeypatch.setattr(Takes, "_serve", Mock(side_effect=MemoryError))
        found = await asyncio.gather(*(numbers.receive() for _ in range(3)), return_exceptions=True)
        assert [type(each) for each in found] == [MemoryError] * 3
    assert errors == []


@in_a_loop
async def test_what_was_handed_over_before_a_lack_of_memory_is_the_tasks(tmp_path: Path) -> None:
    """The thread may fail in telling the task, and then fails it."""
    take = Take(lambda: 1, print, None, is_alike=True)
    take.succeed(1)
    take.fail(MemoryError())
    await take.done
    assert take.result() == 1


class Nothing:
    """A source that never has a message."""

    def wait_for_more(self, seconds: float | None, is_over: Callable[[], bool]) -> None:
        """Wait for none."""
        time.sleep(0.001)

    def wake(self) -> None:
        """Wake none."""


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_a_take_that_is_interrupted_as_it_begins_holds_up_no_other(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it is: the next one is served, and the thread ends."""
    loop = asyncio.new_event_loop()  # not of asyncio.run, which has a handler of its own for Ctrl-C
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)

    def refuse() -> int:
        raise Empty

    def new() -> Take[int]:
        return Take(refuse, print, 0.0, is_alike=True)

    def takes_of_nothing() -> Takes:
        return Takes("nothing", cast("FailoverSource", Nothing()), Threads("test"))

    measured = takes_of_nothing()
    points = [each for each in points_of(partial(measured._add, new())) if each.kind is Kind.DELIVERED]
    measured.close()
    assert len(points) > 10
    for point in points:
        takes = takes_of_nothing()
        interrupted(partial(takes._add, new()), point, error)
        later = new()
        without_hanging(partial(takes._add, later))
        wait_until(lambda later=later: later._error is not None)  # type: ignore[misc]
        without_hanging(takes.close)
    loop.close()


@in_a_loop
async def test_a_task_called_off_during_the_take_has_its_message_given_back_by_the_thread(tmp_path: Path) -> None:
    """Also where the event loop is gone by then."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await service.queue("numbers", type=int)
        given_back: list[str] = []
        may_go_on, has_begun = threading.Event(), threading.Event()
        takes = Takes("test", numbers.sync.failover, Threads("test"))

        def take() -> str:
            has_begun.set()
            assert may_go_on.wait(30)
            return "message"

        def in_a_loop_that_ends() -> None:
            async def wait() -> None:
                task = asyncio.create_task(takes.take(take, given_back.append, None))
                await until(has_begun.is_set)
                task.cancel()
                await asyncio.wait([task])

            asyncio.run(wait())

        await asyncio.to_thread(in_a_loop_that_ends)
        assert not given_back
        may_go_on.set()
        await until(lambda: given_back == ["message"])
        await asyncio.to_thread(takes.close)


@in_a_loop
async def test_what_goes_wrong_in_giving_back_stays_there(tmp_path: Path) -> None:
    """A queue that was closed has given everything back already; the thread serves the next task."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await service.queue("numbers", type=int)
        takes = Takes("test", numbers.sync.failover, Threads("test"))
        may_go_on, has_begun = threading.Event(), threading.Event()

        def take() -> str:
            has_begun.set()
            assert may_go_on.wait(30)
            return "message"

        def refuse(_: str) -> None:
            raise LeaseExpiredError("over")

        task = asyncio.create_task(takes.take(take, refuse, None))
        await until(has_begun.is_set)
        task.cancel()
        may_go_on.set()
        assert await takes.take(lambda: "next", refuse, None) == "next"
        await asyncio.to_thread(takes.close)
        with pytest.raises(ClosedError, match="'test' is closed"):
            await takes.take(lambda: "too late", refuse, None)


@in_a_loop
async def test_asyncio_timeout_ends_a_receive(tmp_path: Path) -> None:
    """As any other wait."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await service.queue("numbers", type=int)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await numbers.receive()
        await numbers.put(1)
        assert (await numbers.receive()).delivery_count == 1


@in_a_loop
async def test_closing_wakes_every_task_that_waits(tmp_path: Path) -> None:
    """No thread of this service is left behind."""
    others = set(threading.enumerate())
    service = AsyncQueueService(tmp_path, mode="exclusive", catalog=False)
    numbers = await service.queue("numbers", type=int)
    tasks = [asyncio.create_task(numbers.receive()) for _ in range(10)]
    await until(lambda: waiting_count(numbers) == 1)
    await service.close()
    await asyncio.wait(tasks)
    assert all(isinstance(task.exception(), ClosedError) for task in tasks)
    with pytest.raises(ClosedError):
        await numbers.receive(timeout=0)
    assert not [each for each in threading.enumerate() if each.name.startswith("holdfast-") and each not in others]


@in_a_loop
async def test_an_error_of_the_disk_reaches_those_who_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them: nobody waits for what cannot come."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await service.queue("numbers", type=int)

        def fail(seconds: float | None, is_over: Callable[[], bool]) -> None:
            raise HoldfastError("no disk")

        monkeypatch.setattr(numbers.sync.failover, "wait_for_more", fail)
        tasks = [asyncio.create_task(numbers.receive()) for _ in range(3)]
        await asyncio.wait(tasks)
        assert {str(task.exception()) for task in tasks} == {"no disk"}
        await numbers.put(1)
        assert (await numbers.receive()).body == 1


@in_a_loop
async def test_a_queue_that_takes_nothing_says_so(tmp_path: Path) -> None:
    """In the words of the plain queue."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        await service.queue("numbers", type=int)
    async with AsyncQueueService(tmp_path, mode="read_only", catalog=False) as service:
        numbers = await service.queue("numbers", type=int)
        with pytest.raises(HoldfastError, match="mode"):
            await numbers.receive()


def test_a_service_may_be_used_from_one_loop_after_another(tmp_path: Path) -> None:
    """And from two at a time: nothing of it belongs to a loop."""
    service = AsyncQueueService(tmp_path, mode="exclusive", catalog=False)

    async def put() -> AsyncQueue[int]:
        numbers = await service.queue("numbers", type=int)
        await numbers.put(1)
        return numbers

    numbers = asyncio.run(put())
    waiting = threading.Thread(target=lambda: asyncio.run(_receive_two(numbers)))
    waiting.start()
    asyncio.run(_put_when_waited_for(numbers))
    waiting.join(30)
    assert numbers.sync.stats().depth == 0
    asyncio.run(service.close())


async def _receive_two(numbers: AsyncQueue[int]) -> None:
    for _ in range(2):
        async with await numbers.receive():
            pass


async def _put_when_waited_for(numbers: AsyncQueue[int]) -> None:
    await until(lambda: waiting_count(numbers) == 1)
    await numbers.put(2)


def test_a_message_that_comes_for_a_task_of_a_closed_loop_is_given_back(tmp_path: Path) -> None:
    """Uncounted: nobody has seen it."""
    service = AsyncQueueService(tmp_path, mode="exclusive", catalog=False)
    numbers = service.sync.queue("numbers", type=int)
    loop = asyncio.new_event_loop()

    async def wait_in_vain() -> asyncio.Task[object]:
        queue = await service.queue("numbers", type=int)
        task: asyncio.Task[object] = asyncio.create_task(queue.receive())
        await until(lambda: waiting_count(queue) == 1)
        return task

    task = loop.run_until_complete(wait_in_vain())
    loop.close()
    numbers.put(7)
    message = numbers.receive(timeout=30)
    assert (message.body, message.delivery_count) == (7, 1)
    message.ack()
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # that its loop was closed is what this is about
    asyncio.run(service.close())


@in_a_loop
async def test_takes_that_were_called_off_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On an idle queue nothing else wakes the thread that could drop them."""
    monkeypatch.setattr(async_takes, "NEW_MAX", 10)
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await service.queue("numbers", type=int)
        first = asyncio.create_task(numbers.receive())
        await until(lambda: waiting_count(numbers) == 1)
        for _ in range(100):
            task = asyncio.create_task(numbers.receive())
            await turns(1)
            task.cancel()
        await until(lambda: len(numbers.takes._new) <= 11)
        await numbers.put(1)
        assert (await first).body == 1


@in_a_loop
async def test_deleting_a_queue_does_not_make_the_loop_wait_for_a_decoder(tmp_path: Path) -> None:
    """That works for a task that takes just now."""
    begun, go_on = threading.Event(), threading.Event()
    was_told: list[bool] = []

    class Slow:
        name = "slow"
        content_type = "application/x-slow"

        def encode(self, body: object) -> bytes:
            return str(body).encode()

        def decode(self, payload: bytes, _: type | None) -> object:
            begun.set()
            was_told.append(go_on.wait(5))
            return payload.decode()

    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False, serializers=[Slow()]) as service:
        words = await service.queue("words", type=str, serializer="slow")
        await words.put("one")
        task = asyncio.create_task(words.receive())
        await until(begun.is_set)
        deleting = asyncio.create_task(service.delete_queue("words"))
        await until(lambda: not (tmp_path / "words").exists())
        await asyncio.sleep(0.2)
        go_on.set()
        await deleting
        await asyncio.wait([task])
        assert was_told == [True]
