"""A background thread for what must not wait for the next call: time-bound syncs, publishing, marks of an idle queue.

It is there while something happens, and a little longer: a queue that is idle has none. A side kicks it when it becomes
busy, at the cost of one attribute read per commit.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress

from holdfast.clock import Clock
from holdfast.errors import CommitUnknownError, HoldfastError, PoisonedError
from holdfast.queue.threads import poller
from holdfast.queue.threads.notifier import Flag
from holdfast.threads import join_thread, start_thread

logger = logging.getLogger("holdfast")

LINGER_SECONDS = 2.0
"""How long the thread waits for the next kick before it ends: whoever puts more often than that starts none."""


TROUBLE_SECONDS = 1.0
"""How long to wait after a failure, of the disk or of memory: it may pass."""

_SOON_SECONDS = 0.0005
"""From the first kick to the first call: what it publishes, an idle consumer in another process waits for."""


class Flusher:
    """Calls ``tick`` soon, and then every ``interval`` seconds, while there is something to do.

    Parameters
    ----------
    tick : callable
        Does due work; returns whether to call again. What it raises is tried again, unless the side is poisoned: the
        next call of the application finds that too.
    flush : callable
        Does the work of ``tick`` at once, for the caller of :meth:`kick` if no thread can be started. Raises as
        ``tick``.
    interval : float, seconds
        Between two calls.
    clock : Clock
        Whose time that is.

    Attributes
    ----------
    idle : bool
        Whether nothing is done until :meth:`kick`; read it before kicking on a hot path.
    """

    def __init__(self, tick: Callable[[], bool], flush: Callable[[], object], interval: float, clock: Clock) -> None:
        self._tick = tick
        self._flush = flush
        self._interval = interval
        self._clock = clock
        self._kicked = Flag()
        self._stopped = Flag()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._is_over = False
        self.idle = True

    def kick(self) -> None:
        """Request a tick; starts a missing thread, or does the work itself if none can be started.

        Raises nothing but interruptions: the commit counts.
        """
        poller.ensure_watching()
        is_served = False
        try:
            self.idle = False
            with self._lock:
                self._kicked.set()
                if self._thread is None and not self._is_over:
                    self._thread = start_thread(self._run, "holdfast-flusher", self._end)
                is_served = self._thread is not None or self._is_over
                if not is_served:
                    self._flush_now()
        finally:
            if not is_served:
                self.idle = True  # no thread may be running it: the next commit kicks again

    def _flush_now(self) -> None:
        try:
            self._flush()
        except HoldfastError as error:
            logger.error("flushing failed: %s", error)

    def stop(self) -> None:
        """End the thread; nothing is called after this returns."""
        with self._lock:
            self._is_over = True
            self._end()
            thread = self._thread
        join_thread(thread)

    def _end(self) -> None:
        """Have the thread end soon."""
        self._stopped.set()
        self._kicked.set()

    def _run(self) -> None:
        try:
            while self._is_own() and self._is_wanted():
                self._work()
        except (PoisonedError, CommitUnknownError) as error:
            logger.error("background flush failed: %s", error)
        except BaseException:  # no memory to wait with: the next kick starts another thread
            self._thread, self.idle = None, True
            raise

    def _work(self) -> None:
        """Call ``tick`` until nothing is left to do; if it fails, unflushed commits keep waiting for the next time."""
        pause, said = min(_SOON_SECONDS, self._interval), ""
        while not self._clock.wait(self._stopped, pause):
            pause = self._interval
            self.idle = True  # before looking: a commit from here on kicks again
            try:
                if not self._tick():
                    return
                said = ""
            except (PoisonedError, CommitUnknownError):
                raise
            except Exception as error:  # of the disk, of memory, or a bug
                pause = max(self._interval, TROUBLE_SECONDS)
                if said != repr(error):
                    said, is_known = repr(error), isinstance(error, HoldfastError)
                    with suppress(Exception):  # without memory for that, too, it is tried again all the same
                        logger.error("background flush failed, and is tried again: %r", error, exc_info=not is_known)
            self.idle = False

    def _is_own(self) -> bool:
        """Whether this is the thread; an interruption of its start may have hidden it from :meth:`kick`."""
        with self._lock:
            self._thread = self._thread or threading.current_thread()
            return self._thread is threading.current_thread()

    def _is_wanted(self) -> bool:
        """Wait for a kick; False if none came in time, or this was stopped, and the thread is over."""
        self._clock.wait(self._kicked, LINGER_SECONDS)
        with self._lock:
            is_wanted = self._kicked.is_set() and not self._stopped.is_set()
            if not is_wanted:
                self._thread = None
            self._kicked.clear()
            return is_wanted
