"""Gathers messages into batches for an ``async for`` loop, and settles each batch when the loop continues."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Generic, TypeVar

from holdfast.errors import Empty, HoldfastError, LeaseError, ShutDown
from holdfast.queue.consumer.draining import log_left
from holdfast.queue.dispatch.delivery import Delivery, DeliveryBatch, by_queue
from holdfast.service.aio.async_delivery import AsyncBatch
from holdfast.service.aio.async_threads import Threads
from holdfast.service.batches import may_join

Body = TypeVar("Body")

Receive = Callable[[int, float], Awaitable[DeliveryBatch[Body]]]
"""Takes from 1 to so many messages, within so many seconds."""


class AsyncBatches(Generic[Body]):
    """The batches of one loop: see :meth:`AsyncQueue.consume_many`; they fill as those of :class:`Batches`."""

    def __init__(self, name: str, receive: Receive[Body], max_messages: int, max_wait: float, threads: Threads) -> None:
        self._name = name
        self._receive = receive
        self._max_messages = max_messages
        self._max_wait = max_wait
        self._threads = threads
        self._next: list[Delivery[Body]] = []

    async def run(self, *, stop_when_empty: bool) -> AsyncGenerator[AsyncBatch[Body], None]:
        """Yield batches until the queue is shut down, or nothing came for so long."""
        task = asyncio.current_task()
        gathered: list[Delivery[Body]] = []
        try:
            while True:
                gathered = [each for each in self._next if not each.is_settled]  # a lease may have run out
                self._next = []
                try:
                    await self._gather(gathered)
                except ShutDown as error:
                    log_left(self._name, error)
                    return
                if gathered:
                    batch = AsyncBatch(by_queue(gathered)[0], self._threads)
                    gathered = []
                    async with batch:
                        try:
                            yield batch
                        except GeneratorExit:  # by a break, or by an exception that is not told here
                            if task is not None and (task.cancelled() or task.cancelling()):
                                with suppress(LeaseError):
                                    await batch.release()
                            raise
                elif stop_when_empty:
                    return
        finally:
            for unused in (gathered, self._next):
                if unused:
                    self._threads.start(partial(_release, by_queue(unused)[0]))

    async def _gather(self, gathered: list[Delivery[Body]]) -> None:
        """Take messages until there are enough, or the time is over; a redelivered message comes alone."""
        deadline = time.monotonic() + self._max_wait
        while len(gathered) < self._max_messages and not (gathered and gathered[0].delivery_count > 1):
            left = max(0.0, deadline - time.monotonic())
            try:
                taken = await self._receive(self._max_messages - len(gathered), left)
            except Empty:
                return
            except ShutDown:
                if not gathered:
                    raise
                return
            if gathered and not may_join(taken, gathered):
                self._next = list(taken)
                return
            gathered += taken


def _release(batch: DeliveryBatch[Body]) -> None:
    with suppress(HoldfastError):  # a queue that was closed meanwhile has given everything back
        batch.release()
