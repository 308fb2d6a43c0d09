"""A clock that stands still until a test moves it."""

from __future__ import annotations

import threading

NS_PER_SECOND = 1_000_000_000
START_NS = 1_700_000_000 * NS_PER_SECOND  # a plausible wall clock: code that mixes up units shows
SLICE_SECONDS = 0.05  # real time between looks at the fake deadline; an event that is set wakes at once


class FakeClock:
    """The Clock port under a test's control; wall clock and monotonic clock move apart only by ``set_time_ns``."""

    def __init__(self, time_ns: int = START_NS, monotonic: float = 1_000.0) -> None:
        self._changed = threading.Condition()
        self._time_ns = time_ns
        self._monotonic_ns = round(monotonic * NS_PER_SECOND)
        self._waiting_count = 0

    def time_ns(self) -> int:
        return self._time_ns

    def monotonic(self) -> float:
        return self._monotonic_ns / NS_PER_SECOND

    def set_time_ns(self, time_ns: int) -> None:
        """Set the wall clock alone, backwards too, as an administrator or NTP does."""
        with self._changed:
            self._time_ns = time_ns

    def advance(self, seconds: float) -> None:
        """Let time pass on both clocks; waiters whose time is up return within a slice of real time."""
        if seconds < 0:
            raise ValueError("time passes forwards only; set_time_ns turns the wall clock back")
        with self._changed:
            step = round(seconds * NS_PER_SECOND)
            self._time_ns += step
            self._monotonic_ns += step

    def wait(self, event: threading.Event, seconds: float | None) -> bool:
        if event.is_set() or (seconds is not None and seconds <= 0):
            return event.is_set()
        with self._changed:
            deadline_ns = None if seconds is None else self._monotonic_ns + round(seconds * NS_PER_SECOND)
            self._waiting_count += 1
            self._changed.notify_all()
        try:
            while not event.wait(None if deadline_ns is None else SLICE_SECONDS):
                if deadline_ns is not None and self._monotonic_ns >= deadline_ns:
                    return event.is_set()
            return True
        finally:
            with self._changed:
                self._waiting_count -= 1
                self._changed.notify_all()

    def wait_for_waiters(self, count: int = 1, *, timeout: float = 5.0) -> bool:
        """Return once ``count`` threads stand in ``wait``: advancing earlier would move their deadlines along.

        ``timeout`` is in real seconds; running out returns False.
        """
        with self._changed:
            return self._changed.wait_for(lambda: self._waiting_count >= count, timeout)


class TickingClock(FakeClock):
    """A fake clock on which a twentieth of a second passes from look to look."""

    def monotonic(self) -> float:
        self.advance(0.05)
        return super().monotonic()
