"""The clock port: where timestamps and waiting come from, so that tests can hold time still."""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """The clock that the queue uses."""

    def time_ns(self) -> int:
        """Return the wall clock, in nanoseconds since the epoch; it may jump backwards."""

    def monotonic(self) -> float:
        """Return seconds on a clock that never goes backwards."""

    def wait(self, event: threading.Event, seconds: float | None) -> bool:
        """Wait for ``event`` at most ``seconds`` (None: for ever); return whether it is set."""


class SystemClock:
    """The clocks of the operating system."""

    time_ns = staticmethod(time.time_ns)
    monotonic = staticmethod(time.monotonic)

    @staticmethod
    def wait(event: threading.Event, seconds: float | None) -> bool:
        return event.wait(seconds)
