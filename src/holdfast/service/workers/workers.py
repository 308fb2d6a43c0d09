"""The consumers of a service: registered by name of queue, and run until they are stopped."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from queue import SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING, Any

from holdfast.errors import ConfigError, Empty, UsageError
from holdfast.queue.dispatch.delivery import Delivery
from holdfast.service.typed_queue import TypedQueue
from holdfast.service.workers.consumer import Consumer, name_of
from holdfast.service.workers.engine import Engine, Handle
from holdfast.service.workers.handled_by import handled_by
from holdfast.service.workers.job import Job
from holdfast.service.workers.processes.worker_role import is_worker_process
from holdfast.service.workers.settlement import Settlement
from holdfast.service.workers.supply import Supply

if TYPE_CHECKING:
    from holdfast.service.workers.processes.worker_pool import WorkerPool

logger = logging.getLogger("holdfast")

GRACE_SECONDS = 15.0

_STOP = "stop()"
_HURRY = "hurry()"
_LOOK = ""
_SIGNAL_SECONDS = 1.0
"""The longest wait of the main thread. CPython wakes it for a signal only if the main thread got that while it waited;
one that another thread got, or that came just before the wait, is handled when the wait ends."""

_KILLED_SECONDS = 10.0
"""How long threads have to notice that their worker processes were killed."""

OpenQueue = Callable[[Consumer], TypedQueue[Any]]


class _Handling:
    """A handler that tells whether it runs."""

    def __init__(self, queue_name: str, handle: Handle) -> None:
        self.queue_name = queue_name
        self._handle = handle
        self._threads: set[int] = set()

    def __call__(self, delivery: Delivery[Any]) -> Settlement | None:
        thread = threading.get_ident()
        self._threads.add(thread)
        try:
            return self._handle(delivery)
        finally:
            self._threads.discard(thread)

    @property
    def is_running(self) -> bool:
        """Whether a thread has not returned from it."""
        return bool(self._threads)


class Workers:
    """Runs the consumers of one service.

    Parameters
    ----------
    open_queue : callable
        Opens the queue of a consumer.
    """

    def __init__(self, open_queue: OpenQueue) -> None:
        self._open_queue = open_queue
        self._consumers: dict[str, Consumer] = {}
        self._commands: SimpleQueue[str] = SimpleQueue()  # a signal handler may set it
        self._running = threading.Lock()  # of the latest run, which holds it until it returns
        self._ending = threading.Lock()
        self._thread: threading.Thread | None = None
        self._then: Callable[[], object] | None = None

    @property
    def consumers(self) -> Mapping[str, Consumer]:
        """A copy: the handlers, by name of queue."""
        return dict(self._consumers)

    @property
    def is_running(self) -> bool:
        """Whether they run, or have been told to."""
        return self._running.locked()

    def add(self, consumer: Consumer) -> None:
        """Register one; raises ConfigError if its queue has one."""
        before = self._consumers.get(consumer.queue_name)
        if before is not None:
            raise ConfigError(
                f"queue {consumer.queue_name!r} is handled by {name_of(before.handler)} already; it takes one consumer"
            )
        self._consumers[consumer.queue_name] = consumer

    def run(self, grace_seconds: float, processes: int | None = None) -> None:
        """Run them all until a signal comes, or :meth:`stop`; as :meth:`QueueService.run`.

        ``processes``: so many worker processes for all consumers together, instead of their own numbers.
        """
        if is_worker_process():
            logger.debug("run() does nothing in a worker process")
            return
        if not grace_seconds >= 0:
            raise ConfigError(f"grace_seconds is a number of seconds from 0 on, not {grace_seconds!r}")
        if not self._consumers:
            raise ConfigError("nothing to run: register a handler with @service.consumer(queue)")
        then: Callable[[], object] | None = None
        running = threading.Lock()
        try:
            with running:  # a lock of its own, so that Ctrl-C cannot come between taking it and the block
                with self._ending:
                    if self._running.locked():
                        raise UsageError("the consumers of this service run already: stop() them first")
                    self._running = running
                    self._thread = threading.current_thread()
                try:
                    self._run(grace_seconds, processes)
                finally:
                    self.forget_commands()
                    with self._ending:
                        self._thread = None
                        then, self._then = self._then, None
        finally:
            if then is not None:
                then()

    def stop(self) -> None:
        """Have :meth:`run` return; one that begins later returns at once."""
        self._commands.put(_STOP)

    def hurry(self) -> None:
        """Have :meth:`run`, which was stopped, wait no longer for what runs."""
        self._commands.put(_HURRY)

    def forget_commands(self) -> None:
        """Forget what :meth:`run` was told, behind its end: it is not for the next one."""
        with suppress(Empty):
            while True:
                self._commands.get_nowait()

    def close(self, then: Callable[[], object]) -> bool:
        """Stop, and wait until :meth:`run` has returned in its thread.

        A handler does not wait, because it would wait for itself: False, and :meth:`run` does ``then`` in the end.
        """
        with self._ending:
            thread, running = self._thread, self._running
            is_handler = thread is not None and handled_by.get() is self
            if is_handler:
                self._then = then
        if thread is None or thread is threading.current_thread():
            return True
        self.stop()
        if is_handler:
            return False
        with running:
            return True

    def forget_after_fork(self) -> None:
        """In a forked child: the consumers run in the parent only, and may be run here too."""
        self._commands = SimpleQueue()
        self._running, self._ending = threading.Lock(), threading.Lock()
        self._thread = self._then = None

    # -- Inside ------------------------------------------------------------------------------------------------------

    def _run(self, grace_seconds: float, processes: int | None) -> None:
        consumers = list(self._consumers.values())
        jobs = [self._job(consumer) for consumer in consumers]
        with _pools(consumers, [job for job, _ in jobs], processes) as pools:
            handlings = [
                _Handling(job.queue_name, job.handle if pool is None else partial(pool[0].handle, pool[1]))
                for (job, _), pool in zip(jobs, pools, strict=True)
            ]
            engines = [
                self._engine(queue, handling, consumer.concurrency, pool)
                for consumer, (_, queue), handling, pool in zip(consumers, jobs, handlings, pools, strict=True)
            ]
            with _signals_heard(self._commands):
                try:
                    for engine in engines:
                        engine.start()
                    logger.info("handling %s", ", ".join(engine.name for engine in engines))
                    self._wait(engines, pools, grace_seconds)
                    for each in handlings:
                        if each.is_running:
                            logger.warning(
                                "%s: a handler still runs, and its message may be handled twice", each.queue_name
                            )
                finally:  # also if a thread could not be started
                    for engine in engines:
                        engine.stop()
                self._kill(engines, pools)
        failure = next((engine.failure for engine in engines if engine.failure is not None), None)
        if failure is not None:
            raise failure
        logger.info("stopped handling %s", ", ".join(engine.name for engine in engines))

    def _job(self, consumer: Consumer) -> tuple[Job, TypedQueue[Any]]:
        queue = self._open_queue(consumer)
        if not queue.raw.can_take:
            raise ConfigError(
                f"queue {queue.name!r} is open with mode={queue.raw.mode!r}, which takes nothing: open it with "
                "'shared' or 'exclusive' where its consumer runs"
            )
        return Job(queue.name, consumer.handler, consumer.takes_delivery, consumer.retry, queue.codec), queue

    def _engine(
        self, queue: TypedQueue[Any], handle: Handle, concurrency: int, pooled: tuple[WorkerPool, int, int] | None
    ) -> Engine:
        supply = Supply(queue, is_decoded=pooled is None)
        look = partial(self._commands.put, _LOOK)
        return Engine(queue.name, supply, handle, concurrency if pooled is None else pooled[2], look, self)

    def _wait(
        self, engines: Sequence[Engine], pools: Sequence[tuple[WorkerPool, int, int] | None], grace_seconds: float
    ) -> None:
        """Return when all have ended; or when they were to stop, and have not done so in time."""
        deadline = None
        while not all(engine.is_over for engine in engines):
            left = _SIGNAL_SECONDS if deadline is None else deadline - time.monotonic()
            if left <= 0.0:
                break
            try:
                word = self._commands.get(timeout=min(left, _SIGNAL_SECONDS))
            except Empty:
                continue
            if deadline is not None:
                if word not in (_LOOK, _STOP):
                    break
            elif word or any(engine.failure is not None for engine in engines):
                deadline = time.monotonic() + grace_seconds
                logger.info("%s: stopping, what runs has %g s", word or "a consumer cannot continue", grace_seconds)
                for engine in engines:
                    engine.stop()
                for pooled in pools:
                    if pooled is not None:
                        pooled[0].stop()

    def _kill(self, engines: Sequence[Engine], pools: Sequence[tuple[WorkerPool, int, int] | None]) -> None:
        """End worker processes that still work; the threads that wait for them give their messages back."""
        waiting = [engine for engine, pool in zip(engines, pools, strict=True) if pool is not None]
        if all(engine.is_over for engine in waiting):
            return
        for pooled in pools:
            if pooled is not None:
                pooled[0].kill()
        deadline = time.monotonic() + _KILLED_SECONDS
        while not all(engine.is_over for engine in waiting) and time.monotonic() < deadline:
            try:
                self._commands.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                break


@contextmanager
def _pools(
    consumers: Sequence[Consumer], jobs: Sequence[Job], processes: int | None
) -> Iterator[list[tuple[WorkerPool, int, int] | None]]:
    """Start the worker processes; yield for each consumer its pool, its number there, and the size, or None."""
    if not processes and not any(consumer.processes for consumer in consumers):
        yield [None] * len(consumers)
        return
    from holdfast.service.workers.processes.worker_pool import WorkerPool  # multiprocessing is imported by who needs it

    pools: list[WorkerPool] = []
    try:
        if processes:
            pools.append(WorkerPool(jobs, processes))
            yield [(pools[0], number, processes) for number in range(len(jobs))]
            return
        pooled: list[tuple[WorkerPool, int, int] | None] = []
        for consumer, job in zip(consumers, jobs, strict=True):
            if consumer.processes:
                pools.append(WorkerPool([job], consumer.processes))
                pooled.append((pools[-1], 0, consumer.processes))
            else:
                pooled.append(None)
        yield pooled
    finally:
        for pool in pools:
            pool.close()


@contextmanager
def _signals_heard(commands: SimpleQueue[str]) -> Iterator[None]:
    """Set the event at SIGINT and SIGTERM, if this is the main thread: no other one can hear them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(number: int, frame: FrameType | None) -> None:
        commands.put(signal.Signals(number).name)

    before = {each: signal.signal(each, ring) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, signal.SIG_DFL if handler is None else handler)
