"""Deadlines: calls that are due at a time, and the next such time. Each take checks them first."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.clock import Clock

_BUSY_SECONDS = 0.05


class Deadlines:
    """Calls due callbacks; only threads that wait for messages anyway sleep for them. Threads may share it.

    Parameters
    ----------
    clock : Clock
        Whose monotonic seconds the deadlines are.

    Attributes
    ----------
    pending : dict
        The callbacks, with their times: empty nearly always, which is checked before every take.
    """

    def __init__(self, clock: Clock) -> None:
        self._monotonic = clock.monotonic
        self.pending: dict[Callable[[], bool], float] = {}

    def add(self, when: float, expire: Callable[[], bool]) -> None:
        """Call ``expire`` at ``when``; if it returns False, it is busy, and is called again a little later."""
        self.pending[expire] = when

    def discard(self, expire: Callable[[], bool]) -> None:
        """Call it no more."""
        self.pending.pop(expire, None)

    def seconds_left(self) -> float | None:
        """Return how long until the next one; None if there is none."""
        return max(0.0, min(list(self.pending.values())) - self._monotonic()) if self.pending else None

    def expire_due(self) -> None:
        """Call the callbacks that are due now."""
        now = self._monotonic()
        for expire, when in list(self.pending.items()):
            if when <= now and expire in self.pending:
                self.pending[expire] = now + _BUSY_SECONDS  # first: if this is interrupted, it is called again
                if expire():
                    self.discard(expire)
