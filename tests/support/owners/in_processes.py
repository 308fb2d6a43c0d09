"""Owners in processes of their own, and what is left behind them."""

from __future__ import annotations

import signal
from pathlib import Path

from holdfast import Empty, PersistentQueue


def hold(path: Path, ready: Path) -> None:
    """Own the queue until the process is killed."""
    with PersistentQueue(path, mode="shared"):
        ready.touch()
        signal.pause()


def drained(queue: PersistentQueue) -> list[bytes]:
    """Return all that can be taken now."""
    found: list[bytes] = []
    while True:
        try:
            found += queue.get_many(100, timeout=0)
        except Empty:
            return found
