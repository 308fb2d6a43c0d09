"""Runs the handler of one queue in tasks of the event loop: takes, calls, settles, stops."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, cast

from holdfast.errors import ClosedError, HoldfastError, RetryableError, ShutDown
from holdfast.queue.consumer.draining import log_left
from holdfast.queue.dispatch.delivery import Delivery
from holdfast.service.aio.async_delivery import AsyncDelivery
from holdfast.service.aio.async_queue import AsyncQueue
from holdfast.service.aio.async_threads import Threads
from holdfast.service.workers import patience
from holdfast.service.workers.consumer import Consumer, name_of
from holdfast.service.workers.handled_by import handled_by
from holdfast.service.workers.settle_failed import note_left, report_failed, settle_failed
from holdfast.service.workers.settlement import RELEASE, Settlement, check_result, settlement_of
from holdfast.service.workers.settler import Settler

logger = logging.getLogger("holdfast")

CANCEL_SECONDS = 5.0
"""So long a handler may take to end that was cancelled when its grace was over."""

_ROOM_SECONDS = 0.01


class AsyncEngine:
    """The tasks of one consumer.

    Each takes a message, works on it, and takes the next. Acknowledging is left to a :class:`Settler`, so no handler
    waits for the disk.

    Parameters
    ----------
    consumer : Consumer
        The handler, an ``async def``, and how it runs.
    queue : AsyncQueue
        The queue of the messages.
    threads : Threads
        What settles those that failed.
    owner : object
        What runs it, for handlers that ask: see ``handled_by``.
    """

    def __init__(self, consumer: Consumer, queue: AsyncQueue[Any], threads: Threads, owner: object) -> None:
        self._consumer = consumer
        self._queue = queue
        self._threads = threads
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._in_hand: dict[asyncio.Task[None], Delivery[Any]] = {}
        self._is_stopping = False
        self._is_drained = False
        self._stop = asyncio.Event()
        self._settled = asyncio.Event()
        self._failure: BaseException | None = None
        self._settler = Settler(queue.name, self._fail_from_thread, self._end_from_thread)

    async def run(self, stop: asyncio.Event, grace_seconds: float) -> None:
        """Work until ``stop`` is set, or the queue is shut down and drained; raises the error that stops it.

        Then take no more, let handlers run for ``grace_seconds``, cancel the rest, and give their messages back. If the
        running task is cancelled, there is no grace.
        """
        self._stop = stop
        self._settler.start()
        workers = {asyncio.create_task(self._work()) for _ in range(self._consumer.concurrency)}
        stopping = asyncio.create_task(stop.wait())
        try:
            left = set(workers)
            while left and not stop.is_set():
                ended, _ = await asyncio.wait({*left, stopping}, return_when=asyncio.FIRST_COMPLETED)
                left -= ended
            self._is_stopping = True
            for idle in left - self._in_hand.keys():
                idle.cancel()
            if left:
                await asyncio.wait(left, timeout=grace_seconds)
        finally:
            self._is_stopping = True
            stopping.cancel()
            await self._end(workers)
        if self._failure is not None:
            raise self._failure
        if self._is_drained and not stop.is_set():
            with suppress(HoldfastError):  # it was closed meanwhile
                log_left(self._queue.name, self._queue.sync.raw.ending())

    async def _end(self, workers: set[asyncio.Task[None]]) -> None:
        """Cancel handlers that still run, and return once all finished messages are acknowledged.

        Cancelled once more, wait for nothing.
        """
        left = {each for each in workers if not each.done()}
        for each in left:
            each.cancel()
        try:
            if left:
                await asyncio.wait(left, timeout=CANCEL_SECONDS)
        finally:
            for delivery in self._in_hand.values():
                logger.error("%s does not end though it was cancelled; its message is given back", self._name)
                self._threads.start(partial(_release, delivery))
            self._settler.end()
        await self._settled.wait()

    @property
    def _name(self) -> str:
        return name_of(self._consumer.handler)

    # -- The tasks ---------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        task = cast("asyncio.Task[None]", asyncio.current_task())
        handled_by.set(self._owner)
        try:
            while not self._is_stopping:
                try:
                    await self._work_on_next(task)
                except asyncio.CancelledError:
                    if not await self._is_called_off(task):
                        logger.warning(
                            "the program has cancelled a task of %s, which takes the next message", self._name
                        )
        except ShutDown:
            self._is_drained = True
        except BaseException as error:
            self._fail(error)

    async def _work_on_next(self, task: asyncio.Task[None]) -> None:
        while not self._is_stopping and task.cancelling():
            task.uncancel()  # a handler has kept it from being cancelled: that is not for the next message
        delivery = await self._receive()
        self._in_hand[task] = delivery
        try:
            await self._handle(delivery, task)
        finally:
            del self._in_hand[task]

    async def _receive(self) -> Delivery[Any]:
        """Take a message; an owner that does not answer is asked again each second, as by ``patiently``."""
        is_logged = False
        while True:
            try:
                return (await self._queue.receive()).sync
            except RetryableError as error:
                if not is_logged:
                    logger.error("%s: trying again each second: %s", self._queue.name, error)
                is_logged = True
            await asyncio.sleep(patience.RETRY_SECONDS)  # a stop cancels it

    async def _is_called_off(self, task: asyncio.Task[None]) -> bool:
        """Whether a task that was cancelled is to end; a handler can cancel its task too, which is a fault of its own.

        ``run`` is given a moment: when an event loop ends, all tasks are cancelled, in any order.
        """
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        while not self._is_stopping and task.cancelling():
            task.uncancel()
        return self._is_stopping

    async def _handle(self, delivery: Delivery[Any], task: asyncio.Task[None]) -> None:
        delivery.is_open = True  # no lease runs out while this process has it in hand
        if delivery.is_settled:  # its lease ran out while the event loop was busy: it comes again
            return
        settlement = await self._call(delivery, task)
        if settlement is not None:
            report_failed(self._queue.name, settlement, delivery)
            await self._settle(
                partial(settle_failed, self._queue.name, settlement, delivery, patience.AT_ONCE), delivery
            )
        elif delivery.delivery_count > 1:  # before the next one, which may be the one that kills this process each time
            await self._settle(partial(self._settler.acknowledge, (delivery,), patience.AT_ONCE), delivery)
        else:
            try:
                while not self._settler.wait_for_space(0):
                    await asyncio.sleep(_ROOM_SECONDS)
            finally:  # also if it is cancelled: its work is done
                self._settler.add(delivery)

    async def _settle(self, settle: Callable[[], None], delivery: Delivery[Any]) -> None:
        """Settle a message; an owner that does not answer is asked again each second, until a stop.

        No thread waits for it meanwhile: all queues of the service share them.
        """
        is_logged = False
        while True:
            try:
                return await self._threads.run(settle)
            except RetryableError as error:
                if self._stop.is_set():
                    note_left(self._queue.name, delivery, error)
                    return
                if not is_logged:
                    logger.error("%s: trying again each second: %s", self._queue.name, error)
                is_logged = True
            delivery.is_open = True
            try:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), patience.RETRY_SECONDS)
            except BaseException:
                delivery.is_open = False
                raise

    async def _call(self, delivery: Delivery[Any], task: asyncio.Task[None]) -> Settlement | None:
        """Call the handler; None if it has returned, and the message is done."""
        try:
            handed = (AsyncDelivery(delivery, self._threads),) if self._consumer.takes_delivery else ()
            result = await self._consumer.handler(delivery.body, *handed)
            if result is not None:
                check_result(result)
        except BaseException as error:  # sys.exit() in a handler fails a message, not the worker
            if isinstance(error, asyncio.CancelledError) and task.cancelling() and await self._is_called_off(task):
                return Settlement(RELEASE)  # its grace is over: it has not failed
            return settlement_of(error, delivery.delivery_count, self._consumer.retry)
        return None

    # -- Ending ------------------------------------------------------------------------------------------------------

    def _fail(self, error: BaseException) -> None:
        """Stop everything, because of that; a service that was closed has stopped already."""
        if self._failure is None and not (isinstance(error, ClosedError) and self._stop.is_set()):
            self._failure = error
            logger.critical("%s: stopping its consumer, which cannot continue: %s", self._queue.name, error)
        self._stop.set()

    def _fail_from_thread(self, error: BaseException) -> None:
        self._tell(partial(self._fail, error))

    def _end_from_thread(self) -> None:
        self._tell(self._settled.set)

    def _tell(self, call: Callable[[], object]) -> None:
        with suppress(RuntimeError):  # the loop is closed: no task waits for this any more
            self._loop.call_soon_threadsafe(call)


def _release(delivery: Delivery[Any]) -> None:
    try:
        with suppress(HoldfastError):  # settled by the handler, by the closing of its queue, or a transaction has it
            delivery.release()
    finally:
        delivery.is_open = False
