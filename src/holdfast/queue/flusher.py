"""A background thread for what must not wait for the next call: time-bound syncs, publishing, marks of an idle queue.

It sleeps without a timeout while nothing happens. A side kicks it when it becomes busy, at the cost of one attribute
read per commit.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from holdfast.clock import Clock
from holdfast.errors import HoldfastError

logger = logging.getLogger("holdfast")


class Flusher:
    """Calls ``tick`` every ``interval`` seconds while there is something to do.

    Parameters
    ----------
    tick : callable
        Does what is due; returns whether to call again. Raises HoldfastError where the side is broken: the next call
        of the application finds that too.
    interval : float, seconds
        Between two calls.
    clock : Clock
        Whose time that is.

    Attributes
    ----------
    idle : bool
        Whether the thread sleeps until :meth:`kick`; read it before kicking on a hot path.
    """

    def __init__(self, tick: Callable[[], bool], interval: float, clock: Clock) -> None:
        self._tick = tick
        self._interval = interval
        self._clock = clock
        self._kicked = threading.Event()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._start_lock = threading.Lock()
        self.idle = True

    def kick(self) -> None:
        """Say that there is something to do; starts the thread at the first call."""
        self.idle = False
        self._kicked.set()
        if self._thread is None:
            with self._start_lock:
                if self._thread is None and not self._stopped.is_set():
                    self._thread = threading.Thread(target=self._run, name="holdfast-flusher", daemon=True)
                    self._thread.start()

    def stop(self) -> None:
        """End the thread; nothing is called after this returns."""
        with self._start_lock:
            self._stopped.set()
            self._kicked.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._clock.wait(self._kicked, None)
            self._kicked.clear()
            while not self._clock.wait(self._stopped, self._interval):
                self.idle = True  # before looking: a commit from here on kicks again
                try:
                    busy = self._tick()
                except HoldfastError as error:
                    logger.error("background flush failed: %s", error)
                    return
                if not busy:
                    break
                self.idle = False
