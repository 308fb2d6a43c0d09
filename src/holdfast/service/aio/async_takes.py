"""Waits for messages on behalf of tasks: one thread for each queue, however many tasks wait there.

The thread takes for one task after the other, first come first served, and sleeps in the same place as a consumer's
thread: so a put wakes it at once. Nothing has to be told to the thread when a task is cancelled. The second to come,
the task that calls off or the thread with a message for it, sees that, and gives the message back.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Generic, TypeVar

from holdfast.errors import NOTHING_CAME, ClosedError, Empty, HoldfastError
from holdfast.queue.threads.notifier import Flag
from holdfast.service.aio.async_threads import Threads
from holdfast.service.failover import FailoverSource
from holdfast.threads import TROUBLE_SECONDS, join_thread, no_thread_error, start_thread

Taken = TypeVar("Taken")

NEW_MAX = 1_000
"""Takes that the thread has not seen while it waits: then it looks, and drops those that were called off."""


class Take(Generic[Taken]):
    """A take of one task.

    Parameters
    ----------
    take : callable
        Takes, without waiting; raises queue.Empty.
    give_back : callable
        Gives taken messages back, uncounted.
    timeout : float or None, seconds
        How long the task waits.
    is_alike : bool
        Whether trying is useless after another task has just found nothing.

    Attributes
    ----------
    done : asyncio.Future
        Set when there is a result, or an error.
    """

    def __init__(
        self,
        take: Callable[[], Taken],
        give_back: Callable[[Taken], object],
        timeout: float | None,
        *,
        is_alike: bool,
    ) -> None:
        self.take = take
        self.deadline = None if timeout is None else time.monotonic() + timeout
        self.is_alike = is_alike
        self.is_called_off = False
        self._give_back = give_back
        self._loop = asyncio.get_running_loop()
        self.done: asyncio.Future[None] = self._loop.create_future()
        self._lock = threading.Lock()
        self._taken: list[Taken] = []
        self._error: BaseException | None = None

    # -- The thread ------------------------------------------------------------------------------------------------

    def succeed(self, taken: Taken) -> None:
        """Hand over taken messages; if no task wants it any more, it is given back."""
        with self._lock:
            is_wanted = not self.is_called_off
            if is_wanted:
                self._taken.append(taken)
        if is_wanted and self._tell():
            return
        if not is_wanted or self.call_off():
            self.give_back(taken)

    def fail(self, error: BaseException) -> None:
        """Hand over an error."""
        self._error = error
        self._tell()

    def _tell(self) -> bool:
        """Wake the task; False if its loop is closed, so that it never runs again."""
        try:
            self._loop.call_soon_threadsafe(self._set_done)
        except RuntimeError:
            return False
        return True

    def _set_done(self) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def give_back(self, taken: Taken) -> None:
        """Give back messages that were taken in vain."""
        with suppress(HoldfastError):  # a queue that was closed meanwhile has given everything back
            self._give_back(taken)

    # -- The task --------------------------------------------------------------------------------------------------

    def result(self) -> Taken:
        """Return the taken messages, or raise."""
        if self._error is not None and not self._taken:  # it may fail in telling what it has
            raise self._error
        return self._taken[0]

    def call_off(self) -> list[Taken]:
        """End the waiting; return messages that were taken already."""
        with self._lock:
            self.is_called_off = True
            taken, self._taken = self._taken, []
            return taken


class Takes:
    """Takes messages of one queue for tasks.

    Parameters
    ----------
    name : str
        The queue's.
    source : FailoverSource
        The source of messages, and the place to wait at.
    threads : Threads
        Run calls in the background.
    """

    def __init__(self, name: str, source: FailoverSource, threads: Threads) -> None:
        self._name = name
        self._source = source
        self._threads = threads
        self._new: deque[Take[Any]] = deque()
        self._lock = threading.Lock()
        self._more = Flag()
        self._is_watching = False
        self._watches_until = math.inf
        self._is_over = False
        self._thread: threading.Thread | None = None

    async def take(
        self,
        take: Callable[[], Taken],
        give_back: Callable[[Taken], object],
        timeout: float | None,
        *,
        is_alike: bool = True,
    ) -> Taken:
        """Return what ``take()`` returns as soon as there is something; cancelled, it is given back.

        Raises
        ------
        queue.Empty
            Nothing came within ``timeout`` seconds.
        RetryableError
            No thread can be started.
        HoldfastError, queue.ShutDown
            As ``take``.
        """
        self._threads.check()
        wanted = Take(take, give_back, timeout, is_alike=is_alike)
        try:
            self._add(wanted)
            await wanted.done
        except BaseException:
            for taken in wanted.call_off():
                self._threads.start(partial(wanted.give_back, taken))
            raise
        return wanted.result()

    def close(self) -> None:
        """Fail all that wait with ClosedError, and end the thread."""
        with self._lock:
            self._is_over = True
            thread = self._thread
        self._more.set()
        if thread is not None:
            self._source.wake()
            join_thread(thread)

    def _add(self, wanted: Take[Any]) -> None:
        with self._lock:
            if self._is_over:
                raise self._closed()
            if self._thread is None:
                self._thread = start_thread(self._run, f"holdfast-takes-{self._name}")
            if self._thread is None:
                raise no_thread_error(f"waiting for messages of {self._name!r}")
            self._new.append(wanted)
            is_crowded = len(self._new) > NEW_MAX
        self._more.set()
        if self._is_watching and (is_crowded or self._is_pressing(wanted)):  # behind the append: see _sleep
            self._source.wake()

    def _is_pressing(self, wanted: Take[Any]) -> bool:
        """Whether the thread has to look at a take while it waits: for messages of its kind it waits already."""
        return not wanted.is_alike or (wanted.deadline is not None and wanted.deadline < self._watches_until)

    def _closed(self) -> ClosedError:
        return ClosedError(f"the queue {self._name!r} is closed; open it again")

    # -- The thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        waiting: list[Take[Any]] = []
        try:
            if not self._is_the_one():
                return
            while not self._is_over:
                self._step(waiting)
            self._end(waiting, self._closed())
        except BaseException as error:  # without memory, say
            self._end(waiting, error)

    def _is_the_one(self) -> bool:
        """Whether this thread serves the queue: an interruption may have kept it from the one who started it."""
        with self._lock:
            self._thread = self._thread or threading.current_thread()
            return self._thread is threading.current_thread()

    def _end(self, waiting: list[Take[Any]], error: BaseException) -> None:
        """Fail all that wait; the next one to come starts another thread."""
        with self._lock:
            if self._thread is threading.current_thread():
                self._thread = None
                waiting += self._new
                self._new.clear()
        while waiting:
            try:
                waiting[0].fail(error)
            except MemoryError:  # until there is some
                time.sleep(TROUBLE_SECONDS)
            else:
                del waiting[0]

    def _step(self, waiting: list[Take[Any]]) -> None:
        """Take for those that wait, old and new ones; then wait for messages, or for more of them."""
        self._more.clear()
        if not (waiting or self._new or self._is_over):
            self._more.wait()
        while self._new:
            waiting.append(self._new.popleft())
        if not self._is_over:
            waiting[:] = self._serve(waiting)
            if waiting:
                self._sleep(waiting)

    def _serve(self, waiting: list[Take[Any]]) -> list[Take[Any]]:
        """Take for each of them in turn; return those that keep waiting."""
        left = []
        is_empty = False
        for each in waiting:
            if each.is_called_off:
                continue
            try:
                if is_empty and each.is_alike:
                    raise Empty(NOTHING_CAME)
                each.succeed(each.take())
            except Empty as error:
                is_empty = is_empty or each.is_alike
                if each.deadline is not None and each.deadline <= time.monotonic():
                    each.fail(error)
                else:
                    left.append(each)
            except BaseException as error:
                each.fail(error)
        return left

    def _sleep(self, waiting: list[Take[Any]]) -> None:
        """Wait for messages, for another task, or for the first one's time to be over."""
        deadline = min((each.deadline for each in waiting if each.deadline is not None), default=None)
        seconds = None if deadline is None else max(0.0, deadline - time.monotonic())
        self._watches_until = math.inf if deadline is None else deadline
        self._is_watching = True  # before it registers, and then checks for new ones: so it misses none
        try:
            self._source.wait_for_more(seconds, lambda: bool(self._new) or self._is_over)
        except BaseException as error:
            for each in waiting:
                each.fail(error)
            waiting.clear()
        finally:
            self._is_watching = False
