"""One loop over the messages of a queue, for a task: it takes them ahead, as the loop of a thread does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import Generic, TypeVar

from holdfast.errors import Empty, ShutDown
from holdfast.queue.consumer.consuming import Consuming
from holdfast.queue.consumer.draining import log_left
from holdfast.queue.dispatch.delivery import Delivery
from holdfast.service.aio.async_delivery import AsyncDelivery
from holdfast.service.aio.async_takes import Takes
from holdfast.service.aio.async_threads import Threads

Body = TypeVar("Body")


class AsyncConsuming(Generic[Body]):
    """The messages of one loop: see :meth:`AsyncQueue.consume`.

    Parameters
    ----------
    name : str
        The queue's, for the log.
    loop : Consuming
        The same loop of a thread, whose takes do not wait.
    decode : callable
        Decodes a delivery; False if it is in hand no more.
    takes, threads
        Wait for messages, and settle them.
    """

    def __init__(
        self, name: str, loop: Consuming, decode: Callable[[Delivery[Body]], bool], takes: Takes, threads: Threads
    ) -> None:
        self._name = name
        self._loop = loop
        self._decode = decode
        self._takes = takes
        self._threads = threads

    async def run(self, timeout: float | None) -> AsyncGenerator[AsyncDelivery[Body], None]:
        """Yield messages until nothing has come for ``timeout`` seconds, or the queue is shut down."""
        loop, task = self._loop, asyncio.current_task()
        failed: Delivery[Body] | None = None
        try:
            while True:
                await self._takes.take(self._take, lambda _: self._leave(None), timeout, is_alike=False)
                for delivery in loop.taken:
                    if not delivery.is_settled:
                        try:
                            yield AsyncDelivery(delivery, self._threads)
                        except BaseException:  # by a break, or by an exception that is not told here
                            if task is None or not (task.cancelled() or task.cancelling()):
                                failed = delivery
                            raise
                    loop.finished_count += 1
        except Empty:
            return
        except ShutDown as error:
            log_left(self._name, error)
        finally:
            self._threads.start(partial(self._leave, failed))

    def _take(self) -> None:
        """Finish what the loop has left behind, and take more; in a thread. Raises queue.Empty."""
        self._loop.take()
        for each in self._loop.taken:
            self._decode(each)

    def _leave(self, failed: Delivery[Body] | None) -> None:
        """Acknowledge what is finished, note the message that has failed, and give the rest back; in a thread."""
        if failed is not None:
            self._loop.fail(failed)
        self._loop.leave()
