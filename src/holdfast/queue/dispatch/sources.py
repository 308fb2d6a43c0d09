"""The source of a dispatcher: the write side, as those who take see it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from holdfast.persistence.log.log_tail import LogEnd


class Source(Protocol):
    """The high watermark, and the waiting for more."""

    def end(self) -> LogEnd:
        """Return the current high watermark for consumers."""

    def prioritized_end(self) -> int:
        """Return the offset behind the last message that may have a priority; 0: none ever had.

        To be read behind :meth:`end`: it is above every prioritized message below an end that was read before. The
        other way round one may come in between.
        """

    def wait(self, ready: Callable[[], bool], seconds: float | None) -> None:
        """Sleep until there may be more, or ``wake`` was called; at most ``seconds``. May wake early."""

    def wake(self) -> None:
        """Wake all waiting threads."""
