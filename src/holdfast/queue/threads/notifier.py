"""Lets a reader that is faster than the writer sleep, at no cost to a writer without waiting readers.

There is no ``threading.Condition`` in here: entering and leaving one is Python code, so an interruption in there would
leave it locked for ever, and one in its ``wait`` would unlock it for another thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress


class Notifier:
    """Wakes waiting threads. Notifying costs one attribute read while no thread waits.

    A waiter first registers itself and then checks once more; a notifying thread first changes the data and then reads
    whether a thread waits. So no notification is missed, and the two threads share no lock while the queue flows.

    Attributes
    ----------
    waiting : list of Lock
        One for each thread that waits; see whether there is any before calling :meth:`notify` on a hot path.
    """

    def __init__(self) -> None:
        self.waiting: list[threading.Lock] = []

    def notify(self) -> None:
        """Wake all waiting threads."""
        for waiter in list(self.waiting):
            with suppress(RuntimeError):  # another thread has woken it
                waiter.release()
            with suppress(ValueError):  # last, so that a thread that was not woken can be notified again
                self.waiting.remove(waiter)

    def wait(self, ready: Callable[[], bool], seconds: float | None) -> None:
        """Sleep until notified, unless ``ready()`` already; at most ``seconds`` (None: for ever). May wake early."""
        waiter = threading.Lock()
        waiter.acquire()
        try:
            self.waiting.append(waiter)
            if not ready():
                waiter.acquire(timeout=-1 if seconds is None else max(0.0, seconds))
        finally:
            with suppress(ValueError):  # it has been rung
                self.waiting.remove(waiter)


class Flag(threading.Event):
    """An event that an interruption leaves in working order, of the thread that sets it and of the one that waits."""

    def __init__(self) -> None:
        super().__init__()
        self._is_set = False
        self._notifier = Notifier()

    def is_set(self) -> bool:
        """Whether it is set."""
        return self._is_set

    def set(self) -> None:
        """Set it, and wake all threads that wait for it."""
        self._is_set = True
        self._notifier.notify()

    def clear(self) -> None:
        """Set it back."""
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, at most ``timeout`` seconds; return whether it is."""
        if not self._is_set:
            self._notifier.wait(self.is_set, timeout)
        return self._is_set
