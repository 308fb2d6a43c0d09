"""What a handle in the mode "shared" tells the owner without being asked: answers that have arrived, leases to extend.

One thread for each handle, which is there while there is something to tell, and sleeps until the next is due.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from typing import Protocol

from holdfast.errors import HoldfastError
from holdfast.queue.client.membership import ENDING_SECONDS, Membership
from holdfast.queue.protocol.messages import Arrived
from holdfast.queue.threads.notifier import Flag
from holdfast.threads import join_thread, start_thread

logger = logging.getLogger("holdfast")

ARRIVED_SECONDS = 0.5
"""How long an answer waits for a later request of its thread, which says the same: ADR 50 allows a second."""

GIVEN_UP_SECONDS = 600.0
"""How long a request that was given up may be tried again: ADR 50."""

_LINGER_SECONDS = 10.0
"""How long the thread waits for more to tell before it ends."""

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
        self._due = math.inf
        self.chores: Chores | None = None
        self._more = Flag()
        self._is_over = False
        self._thread: threading.Thread | None = None

    def answered(self, thread: bytes, count: int, seconds: float = ARRIVED_SECONDS) -> None:
        """Note that a thread has the answers to its requests up to ``count``; told after ``seconds``."""
        at = time.monotonic() + seconds
        self._arrived[thread] = (count, at)
        self.wake_by(at)

    def given_up(self, thread: bytes, count: int) -> None:
        """Note that a thread may try its request ``count`` again, and that no other will."""
        self.answered(thread, count, GIVEN_UP_SECONDS)

    def wake(self) -> None:
        """Have the thread look for work; it is started if there is none. Without it messages come again early."""
        self._more.set()
        if self._thread is None:
            with self._lock:
                if self._thread is None and not self._is_over:
                    self._thread = start_thread(self._run, "holdfast-upkeep", self._end_soon)

    def wake_by(self, at: float) -> None:
        """Have the thread look for work at this monotonic time, or before. It usually will, and is not woken then."""
        if at < self._due:
            self.wake()

    def stop(self) -> None:
        """End the thread; the end of the session tells what is left, and ends its wait for an owner that is stopped."""
        self._end_soon()
        join_thread(self._thread, ENDING_SECONDS)

    def forget(self) -> None:
        """In a forked child, which has no such thread: do nothing more."""
        self._lock = threading.Lock()
        self._is_over = True
        self._thread = None

    def _end_soon(self) -> None:
        self._is_over = True
        self._more.set()

    def _run(self) -> None:
        try:
            self._work()
        finally:
            with self._lock:  # the starter of a thread has it, until the thread is known
                if self._thread is threading.current_thread():  # over, or without memory: the next wake starts another
                    self._thread = None

    def _work(self) -> None:
        while not self._is_over:
            self._more.clear()
            self._due = math.inf  # what comes from here on sets the flag
            try:
                due = self._do_due()
            except HoldfastError as error:
                logger.debug("the owner could not be told: %s", error)
                due = time.monotonic() + _TROUBLE_SECONDS
            except Exception:  # memory, or a bug: leases are extended all the same
                logger.exception("the owner could not be told, which is tried again")
                due = time.monotonic() + _TROUBLE_SECONDS
            self._due = due
            seconds = _LINGER_SECONDS if due == math.inf else max(0.0, due - time.monotonic())
            if not self._more.wait(seconds) and due == math.inf and self._may_end():
                return

    def _may_end(self) -> bool:
        """Give the thread up, unless there is more by then and no other thread was started for it."""
        own, self._thread = self._thread, None
        if not self._more.is_set():
            return True
        with self._lock:
            if self._thread is not None:
                return True
            self._thread = own
            return False

    def _do_due(self) -> float:
        """Tell what is due; return when to come again."""
        now = time.monotonic()
        chores_due = math.inf if self.chores is None else self.chores.do_due(now)  # first: leases end
        for thread, told in list(self._arrived.items()):
            if told[1] <= now:
                self._membership.ask(Arrived(thread, told[0]))
                if self._arrived.get(thread) == told:
                    del self._arrived[thread]
        return min([chores_due, *(at for _, at in list(self._arrived.values()))])
