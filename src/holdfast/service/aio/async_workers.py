"""The consumers of a service for asyncio: run until they are stopped.

Handlers that are an ``async def`` run in tasks of the event loop, the others in threads or worker processes, as a
:class:`QueueService` runs them; all of them start and stop together.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

from holdfast.errors import ConfigError, UsageError
from holdfast.service.aio.async_engine import AsyncEngine
from holdfast.service.aio.async_threads import Threads
from holdfast.service.aio.thread_pool import ThreadPool, outcome_of
from holdfast.service.queue_service import QueueService
from holdfast.service.workers.consumer import Consumer, name_of
from holdfast.service.workers.handled_by import handled_by
from holdfast.service.workers.processes.worker_role import is_worker_process
from holdfast.service.workers.workers import Workers

logger = logging.getLogger("holdfast")

SIGNAL_SECONDS = 1.0
"""The longest wait of the event loop: a signal that came just before a wait is handled when the wait ends."""

MakeEngine = Callable[[Consumer], Coroutine[Any, Any, AsyncEngine]]


class AsyncWorkers:
    """Runs the consumers of one service.

    Parameters
    ----------
    sync : QueueService
        The same service for threads, with the consumers whose handlers are not asynchronous.
    make_engine : callable
        Opens the queue of an asynchronous consumer, and returns what runs it.
    threads : Threads
        Tells whether the service is open.
    """

    def __init__(self, sync: QueueService, make_engine: MakeEngine, threads: Threads) -> None:
        self._sync = sync
        self._make_engine = make_engine
        self._threads = threads
        self._consumers: dict[str, Consumer] = {}
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self._over: Future[None] = Future()
        self._is_stop_wanted = False
        self._then: Callable[[], Coroutine[Any, Any, None]] | None = None

    @property
    def _others(self) -> Workers:
        return self._sync.workers

    def add(self, consumer: Consumer) -> None:
        """Register one; raises ConfigError if its queue has one."""
        before = {**self._others.consumers, **self._consumers}.get(consumer.queue_name)
        if before is not None:
            raise ConfigError(
                f"queue {consumer.queue_name!r} is handled by {name_of(before.handler)} already; it takes one consumer"
            )
        if not consumer.is_async:
            self._others.add(consumer)
            return
        if consumer.processes:
            raise ConfigError(f"{name_of(consumer.handler)} is async, which worker processes do not run: make it a def")
        self._consumers[consumer.queue_name] = consumer

    def check_unhandled(self, queue_name: str) -> None:
        """Refuse a queue that an asynchronous handler is for; raises UsageError."""
        if (consumer := self._consumers.get(queue_name)) is not None:
            raise UsageError(f"queue {queue_name!r} has the handler {name_of(consumer.handler)}: it is not deleted")

    async def run(self, grace_seconds: float) -> None:
        """Run them all until a signal comes, or :meth:`stop`; as :meth:`AsyncQueueService.run`."""
        if is_worker_process():
            logger.debug("run() does nothing in a worker process")
            return
        if not grace_seconds >= 0:
            raise ConfigError(f"grace_seconds is a number of seconds from 0 on, not {grace_seconds!r}")
        if not self._consumers and not self._others.consumers:
            raise UsageError("this service has no consumers: register handlers with @service.consumer(queue)")
        over: Future[None] = Future()
        with self._lock:
            if self._loop is not None and not self._loop.is_closed():
                raise UsageError("the consumers of this service run already: stop() them first")
            self._loop, self._stop, self._over = asyncio.get_running_loop(), asyncio.Event(), over
            if self._is_stop_wanted:
                self._stop.set()
        try:
            await self._run(self._stop, grace_seconds)
        finally:
            then = None
            with self._lock:
                if self._over is over:  # else its loop was closed with it unfinished, and another one runs
                    self._loop, self._is_stop_wanted = None, False
                    then, self._then = self._then, None
            over.set_result(None)
            if then is not None:
                await then()

    def stop(self) -> None:
        """Have :meth:`run` return; one that begins later returns at once. From any thread."""
        with self._lock:
            loop, stop = self._loop, self._stop
            self._is_stop_wanted = True
        if loop is not None:
            try:
                loop.call_soon_threadsafe(stop.set)
            except RuntimeError:  # that loop is closed: only its thread may still run
                if self._others.is_running:
                    self._others.stop()

    async def close(self, then: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Stop, and wait until :meth:`run` has returned.

        A handler does not wait, because it would wait for itself: False, and :meth:`run` awaits ``then`` in the end.
        """
        with self._lock:
            loop, over = self._loop, self._over
            is_handler = loop is not None and handled_by.get() in (self, self._others)
            if is_handler:
                self._then = then
        if loop is None or loop.is_closed():
            return True
        self.stop()
        if not is_handler:
            await outcome_of(over)
        return not is_handler

    # -- Inside ------------------------------------------------------------------------------------------------------

    async def _run(self, stop: asyncio.Event, grace_seconds: float) -> None:
        engines = [await self._make_engine(each) for each in self._consumers.values()]
        works: list[Coroutine[Any, Any, None]] = [each.run(stop, grace_seconds) for each in engines]
        if self._others.consumers:
            works.append(self._run_others(stop, grace_seconds))
        runs = [asyncio.create_task(_stopping_all(work, stop)) for work in works]
        try:
            with _signals_heard(stop, runs):
                left = set(runs)
                while left:
                    _, left = await asyncio.wait(left, timeout=SIGNAL_SECONDS)
        finally:
            for run in runs:
                run.cancel()
            results = await asyncio.gather(*runs, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
                raise result

    async def _run_others(self, stop: asyncio.Event, grace_seconds: float) -> None:
        """Run the handlers that are not asynchronous, from a thread."""
        pool = ThreadPool("holdfast-asyncio-workers", 1)
        ended = pool.submit(partial(self._sync.run, grace_seconds=grace_seconds))
        running = asyncio.wrap_future(ended)
        pool.close(is_waiting=False)
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                self._sync.stop()
            await asyncio.shield(running)
        except asyncio.CancelledError:
            self._sync.stop()
            self._others.hurry()
            await running
            raise
        finally:
            stopping.cancel()
            ended.add_done_callback(lambda _: self._others.forget_commands())  # those that came too late for it


async def _stopping_all(work: Coroutine[Any, Any, None], stop: asyncio.Event) -> None:
    """Run one consumer; if one cannot continue, all stop."""
    try:
        await work
    except BaseException:
        stop.set()
        raise


@contextmanager
def _signals_heard(stop: asyncio.Event, runs: Sequence[asyncio.Task[None]]) -> Iterator[None]:
    """Stop for SIGINT and SIGTERM, and end at once for a second one; only the main thread can hear them.

    Not by ``loop.add_signal_handler``, which would forget the program's own handlers in the loop.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def hear() -> None:
        if not stop.is_set():
            stop.set()
            return
        for run in runs:
            run.cancel()

    loop = asyncio.get_running_loop()

    def ring(number: int, frame: FrameType | None) -> None:
        try:
            loop.call_soon_threadsafe(hear)
        except RuntimeError:  # the loop was closed, and run() will never return
            restore(number)
            signal.raise_signal(number)

    def restore(number: int) -> None:
        handler = before[number]
        signal.signal(number, signal.SIG_DFL if handler is None else handler)

    before: dict[int, Any] = {number: signal.signal(number, ring) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number in before:
            restore(number)
