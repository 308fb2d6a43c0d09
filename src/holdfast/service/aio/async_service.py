"""``AsyncQueueService``: the queues of a directory for applications on asyncio. docs/asyncio.md."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack, overload

from holdfast.errors import ClosedError, ConfigError
from holdfast.queue.options.retry_policy import Backoff
from holdfast.queue.transactions.transaction import TIMEOUT_SECONDS
from holdfast.service.aio.async_engine import AsyncEngine
from holdfast.service.aio.async_queue import AsyncQueue
from holdfast.service.aio.async_threads import Threads
from holdfast.service.aio.async_transaction import AsyncTransaction
from holdfast.service.aio.async_workers import AsyncWorkers
from holdfast.service.aio.thread_pool import ThreadPool, make_call, outcome_of
from holdfast.service.open_options import QueueOptions, check_settings, place_of_call
from holdfast.service.queue_service import QueueService
from holdfast.service.typed_queue import TypedQueue
from holdfast.service.workers.consumer import (
    CONSUMER_OPTIONS,
    Consumer,
    Register,
    check_annotation,
    make_consumer,
    name_of_queue,
)
from holdfast.service.workers.workers import GRACE_SECONDS

Body = TypeVar("Body")
Other = TypeVar("Other")
Third = TypeVar("Third")
Function = TypeVar("Function", bound=Callable[..., Any])


class AsyncQueueService:
    """Opens the queues of one directory for tasks: the names of :class:`QueueService`, awaited.

    Parameters
    ----------
    path : str or path-like
        The service's directory.
    **options
        Those of :class:`QueueService`, and its errors.

    Attributes
    ----------
    sync : QueueService
        The same service for threads.

    Notes
    -----
    Nothing here makes an event loop wait: calls run in threads of the service. Tasks of any event loop may
    share it, and threads use ``sync`` beside them. Methods that may wait or touch the disk are awaited;
    ``transaction``, ``consumer``, ``stop`` and ``queues`` are not. docs/asyncio.md.
    """

    def __init__(self, path: str | os.PathLike[str], **options: Any) -> None:
        self.sync = QueueService(path, **options)
        self._threads = Threads(str(self.sync.path))
        self._lock = threading.Lock()
        self._queues: dict[TypedQueue[Any], AsyncQueue[Any]] = {}
        self._workers = AsyncWorkers(self.sync, self._make_engine, self._threads)
        self._closer = ThreadPool("holdfast-asyncio-close", 1)
        self._closing: Future[None] = Future()
        self._has_begun_to_close = False

    @property
    def path(self) -> Path:
        """The service's directory."""
        return self.sync.path

    # -- Queues ------------------------------------------------------------------------------------------------------

    @overload
    async def queue(self, name: str, *, type: type[Body], **settings: Unpack[QueueOptions]) -> AsyncQueue[Body]: ...
    @overload
    async def queue(
        self, name: str, *, type: tuple[type[Body], type[Other]], **settings: Unpack[QueueOptions]
    ) -> AsyncQueue[Body | Other]: ...
    @overload
    async def queue(
        self, name: str, *, type: tuple[type[Body], type[Other], type[Third]], **settings: Unpack[QueueOptions]
    ) -> AsyncQueue[Body | Other | Third]: ...
    @overload
    async def queue(self, name: str, *, type: Any = None, **settings: Unpack[QueueOptions]) -> AsyncQueue[Any]: ...
    async def queue(self, name: str, *, type: Any = None, **settings: Unpack[QueueOptions]) -> AsyncQueue[Any]:
        """Open a queue, or return it if it is open; as :meth:`QueueService.queue`."""
        return self._of(await self._threads.run_patiently(self.sync.open_queue, name, type, settings, place_of_call()))

    @property
    def queues(self) -> Mapping[str, AsyncQueue[Any]]:
        """The queues that are open, by name, as a copy."""
        return {name: self._of(queue) for name, queue in self.sync.queues.items()}

    async def delete_queue(self, name: str) -> None:
        """Delete a queue with all of its messages, for good; as :meth:`QueueService.delete_queue`."""
        self._workers.check_unhandled(name)
        await self._threads.run_patiently(self._delete_queue, name)

    async def adopt(self, path: str | os.PathLike[str], *, name: str | None = None) -> AsyncQueue[Any]:
        """Take over the queue of a node that died; as :meth:`QueueService.adopt`."""
        return self._of(await self._threads.run_patiently(self.sync.adopt, path, name=name))

    def transaction(self, *, timeout: float = TIMEOUT_SECONDS) -> AsyncTransaction:
        """Begin a transaction over any of the queues: ``async with`` commits on a clean exit.

        Examples
        --------
        >>> async with service.transaction() as tx:  # doctest: +SKIP
        ...     order = await tx.receive(orders)
        ...     await tx.put(invoices, invoice_for(order.body))
        ...     await tx.ack(order)
        """
        self._threads.check()
        return AsyncTransaction(self.sync.transaction(timeout=timeout), self._threads)

    # -- Consumers ---------------------------------------------------------------------------------------------------

    @overload
    def consumer(
        self,
        queue: AsyncQueue[Body],
        *,
        concurrency: int = 1,
        processes: int = 0,
        retry: Backoff | Sequence[float] | None = None,
        type: Any = None,
        **settings: Unpack[QueueOptions],
    ) -> Register[Body]: ...
    @overload
    def consumer(
        self,
        queue: str,
        *,
        concurrency: int = 1,
        processes: int = 0,
        retry: Backoff | Sequence[float] | None = None,
        type: Any = None,
        **settings: Unpack[QueueOptions],
    ) -> Callable[[Function], Function]: ...
    def consumer(
        self,
        queue: str | AsyncQueue[Any],
        *,
        concurrency: int = 1,
        processes: int = 0,
        retry: Backoff | Sequence[float] | None = None,
        type: Any = None,
        **settings: Unpack[QueueOptions],
    ) -> Any:
        """Have a function handle the messages of a queue, once :meth:`run` is awaited; the function stays as it is.

        Parameters
        ----------
        queue : str or AsyncQueue
            Opened by :meth:`run` at the latest; one consumer to a queue.
        concurrency : int
            How many messages are handled at a time: in tasks if the handler is an ``async def``, else in threads.
        processes, retry, type, **settings
            As :meth:`QueueService.consumer`, and raises as that. Worker processes are for handlers that are not async.

        Notes
        -----
        The handler takes the object, or the object and its delivery: an :class:`AsyncDelivery` if it is
        async. One that is cancelled because its grace is over gives its message back uncounted. docs/asyncio.md.
        """
        name = name_of_queue(queue, AsyncQueue)
        check_settings(settings, "consumer", *CONSUMER_OPTIONS)
        place = place_of_call()

        def register(handler: Function) -> Function:
            if not isinstance(queue, str) and self.queues.get(name) is not queue:
                raise ConfigError(f"{queue!r} does not belong to this service: register it with the one that opened it")
            consumer = make_consumer(
                name,
                handler,
                concurrency=concurrency,
                processes=processes,
                retry=retry,
                type=type,
                settings=dict(settings),
                place=place,
            )
            if not isinstance(queue, str):
                check_annotation(handler, name, queue.sync.codec.types)
            self._workers.add(consumer)
            return handler

        return register

    async def run(self, *, grace_seconds: float = GRACE_SECONDS) -> None:
        """Run all consumers until SIGINT or SIGTERM comes, or :meth:`stop`; as :meth:`QueueService.run`.

        Then nothing more is taken. Handlers have ``grace_seconds``; those that are async are cancelled when they are
        over, and their messages given back uncounted. A second signal, or cancelling this, ends the grace at once.
        """
        self._threads.check()
        await self._workers.run(grace_seconds)

    def stop(self) -> None:
        """Have :meth:`run` return, in whichever loop it is; one that begins later returns at once. From any thread."""
        self._workers.stop()

    # -- The service itself ------------------------------------------------------------------------------------------

    async def rebuild_catalog(self) -> None:
        """Rewrite the catalogue; as :meth:`QueueService.rebuild_catalog`."""
        await self._threads.run_patiently(self.sync.rebuild_catalog)

    async def close(self) -> None:
        """Stop the consumers, close all queues, end the threads; again does nothing.

        Tasks that wait for a message get ClosedError. If it is cancelled after the consumers' end, it continues. A
        handler that calls it continues too, and its message is acknowledged: :meth:`run` closes once handlers have
        ended.
        """
        if self._threads.is_forked or not await self._workers.close(then=self.close):
            return
        with self._lock:
            is_first, self._has_begun_to_close = not self._has_begun_to_close, True
        if is_first:
            self._closer.submit_or_make(partial(make_call, self._closing, self._close))
            self._closer.close(is_waiting=False)
        await outcome_of(self._closing)
        self._closer.close()  # its thread has nothing left to do but to end

    def _close(self) -> None:
        with ExitStack() as stack:  # all of it, also after errors
            stack.callback(self._threads.close)
            with self._lock:
                for queue in self._queues.values():
                    stack.callback(queue.takes.close)
            stack.callback(self.sync.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<Async{repr(self.sync)[1:]}"

    def _delete_queue(self, name: str) -> None:
        """Delete it in a thread: its takes may be in a decoder, and are waited for."""
        queue = self.sync.queues.get(name)
        self.sync.delete_queue(name)
        with self._lock:
            opened = self._queues.pop(queue, None) if queue is not None else None
        if opened is not None:
            opened.takes.close()

    async def _make_engine(self, consumer: Consumer) -> AsyncEngine:
        queue = self._of(await self._threads.run_patiently(self.sync.open_for, consumer))
        return AsyncEngine(consumer, queue, self._threads, self._workers)

    def _of(self, sync: TypedQueue[Any]) -> AsyncQueue[Any]:
        with self._lock:
            found = self._queues.get(sync)
            if found is None:
                if self._has_begun_to_close:
                    raise ClosedError(f"the service of {self.path} is closed; make a new one")
                found = self._queues[sync] = AsyncQueue(sync, self._threads)
            return found
