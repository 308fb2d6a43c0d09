"""Lets a reader that is faster than the writer sleep, at no cost to a writer that nobody waits for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable


class Doorbell:
    """Wakes waiting threads. Ringing costs one attribute read while nobody waits.

    A waiter first says that it waits and then looks once more; a ringer first changes what is looked at and then reads
    whether anybody waits. So no ring is missed, and the two sides share no lock while the queue flows.

    Attributes
    ----------
    waiting : int
        How many threads wait; read it before calling :meth:`ring` on a hot path.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition(threading.Lock())
        self.waiting = 0

    def ring(self) -> None:
        """Wake everybody who waits."""
        with self._condition:
            self._condition.notify_all()

    def wait(self, ready: Callable[[], bool], seconds: float | None) -> None:
        """Sleep until a ring, unless ``ready()`` already; at most ``seconds`` (None: for ever). May wake early."""
        self.poll(ready, lambda: True, (seconds,))

    def poll(self, ready: Callable[[], bool], changed: Callable[[], bool], pauses: Iterable[float | None]) -> bool:
        """Sleep as :meth:`wait` does, through all ``pauses``; after each of them go on if ``changed()``.

        Returns whether it was ready, or has changed; not whether it rang.
        """
        with self._condition:
            self.waiting += 1
            try:
                if ready():
                    return True
                for pause in pauses:
                    if self._condition.wait(pause):
                        return False
                    if changed():
                        return True
                return False
            finally:
                self.waiting -= 1
