"""Threads that run calls, as many as there is work for and as can be started.

As ``concurrent.futures.ThreadPoolExecutor``, except for a call for which no thread can be started: there its error
comes out and the call stays in line, to be made at any time. Here those threads that run make it; or it is refused, and
is never made.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

from holdfast.errors import ClosedError, RetryableError
from holdfast.threads import TROUBLE_SECONDS, join_thread, no_thread_error, start_thread

logger = logging.getLogger("holdfast")

Result = TypeVar("Result")


class ThreadPool:
    """Threads that run calls.

    Parameters
    ----------
    name : str
        What its threads are called.
    size : int
        How many there are at most; each is started when a call finds no other one idle.
    """

    def __init__(self, name: str, size: int) -> None:
        self._name = name
        self._size = size
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._idle: deque[None] = deque()  # one for each thread without work: a Semaphore may stay locked by Ctrl-C
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._is_closed = False

    def submit(self, call: Callable[[], Result]) -> Future[Result]:
        """Have a call made; return its result to come.

        Raises
        ------
        ClosedError
            The pool is closed.
        RetryableError
            There is no thread, and none can be started; the call is not made.
        """
        future: Future[Result] = Future()
        with self._lock:
            if self._is_closed:
                raise ClosedError("its threads have ended; make a new one")
            if self._idle:
                self._idle.pop()
            elif len(self._threads) < self._size:
                thread = start_thread(self._run, self._name, self._end)
                if thread is not None:
                    self._threads.append(thread)
                elif not self._threads:
                    raise no_thread_error(f"a call of {self._name}")
            self._calls.put((future, call))
        return future

    def submit_or_make(self, call: Callable[[], Result]) -> Future[Result]:
        """As :meth:`submit`; but if no thread can be started, the caller makes it, before this returns."""
        try:
            return self.submit(call)
        except RetryableError:
            future: Future[Result] = Future()
            make_call(future, call)
            return future

    def close(self, *, is_waiting: bool = True) -> None:
        """Take no more calls, and let the threads end behind those in line; wait for that, unless told not to."""
        with self._lock:
            self._is_closed = True
        self._end()
        if is_waiting:
            for thread in self._threads:
                join_thread(thread)

    def _end(self) -> None:
        for _ in self._threads:
            self._calls.put(None)

    def _run(self) -> None:
        while (work := self._calls.get()) is not None:
            make_call(*work)
            del work  # its objects are not kept until the next one comes
            self._idle.append(None)


def make_call(future: Future[Any], call: Callable[[], Any]) -> None:
    """Make a call that was not cancelled in line."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(call())
    except BaseException as error:
        while not future.done():
            try:
                future.set_exception(error)
            except MemoryError:  # until there is some: the caller waits for this
                time.sleep(TROUBLE_SECONDS)


async def outcome_of(future: Future[Result]) -> Result:
    """Return the result of a call, which continues if the task that waits for it is cancelled."""
    awaited = asyncio.wrap_future(future)
    try:
        return await asyncio.shield(awaited)
    except asyncio.CancelledError:
        awaited.add_done_callback(_forget)
        raise


def _forget(awaited: asyncio.Future[Any]) -> None:
    """Log an error that no task waits for any more; else asyncio takes it for one that was overlooked."""
    if not awaited.cancelled() and (error := awaited.exception()) is not None:
        logger.debug("a call whose task was cancelled has failed: %s", error)
