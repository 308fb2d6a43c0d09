"""A message in the hands of a task: its settling verbs are awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Generic, Self, TypeVar, overload

from holdfast.errors import LeaseError, RetryableError
from holdfast.queue.dispatch.delivery import Delivery, DeliveryBatch
from holdfast.queue.options.put_options import Seconds
from holdfast.service.aio.async_threads import Threads

Body = TypeVar("Body")


class AsyncDelivery(Generic[Body]):
    """One handing-out of a message. ``async with`` acknowledges it on a clean exit; an exception gives it back.

    A task that is cancelled has not failed: then the message is given back uncounted, and comes again at once.

    Attributes
    ----------
    body : object
        The object that was put.
    sync : Delivery
        The same for threads.
    """

    __slots__ = ("_threads", "body", "sync")

    def __init__(self, sync: Delivery[Body], threads: Threads) -> None:
        self.sync = sync
        self.body = sync.body
        self._threads = threads

    # -- What was put ------------------------------------------------------------------------------------------------

    @property
    def payload(self) -> bytes:
        """The bytes on the disk."""
        return self.sync.payload

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers beside the payload, with those of the serializer."""
        return self.sync.headers

    @property
    def offset(self) -> int:
        """Number of the message in its queue."""
        return self.sync.offset

    @property
    def timestamp_ns(self) -> int:
        """When it was put, in nanoseconds since the epoch."""
        return self.sync.timestamp_ns

    @property
    def delivery_count(self) -> int:
        """How often the message has been delivered, this time included."""
        return self.sync.delivery_count

    @property
    def is_settled(self) -> bool:
        """Whether it was acknowledged or given back, or its lease has run out."""
        return self.sync.is_settled

    @property
    def is_last(self) -> bool:
        """Whether the message becomes a dead letter if this delivery fails."""
        return self.sync.is_last

    # -- Verbs -------------------------------------------------------------------------------------------------------

    async def ack(self) -> None:
        """Finish the message; as :meth:`Delivery.ack`."""
        await self._threads.run(self.sync.ack)

    async def nack(self, delay: Seconds | None = None, *, error: BaseException | None = None) -> None:
        """Give the message back: it failed; as :meth:`Delivery.nack`."""
        await self._threads.run(self.sync.nack, delay, error=error)

    async def reject(self, reason: str) -> None:
        """Make the message a dead letter now; as :meth:`Delivery.reject`."""
        await self._threads.run(self.sync.reject, reason)

    async def park(self, error: BaseException) -> None:
        """Make the message a dead letter, ``undecodable``, uncounted; as :meth:`Delivery.park`."""
        await self._threads.run(self.sync.park, error)

    async def release(self) -> None:
        """Give the message back as if it had never been handed out; as :meth:`Delivery.release`."""
        await self._threads.run(self.sync.release)

    async def extend(self, seconds: Seconds | None = None) -> None:
        """Have the lease run out ``seconds`` from now; as :meth:`Delivery.extend`."""
        await self._threads.run(self.sync.extend, seconds)

    async def __aenter__(self) -> Self:
        self.sync.__enter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        leave = partial(self.sync.__exit__, kind, error, trace)
        if isinstance(error, asyncio.CancelledError):
            await self._threads.run(_call_off, (self.sync,), leave)
        elif _has_ended(self.sync):
            leave()
        else:
            await _left(self._threads, leave, (self.sync,))

    def __repr__(self) -> str:
        return f"<AsyncDelivery of offset {self.offset}, number {self.delivery_count}: {self.body!r}>"


class AsyncBatch(Sequence[AsyncDelivery[Body]], Generic[Body]):
    """Messages that were delivered together; ``async with`` settles those that were not settled one by one.

    Each verb takes some of them, or all that are not settled yet, in one step; as :class:`DeliveryBatch`.

    Attributes
    ----------
    sync : DeliveryBatch
        The same for threads.
    """

    __slots__ = ("_deliveries", "_threads", "sync")

    def __init__(self, sync: DeliveryBatch[Body], threads: Threads) -> None:
        self.sync = sync
        self._threads = threads
        self._deliveries = [AsyncDelivery(each, threads) for each in sync]

    @property
    def bodies(self) -> list[Body]:
        """The object that was put."""
        return [each.body for each in self._deliveries]

    async def ack(self, items: Sequence[AsyncDelivery[Body]] | None = None) -> None:
        """Finish messages."""
        await self._threads.run(self.sync.ack, _sync(items))

    async def nack(self, items: Sequence[AsyncDelivery[Body]] | None = None, *, delay: Seconds | None = None) -> None:
        """Give messages back that failed."""
        await self._threads.run(self.sync.nack, _sync(items), delay=delay)

    async def reject(self, reason: str, items: Sequence[AsyncDelivery[Body]] | None = None) -> None:
        """Make messages dead letters."""
        await self._threads.run(self.sync.reject, reason, _sync(items))

    async def release(self, items: Sequence[AsyncDelivery[Body]] | None = None) -> None:
        """Give messages back that were not tried."""
        await self._threads.run(self.sync.release, _sync(items))

    async def extend(self, seconds: Seconds | None = None, items: Sequence[AsyncDelivery[Body]] | None = None) -> None:
        """Lease messages for longer."""
        await self._threads.run(self.sync.extend, seconds, _sync(items))

    @overload
    def __getitem__(self, index: int) -> AsyncDelivery[Body]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[AsyncDelivery[Body]]: ...
    def __getitem__(self, index: int | slice) -> AsyncDelivery[Body] | Sequence[AsyncDelivery[Body]]:
        return self._deliveries[index]

    def __len__(self) -> int:
        return len(self._deliveries)

    async def __aenter__(self) -> Self:
        self.sync.__enter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        leave = partial(self.sync.__exit__, kind, error, trace)
        if isinstance(error, asyncio.CancelledError):
            await self._threads.run(_call_off, self.sync, leave)
        elif all(_has_ended(each) for each in self.sync):
            leave()
        else:
            await _left(self._threads, leave, self.sync)


def _sync(items: Sequence[AsyncDelivery[Body]] | None) -> list[Delivery[Body]] | None:
    return None if items is None else [each.sync for each in items]


def _has_ended(delivery: Delivery[Body]) -> bool:
    """Whether leaving the block changes nothing on the disk, and raises nothing."""
    return delivery.is_settled and not delivery.has_expired


async def _left(threads: Threads, leave: Callable[[], None], deliveries: Sequence[Delivery[Body]]) -> None:
    """Leave a block in the background; what cannot be settled comes again when its lease runs out."""
    try:
        await threads.run(leave)
    except RetryableError:  # no thread could be started, say
        for each in deliveries:
            each.is_open = False
        raise


def _call_off(deliveries: Sequence[Delivery[Body]], leave: Callable[[], None]) -> None:
    """Give back messages that are neither settled nor a transaction's, uncounted, then leave the block."""
    try:
        for each in deliveries:
            if not (each.is_settled or each.holder):
                with suppress(LeaseError):  # it ran out just now
                    each.release()
    finally:
        leave()
