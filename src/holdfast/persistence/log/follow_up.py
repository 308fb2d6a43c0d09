"""Follow-up steps of an append: retiring files, waking waiting threads, telling other processes, starting threads.

The append counts, and its caller is told so, even if a follow-up step fails. A failure costs time only: the next
append, or the next opening, makes up for it. This module is the one place that handles it. An interruption is still
raised to the caller, as everywhere.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from holdfast.errors import HoldfastError, ShutDown
from holdfast.threads import log_later


def follow_up(trouble: str, step: Callable[..., object], *arguments: object, level: int = logging.WARNING) -> bool:
    """Do a follow-up step; return whether it is done, and else log ``trouble`` and the error."""
    try:
        step(*arguments)
    except Exception as error:  # memory, threads, descriptors, the disk, or a bug
        is_known = isinstance(error, OSError | HoldfastError | ShutDown)
        log_later(level, "%s: %s", trouble, error, error=None if is_known else error)
        return False
    return True
