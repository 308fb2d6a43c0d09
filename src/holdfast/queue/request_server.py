"""The thread of an owner that looks for what other processes ask. docs/format.md, "Requests".

It lists one directory, soon again while requests come, and more seldom while none do. Where nobody ever asked anything
the directory is not there, and looking costs one system call that fails.
"""

from __future__ import annotations

import logging
import threading

from holdfast.errors import HoldfastError
from holdfast.queue.in_doubt import InDoubt
from holdfast.queue.request_desk import RequestDesk
from holdfast.queue.sides import Sides

logger = logging.getLogger("holdfast")

BUSY_SECONDS = 0.0005
_BUSY_COUNT = 40
"""So many looks in vain at that pace before the pauses grow: whoever was answered has something new soon."""

IDLE_SECONDS = 0.015
"""The longest pause while anybody may ask: a request is picked up within 20 ms."""

ALONE_SECONDS = 0.1
"""The longest pause while nobody has a mailbox: looking more often would be what an idle queue costs most."""

_CLEAR_SECONDS = 30.0
"""How often to remove what processes that have died left in ``requests/``."""

_TROUBLE_SECONDS = 0.25
"""The pause after ``requests/`` could not be read."""


class RequestServer:
    """Serves requests in the background while the write side is open.

    Parameters
    ----------
    sides : Sides
        The queue, with its write side.
    in_doubt : InDoubt
        Decides prepared transactions.
    """

    def __init__(self, sides: Sides, in_doubt: InDoubt) -> None:
        self._clock = sides.clock
        self._path = sides.path
        self._desk = RequestDesk(sides, in_doubt)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="holdfast-requests", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; what is under way is finished, what waits goes on waiting."""
        self._stopped.set()
        if self._thread is not threading.current_thread():
            self._thread.join()
        self._desk.close()

    def forget(self) -> None:
        """In a forked child, which has no such thread: close the copies of the handles."""
        self._stopped.set()
        self._desk.close()

    def _run(self) -> None:
        pause, cleared_at, vain_count = BUSY_SECONDS, self._clock.monotonic(), _BUSY_COUNT
        while not self._clock.wait(self._stopped, pause):
            try:
                vain_count = 0 if self._desk.serve() else vain_count + 1
                pause_max = IDLE_SECONDS if self._desk.has_askers else ALONE_SECONDS
                pause = BUSY_SECONDS if vain_count < _BUSY_COUNT else min(2 * pause, pause_max)
                if self._clock.monotonic() - cleared_at >= _CLEAR_SECONDS:
                    cleared_at = self._clock.monotonic()
                    self._desk.clear()
            except HoldfastError as error:
                logger.error("requests to %s wait: %s", self._path, error)
                pause = _TROUBLE_SECONDS
            except Exception:  # a fault of ours in one request must not leave all others unanswered
                logger.exception("requests to %s wait", self._path)
                pause = _TROUBLE_SECONDS
