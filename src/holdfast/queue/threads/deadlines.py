"""What has to be given back when its time is over, and when that is next. Whoever takes messages looks here first."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.clock import Clock

_BUSY_SECONDS = 0.05


class Deadlines:
    """Calls back what is due; nobody sleeps for it but those who wait for messages anyway. Threads may share it.

    Parameters
    ----------
    clock : Clock
        Whose monotonic seconds the deadlines are.
    """

    def __init__(self, clock: Clock) -> None:
        self._monotonic = clock.monotonic
        self._when: dict[Callable[[], bool], float] = {}

    def add(self, when: float, expire: Callable[[], bool]) -> None:
        """Call ``expire`` at ``when``; where it returns False, it is busy, and is called again a little later."""
        self._when[expire] = when

    def discard(self, expire: Callable[[], bool]) -> None:
        """Call it no more."""
        self._when.pop(expire, None)

    def seconds_left(self) -> float | None:
        """Return how long until the next one; None where there is none."""
        return max(0.0, min(list(self._when.values())) - self._monotonic()) if self._when else None

    def expire_due(self) -> None:
        """Call back what is due now."""
        if not self._when:
            return
        now = self._monotonic()
        for expire, when in list(self._when.items()):
            if when <= now and self._when.pop(expire, None) is not None and not expire():
                self._when[expire] = now + _BUSY_SECONDS
