"""Waits for the Spark of a killed drain, before an engine without Spark writes to the same place.

The JVM of a killed driver may finish the batch at hand, and then move its files beside those that are written here. It
holds a lock as long as it lives: ``spark/draining/driver_lock.py``.
"""

from __future__ import annotations

import fcntl
import time
from pathlib import Path

from holdfast.errors import QueueLockedError

DRIVER_LOCK = "drain.jvm"
"""The file that the JVM of a drain locks, in the directory of its group."""

DRIVER_SECONDS = 60.0
"""By far longer than a JVM takes to end that has lost its driver."""

DRIVER_POLL_SECONDS = 0.01


def wait_for_driver(group: Path) -> None:
    """Wait until no JVM holds the lock of a group. No new one takes it, for the caller has the lock of the drain.

    Raises
    ------
    QueueLockedError
        That JVM does not end.
    """
    try:
        file = (group / DRIVER_LOCK).open("r+b")
    except FileNotFoundError:  # Spark has never drained for this group
        return
    end = time.monotonic() + DRIVER_SECONDS
    with file:
        while True:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # closing the file releases it
            except (BlockingIOError, PermissionError):
                if time.monotonic() > end:
                    raise driver_runs(group / DRIVER_LOCK) from None
                time.sleep(DRIVER_POLL_SECONDS)
            else:
                return


def driver_runs(path: Path) -> QueueLockedError:
    """Return the error about a JVM that does not end."""
    return QueueLockedError(
        f"the Spark of a drain of {path.parent} still runs, though it was killed or interrupted: end that JVM",
        path=str(path),
    )
