"""Reads the log of a queue for a task, without a consumer group."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Self

from holdfast.messages import Message
from holdfast.persistence.format.report import Damage
from holdfast.queue.inspect.log_reading import PAUSE_SECONDS_MAX, PAUSE_SECONDS_MIN, LogReading
from holdfast.service.aio.async_threads import Threads


class AsyncLogReading(AsyncIterator[Message]):
    """The messages of a log in their order; made by :meth:`AsyncQueue.read`. A task uses it at a time.

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
            self._reading = await self._threads.run(self._begin)
        if not self._messages:
            await self._wait_for_more(self._reading)
        if not self._messages:
            raise StopAsyncIteration
        return self._messages.popleft()

    async def _wait_for_more(self, reading: LogReading) -> None:
        deadline = None if self._timeout is None else time.monotonic() + self._timeout
        pause = PAUSE_SECONDS_MIN
        while not reading.is_over:
            before = reading.next_offset
            self._messages.extend(await self._threads.run(reading.read_on))
            if self._messages:
                return
            if reading.next_offset > before:  # none of those passes the filter
                continue
            if deadline is not None and time.monotonic() >= deadline:
                reading.close()
            elif not reading.is_over:
                await asyncio.sleep(pause)
                pause = min(2 * pause, PAUSE_SECONDS_MAX)

    def close(self) -> None:
        """End it; its file is closed."""
        if self._reading is not None:
            self._reading.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
