"""The messages that a consumer has taken and not begun: a small buffer that its threads share.

The thread that finds it empty takes a batch for all of them. So no thread only distributes messages, and a single
message is handled by the thread that took it. The size of a batch follows the time that handlers take: quick ones get a
batch, slow ones each message by itself. So priorities count until :data:`BUFFER_SECONDS` before the handler. If all
threads are in handlers that take longer than expected, the messages here are given back, and other consumers may take
them.

A redelivered message comes alone from the queue, and stays alone here: the thread that takes it handles it, and no more
repeated messages are in hand than there are threads.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

from holdfast.errors import ClosedError, Empty, RetryableError, ShutDown
from holdfast.queue.consumer.draining import log_left
from holdfast.queue.dispatch.delivery import Delivery
from holdfast.queue.threads.notifier import Flag
from holdfast.service.workers.patience import patiently
from holdfast.service.workers.settler import Settler


class Source(Protocol):
    """The source of messages; as :class:`Supply`."""

    def take(self, count_max: int) -> Sequence[Delivery[Any]]:
        """Take without waiting; raises Empty."""

    def wait(self, is_over: Callable[[], bool]) -> None:
        """Sleep until there may be more, or ``is_over()`` at a :meth:`wake`."""

    def wake(self) -> None:
        """Wake sleeping threads, so that they check again."""

    def ending(self) -> ShutDown:
        """Return the error that counts the messages left if takers ended now."""


BUFFER_SECONDS = 0.02
"""Work that is taken ahead."""

BATCH_MAX = 16
"""Messages that are taken ahead for each thread at most: a larger batch costs hardly less for each."""

IDLE_SECONDS = 1.0
"""If none of the messages that were taken ahead is begun for so long, they are given back."""

_ROOM_SECONDS = 1.0
"""How long to wait for acknowledgements before looking whether to stop."""

_SHARE = 0.05
"""Of the newest handler in the mean: a few of a new kind change it, one does not."""


class Intake:
    """Hands messages to the threads of one consumer.

    Parameters
    ----------
    source : Source
        The queue.
    thread_count : int
        How many threads there are.
    settler : Settler
        Acknowledges; if it does not keep up, nothing is taken.

    Attributes
    ----------
    stopped : Event
        Set when it hands out no more.
    """

    def __init__(self, source: Source, thread_count: int, settler: Settler) -> None:
        self._source = source
        self._thread_count = thread_count
        self._settler = settler
        self._buffer: deque[Delivery[Any]] = deque()
        self._seen: tuple[Delivery[Any] | None, float] = (None, 0.0)  # the first one, and since when; the settler's
        self._taking = threading.Lock()
        self._seconds: float | None = None
        self.stopped = Flag()
        self._is_drained = False

    @property
    def is_stopped(self) -> bool:
        """Whether it hands out no more."""
        return self.stopped.is_set()

    def next(self) -> Delivery[Any] | None:
        """Return the next message, once there is one; None if there will be none any more."""
        if not self.is_stopped:
            try:
                return self._buffer.popleft()
            except IndexError:
                return self._refill()
        return None

    def note_seconds(self, seconds: float) -> None:
        """Take note how long a handler took."""
        mean = self._seconds
        self._seconds = seconds if mean is None else mean + (seconds - mean) * _SHARE

    def stop(self) -> None:
        """Hand out no more, and give messages that were not begun back, uncounted; waits for no owner."""
        self.stopped.set()
        self._source.wake()
        self.give_back()

    def log_left(self, name: str) -> None:
        """Log what stays in a queue that was shut down, behind the last of the threads."""
        if self._is_drained and not self.is_stopped:
            log_left(name, self._source.ending())

    def give_back(self) -> None:
        """Have the settler give the buffered messages back."""
        left = []
        with suppress(IndexError):
            while True:
                left.append(self._buffer.popleft())
        self._settler.release(left)

    def _refill(self) -> Delivery[Any] | None:
        """Take a batch, and return the first of it; one thread takes, the others wait for its messages."""
        with self._taking:
            while not self.is_stopped:
                if self._buffer:  # another one has taken meanwhile
                    with suppress(IndexError):
                        return self._buffer.popleft()
                if not self._settler.wait_for_space(_ROOM_SECONDS):
                    continue
                try:
                    taken = patiently(self._take_or_wait, self._settler.name, self.stopped)
                except ShutDown:  # for this thread: one with a longer handler may still give its message back
                    self._is_drained = True
                    break
                except (ClosedError, RetryableError):
                    if self.is_stopped:
                        break
                    raise
                if not taken:
                    continue
                for each in taken:
                    each.is_open = True  # no lease runs out while this process has it in hand
                if self.is_stopped:
                    self._settler.release(taken)
                    return None
                if len(taken) > 1:
                    self._buffer.extend(taken[1:])
                    self._settler.look_after(self._give_back_idle)
                return taken[0]
        return None

    def _give_back_idle(self) -> bool:
        """Give the buffer back if no thread has taken from it for a while; False if it is empty."""
        try:
            first = self._buffer[0]
        except IndexError:
            return False
        now = time.monotonic()
        if first is not self._seen[0]:
            self._seen = (first, now)
        elif now - self._seen[1] >= IDLE_SECONDS:
            self.give_back()
            return False
        return True

    def _take_or_wait(self) -> Sequence[Delivery[Any]]:
        """Take available messages; or wait until there may be something, and return nothing."""
        try:
            return self._source.take(self._count())
        except Empty:
            self._source.wait(lambda: self.is_stopped)
            return ()

    def _count(self) -> int:
        """Return how many messages to take: as many as handlers finish in a moment."""
        if self._seconds is None:
            return 1
        each = int(BUFFER_SECONDS / max(self._seconds, 1e-6))
        return max(1, min(each, BATCH_MAX) * self._thread_count)
