"""``AsyncQueue``: one queue of an :class:`AsyncQueueService`. Objects in, objects out, awaited."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar, Unpack

from holdfast.errors import ShutDown
from holdfast.messages import Message
from holdfast.queue.consumer.draining import log_left
from holdfast.queue.dispatch.delivery import Delivery, DeliveryBatch
from holdfast.queue.inspect.browse import BrowsedMessage, State
from holdfast.queue.inspect.dead_letters import DeadLetter
from holdfast.queue.inspect.stats import QueueStats
from holdfast.queue.options.arguments import check_count, wait_for
from holdfast.queue.options.log_start import Start
from holdfast.queue.options.put_options import Put, PutOptions, Seconds
from holdfast.queue.options.settings import Settings
from holdfast.service.aio.async_batches import AsyncBatches
from holdfast.service.aio.async_consuming import AsyncConsuming
from holdfast.service.aio.async_dead_letters import AsyncDeadLetters
from holdfast.service.aio.async_delivery import AsyncBatch, AsyncDelivery
from holdfast.service.aio.async_reading import AsyncLogReading
from holdfast.service.aio.async_takes import Takes
from holdfast.service.aio.async_threads import Threads
from holdfast.service.typed_queue import TypedQueue

Body = TypeVar("Body")
Result = TypeVar("Result")
Function = TypeVar("Function", bound=Callable[..., Any])

PUT_IS_UNKNOWN = (
    "cancelled while in progress: whether the message was put is unknown. Put it again with the same dedup_id, which "
    "counts once, or look"
)


class AsyncQueue(Generic[Body]):
    """A queue of objects for tasks; made by :meth:`AsyncQueueService.queue`. Tasks share it, of any event loop.

    Its names are those of :class:`TypedQueue`; methods that may wait or touch the disk are awaited. docs/asyncio.md.

    Attributes
    ----------
    sync : TypedQueue
        The same queue for threads: other methods are there.
    takes : Takes
        What waits for its messages.
    """

    def __init__(self, sync: TypedQueue[Body], threads: Threads) -> None:
        self.sync = sync
        self.takes = Takes(sync.name, sync.failover, threads)
        self._threads = threads

    @property
    def name(self) -> str:
        """Its name in the service."""
        return self.sync.name

    @property
    def path(self) -> Path:
        """The queue's directory."""
        return self.sync.path

    @property
    def dead(self) -> AsyncDeadLetters:
        """The dead letters; as :attr:`TypedQueue.dead`."""
        return AsyncDeadLetters(self.sync.dead, self._threads)

    # -- Putting -----------------------------------------------------------------------------------------------------

    async def put(self, body: Body, **options: Unpack[PutOptions]) -> int:
        """Append one object; return its offset. Options and errors as :meth:`TypedQueue.put`.

        Notes
        -----
        Cancelled, its outcome is unknown: the message may have been put, or be put yet. The CancelledError
        carries a note about it. A caller that has to know puts again with the same ``dedup_id``.
        """

        def put(seconds: float | None) -> int:
            options["timeout"] = seconds
            return self.sync.put(body, **options)

        return await self._put(put, options.get("timeout"))

    async def put_many(
        self,
        bodies: Iterable[Body | Put],
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> range:
        """Append one batch atomically; as :meth:`TypedQueue.put_many`, and cancelled as :meth:`put`."""
        several = list(bodies)  # here: an iterable may not like another thread
        return await self._put(lambda seconds: self.sync.put_many(several, headers=headers, timeout=seconds), timeout)

    async def _put(self, put: Callable[[float | None], Result], timeout: float | None) -> Result:
        seconds = wait_for(True, timeout)
        return await self._threads.run_put(put, seconds, PUT_IS_UNKNOWN)

    # -- Taking ------------------------------------------------------------------------------------------------------

    async def receive(
        self, *, timeout: float | None = None, lease_seconds: Seconds | None = None
    ) -> AsyncDelivery[Body]:
        """Take one message: ``async with await queue.receive() as message`` acknowledges it, or gives it back.

        As :meth:`TypedQueue.receive`. The task that waits longest is served first. Cancelled, nothing is taken: a
        message that came at that moment is given back uncounted.
        """
        take = partial(self.sync.receive, timeout=0, lease_seconds=lease_seconds)
        taken = await self.takes.take(take, Delivery.release, wait_for(True, timeout))
        return AsyncDelivery(taken, self._threads)

    async def get(self, block: bool = True, timeout: float | None = None) -> Body:
        """Take one message, acknowledge it, and return its object: at most once, as :meth:`TypedQueue.get`.

        Cancelled while it acknowledges, the message may be finished, and its object lost.
        """
        delivery = await self.receive(timeout=wait_for(block, timeout))
        await delivery.ack()
        return delivery.body

    async def __aiter__(self) -> AsyncGenerator[Body, None]:
        """Yield objects, each already acknowledged, until the queue is shut down; as iterating :class:`TypedQueue`."""
        while True:
            try:
                body = await self.get()
            except ShutDown as error:
                log_left(self.name, error)
                return
            yield body

    async def receive_many(
        self, max_messages: int, *, timeout: float | None = None, lease_seconds: Seconds | None = None
    ) -> AsyncBatch[Body]:
        """Take from 1 to ``max_messages`` messages as soon as there is one; as :meth:`receive`."""
        seconds = wait_for(True, timeout)
        return AsyncBatch(await self._receive_many(check_count(max_messages), seconds, lease_seconds), self._threads)

    async def _receive_many(
        self, max_messages: int, timeout: float | None, lease_seconds: Seconds | None = None
    ) -> DeliveryBatch[Body]:
        take = partial(self.sync.receive_many, max_messages, timeout=0, lease_seconds=lease_seconds)
        return await self.takes.take(take, DeliveryBatch.release, timeout)

    def consume(
        self, *, prefetch: int = 100, timeout: float | None = None, lease_seconds: Seconds | None = None
    ) -> AsyncGenerator[AsyncDelivery[Body], None]:
        """Yield messages that the loop finishes by coming back for the next one; as :meth:`TypedQueue.consume`.

        The message that a cancelled task leaves is given back uncounted. A loop that is left in another way has failed
        its message, a moment later, when the event loop closes the generator.
        """
        loop = self.sync.raw.consuming(prefetch, 0, lease_seconds)
        consuming = AsyncConsuming(self.name, loop, self.sync.decode_delivery, self.takes, self._threads)
        return consuming.run(wait_for(True, timeout))

    def consume_many(
        self, max_messages: int, *, max_wait: float = 1.0, stop_when_empty: bool = False
    ) -> AsyncGenerator[AsyncBatch[Body], None]:
        """Yield batches for ever; each is acknowledged when the next one is asked for.

        As :meth:`TypedQueue.consume_many`. Messages that a cancelled task leaves are given back uncounted. A loop that
        is left by ``break`` or by an exception gives its batch back a moment later, when the event loop closes the
        generator; ``async with batch:`` in the loop settles it there.
        """
        seconds = wait_for(True, max_wait) or 0.0
        batches = AsyncBatches(self.name, self._receive_many, check_count(max_messages), seconds, self._threads)
        return batches.run(stop_when_empty=stop_when_empty)

    async def ack(self, deliveries: Iterable[AsyncDelivery[Body]]) -> None:
        """Finish messages of any takes in one step; as :meth:`TypedQueue.ack`."""
        await self._threads.run(self.sync.ack, [each.sync for each in deliveries])

    # -- The queue itself --------------------------------------------------------------------------------------------

    def upcast(
        self, from_version: int, to_version: int, *, schema: type | str | None = None
    ) -> Callable[[Function], Function]:
        """Have a function turn the plain data of an older version into that of a newer one; not awaited."""
        return self.sync.upcast(from_version, to_version, schema=schema)

    def decode(self, message: Message | BrowsedMessage | DeadLetter) -> Body:
        """Return the object of a message that was shown and not taken; not awaited."""
        return self.sync.decode(message)

    async def peek(self, max_messages: int = 1) -> list[Message]:
        """Return messages that would come next, as bytes; :meth:`decode` returns their objects."""
        return await self._threads.run(self.sync.peek, max_messages)

    async def browse(
        self,
        state: State = "ready",
        *,
        limit: int = 100,
        after: int | None = None,
        filter: str | None = None,  # as in PersistentQueue
    ) -> list[BrowsedMessage]:
        """Return messages of one state, as bytes; as :meth:`TypedQueue.browse`."""
        return await self._threads.run(self.sync.browse, state, limit=limit, after=after, filter=filter)

    def read(
        self,
        start: Start = "earliest",
        stop: Start | None = None,
        *,
        filter: str | None = None,  # as in PersistentQueue
        follow: bool = False,
        timeout: float | None = None,
    ) -> AsyncLogReading:
        """Return an iterator over the messages of the log, as bytes, for ``async for``; as :meth:`TypedQueue.read`.

        It begins with the first message that is asked for. Errors of :meth:`PersistentQueue.read` come from there.
        """
        begin = partial(self.sync.read, start, stop, filter=filter, follow=follow)
        return AsyncLogReading(begin, wait_for(True, timeout), self._threads)

    async def pause(self, until: datetime | float | None = None, reason: str | None = None) -> None:
        """Hand out nothing; as :meth:`TypedQueue.pause`."""
        await self._threads.run_patiently(self.sync.pause, until, reason)

    async def resume(self) -> None:
        """Hand messages out again."""
        await self._threads.run_patiently(self.sync.resume)

    async def purge(self) -> int:
        """Finish all messages that are ready now, unseen; return how many. As :meth:`TypedQueue.purge`."""
        return await self._threads.run(self.sync.purge)

    @property
    def settings(self) -> Settings:
        """The settings of the queue and its group, as they count now; as :attr:`PersistentQueue.settings`."""
        return self.sync.settings

    async def configure(self, *, reset: Iterable[str] = (), **settings: Unpack[Settings]) -> None:
        """Change settings of the queue and its group; as :meth:`PersistentQueue.configure`."""
        await self._threads.run(partial(self.sync.configure, reset=reset, **settings))

    async def qsize(self) -> int:
        """Return how many messages can be taken now; as :meth:`TypedQueue.qsize`."""
        return await self._threads.run(self.sync.qsize)

    async def stats(self) -> QueueStats:
        """Return figures about the queue; as :meth:`TypedQueue.stats`."""
        return await self._threads.run(self.sync.stats)

    def __repr__(self) -> str:
        return f"<AsyncQueue {self.name} at {self.path}>"
