"""Queues of a service for asyncio: put, take, settle, loop over batches."""

import asyncio
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from holdfast import Empty, EncodeError, Full, LeaseExpiredError, Put, RetryableError, ShutDown, StaleReceiptError
from holdfast.service.aio.async_queue import AsyncQueue
from holdfast.service.aio.async_service import AsyncQueueService
from holdfast.service.aio.async_threads import Threads
from support.processes.loops import in_a_loop, until


async def with_numbers(service: AsyncQueueService, count: int = 10) -> AsyncQueue[int]:
    """Open a queue of numbers whose failures come again at once."""
    numbers = await service.queue("numbers", type=int, backoff=[])
    await numbers.put_many(range(count))
    return numbers


@in_a_loop
async def test_an_object_is_put_received_and_acknowledged(tmp_path: Path) -> None:
    """The names are those of the other service."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        orders = await service.queue("orders", type=dict)
        assert await service.queue("orders") is orders
        assert dict(service.queues) == {"orders": orders}
        assert await orders.put({"number": 1}, headers={"tenant": "acme"}) == 0
        async with await orders.receive(timeout=5) as message:
            assert (message.body, message.headers["tenant"], message.offset) == ({"number": 1}, "acme", 0)
            assert (message.payload, message.delivery_count) == (b'{"number":1}', 1)
            assert message.timestamp_ns == message.sync.timestamp_ns > 0
            assert repr(message) == "<AsyncDelivery of offset 0, number 1: {'number': 1}>"
        assert message.is_settled
        assert (await orders.stats()).depth == 0


@in_a_loop
async def test_options_of_a_put_reach_the_queue(tmp_path: Path) -> None:
    """A second put of an id counts once, a delayed message waits, what does not fit the type is refused."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await service.queue("numbers", type=int)
        assert await numbers.put(1, dedup_id="one") == await numbers.put(1, dedup_id="one", timeout=5)
        assert await numbers.put_many(iter([2, Put(3, priority=9)]), headers={"a": "b"}, timeout=1) == range(1, 3)
        assert [each.headers.get("a") for each in await numbers.browse()] == [None, "b", "b"]
        assert (await (await numbers.receive()).ack()) is None
        assert [each.offset for each in await numbers.browse()] == [0, 1]
        assert numbers.decode((await numbers.peek())[0]) == 1
        with pytest.raises(EncodeError):
            await numbers.put("four")  # type: ignore[arg-type]


@in_a_loop
async def test_nothing_within_the_timeout_is_empty(tmp_path: Path) -> None:
    """At once for 0; a negative one is a mistake."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await service.queue("numbers", type=int)
        for timeout in (0, 0.01):
            with pytest.raises(Empty):
                await numbers.receive(timeout=timeout)
            with pytest.raises(Empty):
                await numbers.receive_many(5, timeout=timeout)
        with pytest.raises(ValueError, match="timeout"):
            await numbers.receive(timeout=-1)
        with pytest.raises(ValueError, match="at least 1 message"):
            await numbers.receive_many(0)


@in_a_loop
async def test_a_full_queue_makes_a_put_wait_for_room(tmp_path: Path) -> None:
    """As long as its timeout says; what else happens meanwhile makes the room."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await service.queue("numbers", type=int, maxsize=1)
        await numbers.put(1)
        for timeout in (0, 0.01):
            with pytest.raises(Full):
                await numbers.put(2, timeout=timeout)
        waiting = [asyncio.create_task(numbers.put(number)) for number in range(40)]  # more than there are threads
        for _ in range(41):
            async with await numbers.receive():
                pass
        assert sorted(await asyncio.gather(*waiting)) == list(range(1, 41))


@in_a_loop
async def test_an_exception_in_the_block_fails_the_message(tmp_path: Path) -> None:
    """It comes again, counted, and becomes a dead letter in the end."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await service.queue("numbers", type=int, backoff=[], max_deliveries=2)
        await numbers.put(1)
        for count in (1, 2):
            with pytest.raises(ValueError, match="bad"):  # noqa: PT012  # the block is what raises
                async with await numbers.receive() as message:
                    assert message.delivery_count == count
                    raise ValueError("bad")
        (letter,) = await numbers.dead.list()
        assert await numbers.dead.offsets() == [letter.offset]
        assert (letter.reason, letter.exception) == ("exception", "builtins.ValueError")
        assert await numbers.dead.export(tmp_path / "dead.jsonl") == 1
        assert await numbers.dead.export(tmp_path / "dead.jsonl", letter) == 1
        assert await numbers.dead.export(tmp_path / "dead.jsonl", letter.offset + 1) == 0
        assert await numbers.dead.retry(letter) == 1
        await (await numbers.receive()).reject("no use")
        assert await numbers.dead.discard(reason="rejected") == 1


@in_a_loop
async def test_verbs_settle_a_message(tmp_path: Path) -> None:
    """Each once; a stale one says so."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await with_numbers(service, 1)
        message = await numbers.receive(lease_seconds=60)
        await message.extend(0.001)
        message = await numbers.receive()
        assert message.delivery_count == 2
        await message.nack(error=ValueError("bad"))
        message = await numbers.receive()
        assert message.delivery_count == 3
        await message.release()
        message = await numbers.receive()
        assert message.delivery_count == 3
        await numbers.ack([message])
        with pytest.raises(StaleReceiptError):
            await message.ack()


@in_a_loop
async def test_a_block_whose_lease_ran_out_before_says_so(tmp_path: Path) -> None:
    """As that of a thread."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await with_numbers(service, 1)
        message = await numbers.receive(lease_seconds=0.001)
        again = await numbers.receive()
        with pytest.raises(LeaseExpiredError):
            async with message:
                pass
        await again.ack()


@in_a_loop
async def test_a_task_that_is_cancelled_in_the_block_gives_its_message_back_uncounted(tmp_path: Path) -> None:
    """It has not failed: neither the count nor the back-off know of it."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await service.queue("numbers", type=int)
        await numbers.put_many([1, 2, 3])
        has_begun = asyncio.Event()

        async def work() -> None:
            async with await numbers.receive(), await numbers.receive_many(2) as batch:
                await batch.ack([batch[0]])
                has_begun.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await has_begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        batch = await numbers.receive_many(5, timeout=0)
        assert [(each.body, each.delivery_count) for each in batch] == [(1, 1), (3, 1)]


@in_a_loop
async def test_what_cannot_be_decoded_is_parked_and_the_next_one_comes(tmp_path: Path) -> None:
    """A waiting task does not hear of it."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await service.queue("numbers", type=int)
        waiting = asyncio.create_task(numbers.receive())
        numbers.sync.raw.put(b"{", headers={"content-type": "application/json"})
        await numbers.put(2)
        assert (await waiting).body == 2
        (letter,) = await numbers.dead.list()
        assert (letter.reason, letter.payload) == ("undecodable", b"{")


@in_a_loop
async def test_a_batch_is_settled_by_its_block(tmp_path: Path) -> None:
    """What was not settled one by one is acknowledged, or has failed."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await with_numbers(service, 6)
        async with await numbers.receive_many(2) as batch:
            assert (batch.bodies, len(batch), [each.body for each in batch[:1]]) == ([0, 1], 2, [0])
            await batch.extend(60)
            await batch.release([batch[1]])
        with pytest.raises(ValueError, match="bad"):
            async with await numbers.receive_many(1):
                raise ValueError("bad")
        batch = await numbers.receive_many(9)
        assert [(each.body, each.delivery_count) for each in batch] == [(1, 2)]
        await batch.reject("no use")
        batch = await numbers.receive_many(9)
        await batch.ack([batch[0]])
        await batch.nack(delay=60)
        assert (await numbers.stats()).depth == 3


@in_a_loop
async def test_consume_many_yields_batches_and_acknowledges_each(tmp_path: Path) -> None:
    """When the next one is asked for."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await with_numbers(service)
        depths = []
        async for batch in numbers.consume_many(4, max_wait=0, stop_when_empty=True):
            depths.append((batch.bodies, (await numbers.stats()).depth))
        assert depths == [([0, 1, 2, 3], 10), ([4, 5, 6, 7], 6), ([8, 9], 2)]
        assert (await numbers.stats()).depth == 0


@in_a_loop
async def test_consume_many_ends_when_the_queue_is_shut_down(tmp_path: Path) -> None:
    """Once it is empty; whoever waits is told."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await with_numbers(service, 3)
        numbers.sync.raw.shutdown()
        assert [batch.bodies async for batch in numbers.consume_many(2)] == [[0, 1], [2]]
        with pytest.raises(ShutDown):
            await numbers.receive()


@in_a_loop
async def test_a_loop_that_is_left_fails_its_batch(tmp_path: Path) -> None:
    """A moment later; then its messages come one by one, the others together."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await with_numbers(service)
        with pytest.raises(ValueError, match="bad"):  # noqa: PT012  # the loop is what raises
            async for _ in numbers.consume_many(2, max_wait=0):
                raise ValueError("bad")
        await until(lambda: numbers.sync.stats().in_flight == 0)
        loop = numbers.consume_many(5, max_wait=0, stop_when_empty=True)
        assert [batch.bodies async for batch in loop] == [[0], [1], [2, 3, 4, 5, 6], [7, 8, 9]]


@in_a_loop
async def test_a_repeated_message_behind_others_comes_alone_too(tmp_path: Path) -> None:
    """The batch that was being gathered ends in front of it; it is given back where the loop ends there."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await with_numbers(service, 2)
        repeated = await numbers.receive()
        waiting = await numbers.receive()
        await waiting.release()
        loop = numbers.consume_many(5, max_wait=60)
        first = asyncio.create_task(anext(loop))
        await until(lambda: numbers.sync.stats().in_flight == 2)
        await repeated.nack(delay=0)
        assert (await first).bodies == [1]
        await loop.aclose()
        await until(lambda: numbers.sync.stats().in_flight == 0)
        counts = {each.body: each.delivery_count for each in [await numbers.receive() for _ in range(2)]}
        assert counts == {0: 2, 1: 2}


@in_a_loop
async def test_a_loop_that_does_not_stop_when_empty_waits_on(tmp_path: Path) -> None:
    """Round by round."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await with_numbers(service, 0)
        loop = numbers.consume_many(5, max_wait=0.001)
        first = asyncio.create_task(anext(loop))
        await asyncio.wait([first], timeout=0.01)
        await numbers.put(1)
        assert (await first).bodies == [1]
        await loop.aclose()


@in_a_loop
async def test_puts_into_a_queue_that_others_share_are_done_by_its_owner(tmp_path: Path) -> None:
    """Here in the same process."""
    async with (
        AsyncQueueService(tmp_path, mode="shared", catalog=False) as owner,
        AsyncQueueService(tmp_path, mode="shared", catalog=False) as other,
    ):
        numbers = await owner.queue("numbers", type=int)
        client = await other.queue("numbers", type=int)
        assert sorted(await asyncio.gather(*(client.put(number, timeout=30) for number in range(3)))) == [0, 1, 2]
        assert await client.put_many([3, 4]) == range(3, 5)
        assert sorted((await numbers.receive_many(5)).bodies) == [0, 1, 2, 3, 4]


@in_a_loop
async def test_a_cancelled_loop_gives_back_what_it_has_uncounted(tmp_path: Path) -> None:
    """In the body as well as while it gathers."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await with_numbers(service, 3)
        entered = asyncio.Event()

        async def consume(count: int, **options: Any) -> None:
            async for _ in numbers.consume_many(count, **options):
                entered.set()
                await asyncio.Event().wait()

        in_body = asyncio.create_task(consume(2, max_wait=0))
        await entered.wait()
        gathering = asyncio.create_task(consume(2, max_wait=60))
        await until(lambda: numbers.sync.stats().in_flight == 3)
        for task in (in_body, gathering):
            task.cancel()
        await asyncio.wait((in_body, gathering))
        await until(lambda: numbers.sync.stats().in_flight == 0)
        batch = await numbers.receive_many(5, timeout=0)
        assert [(each.body, each.delivery_count) for each in batch] == [(0, 1), (1, 1), (2, 1)]


@in_a_loop
async def test_a_paused_queue_hands_nothing_out(tmp_path: Path) -> None:
    """A task that waits continues when it is resumed."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await with_numbers(service, 1)
        await numbers.pause(reason="lunch")
        with pytest.raises(Empty):
            await numbers.receive(timeout=0)
        waiting = asyncio.create_task(numbers.receive())
        await numbers.resume()
        assert (await waiting).body == 0


@in_a_loop
async def test_upcasts_are_registered_as_with_the_other_service(tmp_path: Path) -> None:
    """Messages of older programs become what this one knows."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        await (await service.queue("orders", type=dict)).put({"number": 1})
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        orders = await service.queue("orders", type=dict, version=2)

        @orders.upcast(1, 2)
        def add_currency(order: dict[str, Any]) -> dict[str, Any]:
            return {**order, "currency": "EUR"}

        assert (await orders.receive()).body == {"number": 1, "currency": "EUR"}


@in_a_loop
async def test_a_loop_finishes_each_message_by_coming_back_for_the_next(tmp_path: Path) -> None:
    """They are taken ahead; what cannot be decoded is a dead letter."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await with_numbers(service, 3)
        numbers.sync.raw.put(b"no number")
        await numbers.put(4)
        found = [each.body async for each in numbers.consume(prefetch=2, timeout=0)]
        assert (found, (await numbers.stats()).depth) == ([0, 1, 2, 4], 0)
        assert len(await numbers.dead.list(reason="undecodable")) == 1


@in_a_loop
async def test_a_loop_waits_for_messages_and_ends_with_the_queue(tmp_path: Path) -> None:
    """What it has finished is acknowledged before it waits."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await with_numbers(service, 1)
        loop = numbers.consume()
        assert (await anext(loop)).body == 0
        waiting = asyncio.create_task(anext(loop))
        await until(lambda: numbers.sync.stats().depth == 0)
        await numbers.put(1)
        assert (await waiting).body == 1
        numbers.sync.raw.shutdown()
        assert [each.body async for each in loop] == []
        with pytest.raises(ValueError, match="at least 1"):
            numbers.consume(prefetch=0)


@in_a_loop
async def test_a_loop_that_is_left_has_failed_the_message_in_hand_and_no_other(tmp_path: Path) -> None:
    """What was finished stays so, and what was taken ahead goes back uncounted."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await with_numbers(service, 4)
        loop = numbers.consume()
        with pytest.raises(ValueError, match="bad"):  # noqa: PT012  # the loop is what raises
            async for each in loop:
                if each.body == 1:
                    raise ValueError("bad")
        await loop.aclose()
        await until(lambda: numbers.sync.stats().in_flight == 0)
        left = [await numbers.receive(timeout=1) for _ in range(3)]
        assert [(each.body, each.delivery_count) for each in left] == [(1, 2), (2, 1), (3, 1)]
        assert (await numbers.stats()).depth == 3


@in_a_loop
async def test_a_loop_whose_task_is_cancelled_gives_everything_back_uncounted(tmp_path: Path) -> None:
    """In its body, and while it waits."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await with_numbers(service, 2)
        entered = asyncio.Event()

        async def work() -> None:
            async for _ in numbers.consume():
                entered.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await entered.wait()
        idle = asyncio.create_task(work())
        for each in (task, idle):
            each.cancel()
        await asyncio.wait((task, idle))
        await until(lambda: numbers.sync.stats().in_flight == 0)
        batch = await numbers.receive_many(5, timeout=0)
        assert [(each.body, each.delivery_count) for each in batch] == [(0, 1), (1, 1)]


@in_a_loop
async def test_a_message_that_its_loop_has_settled_by_hand_stays_so(tmp_path: Path) -> None:
    """Also one that is given back, behind which the loop continues."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await with_numbers(service, 2)
        async for each in numbers.consume(timeout=0):
            await each.reject("odd")
        assert len(await numbers.dead.list(reason="rejected")) == 2


@pytest.mark.parametrize("is_batch", [False, True])
@in_a_loop
async def test_a_block_that_cannot_acknowledge_without_a_thread_leaves_nothing_in_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_batch: bool
) -> None:
    """Its messages come again when their leases run out, though this process lives on."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await service.queue("numbers", type=int, lease_seconds=0.2)
        await numbers.put(1)
        block = await numbers.receive_many(2) if is_batch else await numbers.receive()
        with monkeypatch.context() as patched, pytest.raises(RetryableError):
            async with block:
                patched.setattr(Threads, "run", Mock(side_effect=RetryableError("no thread can be started")))
        message = await numbers.receive(timeout=30)
        assert (message.body, message.delivery_count) == (1, 2)
