"""Transactions over the queues of a service, for a task: all of it, or nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from holdfast.queue.options.arguments import wait_for
from holdfast.queue.options.put_options import Put, Seconds
from holdfast.queue.transactions.transaction_state import State
from holdfast.service.aio.async_delivery import AsyncDelivery
from holdfast.service.aio.async_queue import AsyncQueue
from holdfast.service.aio.async_threads import Threads
from holdfast.service.service_transaction import ServiceTransaction

Body = TypeVar("Body")

COMMIT_IS_UNKNOWN = (
    "cancelled during the commit: its outcome is not known yet; the transaction's state shows it once it "
    "is no longer open"
)


class AsyncTransaction:
    """A transaction over any queues of a service; made by :meth:`AsyncQueueService.transaction`.

    ``async with`` commits on a clean exit and aborts on an exception. If the task is cancelled it aborts as well, and
    received messages come again uncounted. For one task at a time. docs/transactions.md.

    Attributes
    ----------
    sync : ServiceTransaction
        The same for threads.
    """

    def __init__(self, sync: ServiceTransaction, threads: Threads) -> None:
        self.sync = sync
        self._threads = threads
        self._queues: dict[str, AsyncQueue[Any]] = {}

    @property
    def id(self) -> str:
        """Its name, 32 hexadecimal digits."""
        return self.sync.id

    @property
    def state(self) -> State:
        """Its state."""
        return self.sync.state

    # -- Work --------------------------------------------------------------------------------------------------------

    async def put(
        self,
        queue: AsyncQueue[Body],
        body: Body,
        *,
        headers: Mapping[str, str] | None = None,
        delay: Seconds | None = None,
        not_before: datetime | float | None = None,
        priority: int = 0,
        ttl: Seconds | None = None,
        order_key: str | None = None,
    ) -> None:
        """Add one object to a queue; as :meth:`ServiceTransaction.put`."""
        self._queues[queue.name] = queue
        await self._threads.run(
            self.sync.put,
            queue.sync,
            body,
            headers=headers,
            delay=delay,
            not_before=not_before,
            priority=priority,
            ttl=ttl,
            order_key=order_key,
        )

    async def put_many(self, queue: AsyncQueue[Body], bodies: Iterable[Body | Put]) -> None:
        """Add objects to a queue, in order; as :meth:`ServiceTransaction.put_many`."""
        self._queues[queue.name] = queue
        await self._threads.run(self.sync.put_many, queue.sync, list(bodies))

    async def receive(self, queue: AsyncQueue[Body], *, timeout: float | None = None) -> AsyncDelivery[Body]:
        """Take one message of a queue into the transaction; as :meth:`ServiceTransaction.receive`.

        Cancelled, nothing is taken, or it comes again uncounted at the end of the transaction.
        """
        self._queues[queue.name] = queue
        take = partial(self.sync.receive, queue.sync, timeout=0)
        taken = await queue.takes.take(take, _leave_to_transaction, wait_for(True, timeout), is_alike=False)
        return AsyncDelivery(taken, self._threads)

    async def ack(self, items: AsyncDelivery[Any] | Sequence[AsyncDelivery[Any]]) -> None:
        """Finish messages when the transaction commits; as :meth:`ServiceTransaction.ack`."""
        several = (items,) if isinstance(items, AsyncDelivery) else items
        await self._threads.run(self.sync.ack, [each.sync for each in several])

    # -- Ending ------------------------------------------------------------------------------------------------------

    async def commit(self) -> dict[AsyncQueue[Any], range]:
        """Make it happen in all queues, or in none; return the offsets of the puts, by queue.

        Raises as :meth:`ServiceTransaction.commit`. If it is cancelled, its outcome is unknown; a note on the
        CancelledError tells it.
        """
        offsets = await self._threads.run_patiently(self.sync.commit, cancelled=COMMIT_IS_UNKNOWN)
        return {self._queues[queue.name]: each for queue, each in offsets.items()}

    async def abort(self) -> None:
        """Discard everything: puts are forgotten, messages taken are ready again."""
        await self._threads.run(self.sync.abort)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        leave = partial(self.sync.__exit__, kind, error, trace)
        if error is None:
            await self._threads.run_patiently(leave, cancelled=COMMIT_IS_UNKNOWN)
        elif isinstance(error, asyncio.CancelledError):
            await self._threads.run(self.sync.call_off)
        else:
            await self._threads.run(leave)

    def __repr__(self) -> str:
        return f"<AsyncTransaction {self.id}: {self.state.value}>"


def _leave_to_transaction(_: object) -> None:
    """Give back nothing: the transaction does, at its end."""
