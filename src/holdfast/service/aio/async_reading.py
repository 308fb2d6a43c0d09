"""Reads the log of a queue for a task, without a consumer group."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Self, TypeVar

from holdfast.messages import Message
from holdfast.persistence.format.report import Damage
from holdfast.queue.inspect.log_reading import PAUSE_SECONDS_MAX, PAUSE_SECONDS_MIN, LogReading
from holdfast.service.aio.async_threads import Threads
from holdfast.service.aio.thread_pool import outcome_of

Result = TypeVar("Result")


class AsyncLogReading(AsyncIterator[Message]):
    """The messages of a log in their order; made by :meth:`AsyncQueue.read`. A task uses it at a time.

    If that task is cancelled, the thread that reads for it continues. The next one waits for the same call: so no
    message is skipped.

    Parameters
    ----------
    begin : callable
        Begins to read, in a thread.
    timeout : float or None, seconds
        It ends if nothing comes for so long.
    threads : Threads
        Read for it.
    """

    def __init__(self, begin: Callable[[], LogReading], timeout: float | None, threads: Threads) -> None:
        self._begin = begin
        self._timeout = timeout
        self._threads = threads
        self._reading: LogReading | None = None
        self._messages: deque[Message] = deque()
        self._under_way: Future[Any] | None = None

    @property
    def gaps(self) -> list[range]:
        """Offsets that were asked for and are not there; as of :class:`LogReading`."""
        return [] if self._reading is None else self._reading.gaps

    @property
    def damage(self) -> list[Damage]:
        """What could not be read otherwise, and was passed."""
        return [] if self._reading is None else self._reading.damage

    async def __anext__(self) -> Message:
        if self._reading is None:
            self._reading = await self._run(self._begin)
        if not self._messages:
            await self._wait_for_more(self._reading)
        if not self._messages:
            raise StopAsyncIteration
        return self._messages.popleft()

    async def _wait_for_more(self, reading: LogReading) -> None:
        deadline = None if self._timeout is None else time.monotonic() + self._timeout
        pause = PAUSE_SECONDS_MIN
        while self._under_way is not None or not reading.is_over:
            has_advanced = await self._run(partial(self._read_on, reading))
            if self._messages:
                return
            if has_advanced:  # none of those passes the filter
                continue
            if deadline is not None and time.monotonic() >= deadline:
                reading.close()
            elif not reading.is_over:
                await asyncio.sleep(pause)
                pause = min(2 * pause, PAUSE_SECONDS_MAX)

    async def _run(self, call: Callable[[], Result]) -> Result:
        """Return the result of a call in a thread: of the one under way, if the task that began it was cancelled."""
        if self._under_way is None:
            self._under_way = self._threads.submit(call)
        try:
            result: Result = await outcome_of(self._under_way)
        except asyncio.CancelledError:
            raise
        except BaseException:
            self._under_way = None
            raise
        self._under_way = None
        return result

    def _read_on(self, reading: LogReading) -> bool:
        """Read some messages; return whether it came further, also if none of them passes the filter."""
        before = reading.next_offset
        self._messages.extend(reading.read_on())
        return reading.next_offset > before

    def close(self) -> None:
        """End it; its file is closed, once a thread that reads has finished."""
        if self._under_way is not None:
            self._under_way.add_done_callback(self._close_behind)
        elif self._reading is not None:
            self._reading.close()

    def _close_behind(self, call: Future[Any]) -> None:
        if self._reading is not None:
            self._reading.close()
        elif call.exception() is None:
            call.result().close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
