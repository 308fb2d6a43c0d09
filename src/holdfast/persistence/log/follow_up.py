"""What follows an append: retiring files, waking who waits, telling other processes, starting threads.

What was appended stands, and whoever appended it is told so, whatever becomes of the rest: it costs time only, and is
made up for by the next append, or by the next opening. This is the one place that says so. An interruption still goes
on to the caller, as everywhere.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from holdfast.errors import HoldfastError, ShutDown

logger = logging.getLogger("holdfast")


def follow_up(trouble: str, step: Callable[..., object], *arguments: object, level: int = logging.WARNING) -> bool:
    """Do what follows something that was appended; return whether it is done, and else log ``trouble`` and why."""
    try:
        step(*arguments)
    except Exception as error:  # memory, threads, descriptors, the disk, or a fault of ours
        is_known = isinstance(error, OSError | HoldfastError | ShutDown)
        logger.log(level, "%s: %s", trouble, error, exc_info=not is_known)
        return False
    return True
