"""What a handle in the mode "shared" tells the owner without being asked: answers that have arrived, leases to extend.

One thread for each handle, which is there only once there is something to tell, and sleeps until the next is due.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from typing import Protocol

from holdfast.errors import HoldfastError
from holdfast.queue.client.membership import Membership
from holdfast.queue.protocol.messages import Arrived
from holdfast.queue.threads.notifier import Flag
from holdfast.threads import join_thread, start_thread

logger = logging.getLogger("holdfast")

ARRIVED_SECONDS = 0.5
"""How long an answer waits for a later request of its thread, which says the same: ADR 50 allows a second."""

_TROUBLE_SECONDS = 1.0
"""The pause after the owner could not be told."""


class Chores(Protocol):
    """Work that is due now and then."""

    def do_due(self, now: float) -> float:
        """Do what is due; return the monotonic time at which to come again, or infinity."""


class Upkeep:
    """Tells the owner in a thread of its own. Threads may share it.

    Parameters
    ----------
    membership : Membership
        The way to the owner.

    Attributes
    ----------
    chores : Chores or None
        The consumer of the handle, which has leases to extend.
    """

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._lock = threading.Lock()
        self._arrived: dict[bytes, tuple[int, float]] = {}
        self.chores: Chores | None = None
        self._more = Flag()
        self._is_over = False
        self._thread: threading.Thread | None = None

    def answered(self, thread: bytes, count: int) -> None:
        """Note that a thread has the answers to its requests up to ``count``."""
        is_first = not self._arrived
        self._arrived[thread] = (count, time.monotonic() + ARRIVED_SECONDS)
        if is_first:
            self.wake()

    def wake(self) -> None:
        """Have the thread look for work; it is started if there is none."""
        self._more.set()
        if self._thread is None:
            with self._lock:
                if self._thread is None and not self._is_over:
                    self._thread = start_thread(self._run, "holdfast-upkeep", self._end_soon)

    def stop(self) -> None:
        """Tell what is left, and end the thread."""
        self._end_soon()
        join_thread(self._thread)

    def forget(self) -> None:
        """In a forked child, which has no such thread: begin anew."""
        self._lock = threading.Lock()
        self._is_over = True

    def _end_soon(self) -> None:
        self._is_over = True
        self._more.set()

    def _run(self) -> None:
        while not self._is_over:
            self._more.clear()
            try:
                due = self._do_due(time.monotonic())
            except HoldfastError as error:
                logger.debug("the owner could not be told: %s", error)
                due = time.monotonic() + _TROUBLE_SECONDS
            self._more.wait(None if due == math.inf else max(0.0, due - time.monotonic()))

    def _do_due(self, now: float) -> float:
        due = math.inf
        for thread, (count, at) in list(self._arrived.items()):
            if at > now:
                due = min(due, at)
                continue
            self._membership.ask(Arrived(thread, count))
            if self._arrived.get(thread) == (count, at):
                del self._arrived[thread]
        return due if self.chores is None else min(due, self.chores.do_due(now))
