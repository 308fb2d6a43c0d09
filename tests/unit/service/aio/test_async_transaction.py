"""Transactions of tasks: all of it or nothing, and uncounted where the task was cancelled."""

import asyncio
import threading
from pathlib import Path

import pytest

from holdfast import Empty, Put, TransactionStateError
from holdfast.queue.transactions.transaction_state import State
from holdfast.service.aio.async_queue import AsyncQueue
from holdfast.service.aio.async_service import AsyncQueueService
from support.processes.loops import in_a_loop, turns, until


async def two_queues(service: AsyncQueueService) -> tuple[AsyncQueue[int], AsyncQueue[str]]:
    """Open queues with two messages in the first one."""
    numbers = await service.queue("numbers", type=int, backoff=[])
    await numbers.put_many([1, 2])
    return numbers, await service.queue("words", type=str)


@in_a_loop
async def test_a_clean_block_commits(tmp_path: Path) -> None:
    """Puts and acknowledgements in both queues, those of others' messages too."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers, words = await two_queues(service)
        before = await numbers.receive()
        async with service.transaction() as tx:
            message = await tx.receive(numbers, timeout=5)
            await tx.put(words, "two", headers={"of": "2"})
            await tx.put_many(words, ["three", Put("four", priority=1)])  # type: ignore[arg-type]
            await tx.ack(message)
            await tx.ack([before])
            assert (await words.stats()).depth == 0
        assert tx.state is State.COMMITTED
        assert [(await words.receive()).body for _ in range(3)] == ["four", "two", "three"]
        assert (await numbers.stats()).depth == 0


@in_a_loop
async def test_commit_returns_the_offsets_by_queue(tmp_path: Path) -> None:
    """Of the queues of this service."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers, words = await two_queues(service)
        tx = service.transaction()
        await tx.put(numbers, 3)
        await tx.put_many(words, ["a", "b"])
        assert repr(tx) == f"<AsyncTransaction {tx.id}: open>"
        assert await tx.commit() == {numbers: range(2, 3), words: range(2)}
        with pytest.raises(TransactionStateError, match="committed"):
            await tx.put(numbers, 4)


@in_a_loop
async def test_an_exception_aborts_and_the_message_has_failed(tmp_path: Path) -> None:
    """As for a thread."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers, words = await two_queues(service)
        with pytest.raises(ValueError, match="bad"):  # noqa: PT012  # the block is what raises
            async with service.transaction() as tx:
                await tx.receive(numbers)
                await tx.put(words, "one")
                raise ValueError("bad")
        assert tx.state is State.ABORTED
        assert (await words.stats()).depth == 0
        assert (await numbers.receive()).delivery_count == 2
        tx = service.transaction()
        await tx.put(words, "two")
        await tx.abort()
        assert (await words.stats()).depth == 0


@in_a_loop
async def test_a_task_that_is_cancelled_aborts_and_what_it_received_is_uncounted(tmp_path: Path) -> None:
    """Nobody has failed; also where it is cancelled while it waits for another message."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers, words = await two_queues(service)
        has_begun = asyncio.Event()

        async def work() -> None:
            async with service.transaction() as tx:
                await tx.ack(await tx.receive(numbers))
                await tx.put(words, "one")
                has_begun.set()
                await tx.receive(words)

        task = asyncio.create_task(work())
        await has_begun.wait()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        again = [await numbers.receive() for _ in range(2)]
        assert [(each.body, each.delivery_count) for each in again] == [(1, 1), (2, 1)]
        assert (await words.stats()).depth == 0


@in_a_loop
async def test_a_transaction_waits_for_a_message_beside_others(tmp_path: Path) -> None:
    """First come, first served; within its timeout, and within its own time."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        _, words = await two_queues(service)
        plain = asyncio.create_task(words.receive())
        async with service.transaction() as tx:
            waiting = asyncio.create_task(tx.receive(words))
            await turns()
            await words.put("first")
            await words.put("second")
            assert ((await plain).body, (await waiting).body) == ("first", "second")
            await tx.ack(await waiting)
            with pytest.raises(Empty):
                await tx.receive(words, timeout=0.001)
        late = service.transaction(timeout=0.05)
        with pytest.raises(TransactionStateError, match=r"its timeout of 0\.05 s expired"):
            await late.receive(words)


@in_a_loop
async def test_a_block_of_a_delivery_in_a_transaction_acknowledges_it_there(tmp_path: Path) -> None:
    """And nothing where the task is cancelled in it: the transaction's end gives it back."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers, _ = await two_queues(service)
        async with service.transaction() as tx, await tx.receive(numbers):
            pass
        assert (await numbers.stats()).depth == 1
        tx = service.transaction()
        with pytest.raises(asyncio.CancelledError):
            async with tx, await tx.receive(numbers):
                raise asyncio.CancelledError
        assert (await numbers.receive()).delivery_count == 1


@in_a_loop
async def test_a_commit_that_is_cancelled_says_that_nobody_knows(tmp_path: Path) -> None:
    """And continues: the state tells it then, and the end of the block changes nothing."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers, _ = await two_queues(service)
        tx = service.transaction()
        await tx.put(numbers, 3)
        commit, has_begun, go_on = tx.sync.commit, threading.Event(), threading.Event()

        def slow_commit() -> object:
            with tx.sync._below._lock:
                has_begun.set()
                assert go_on.wait(30)
                return commit()

        tx.sync.commit = slow_commit  # type: ignore[assignment,method-assign]

        async def work() -> None:
            async with tx:
                await tx.commit()

        task = asyncio.create_task(work())
        await until(has_begun.is_set)
        task.cancel()
        go_on.set()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        assert "its outcome is not known yet" in caught.value.__notes__[0]
        assert tx.state is State.COMMITTED
        assert (await numbers.stats()).depth == 3
