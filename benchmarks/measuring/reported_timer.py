"""A clock for pytest-benchmark that goes by what another process or thread has measured."""

from __future__ import annotations


class ReportedTimer:
    """Stands still, except for the seconds that are reported to it."""

    __name__ = "reported"

    def __init__(self) -> None:
        self._seconds = 0.0

    def __call__(self) -> float:
        """Return the sum of what was reported."""
        return self._seconds

    def report(self, seconds: float) -> None:
        """Let so much time have passed."""
        self._seconds += seconds
