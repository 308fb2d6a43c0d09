"""The texts about worker processes that end."""

from __future__ import annotations

import signal


def how_it_ended(exit_code: int | None) -> str:
    """Return what an exit code means, for people."""
    if exit_code is None:
        return "ended"
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    try:
        return f"was killed by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"was killed by signal {-exit_code}"
