"""Outlasts refusals that end by themselves: above all an owner of a shared queue that does not answer for a while."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from holdfast.errors import RetryableError
from holdfast.queue.threads.notifier import Flag

Result = TypeVar("Result")

logger = logging.getLogger("holdfast")

RETRY_SECONDS = 1.0

AT_ONCE = Flag()
"""Ends the wait of a call before it begins: one try is made."""

AT_ONCE.set()


def patiently(call: Callable[[], Result], name: str, stopped: threading.Event) -> Result:
    """Return what ``call()`` returns; if it raises RetryableError, try again each second until ``stopped`` is set.

    Parameters
    ----------
    call : callable
        What to do; it may be done several times.
    name : str
        The queue's, for the log.
    stopped : threading.Event
        When set, the error comes out.
    """
    is_logged = False
    while True:
        try:
            return call()
        except RetryableError as error:
            if stopped.is_set():
                raise
            if not is_logged:
                logger.error("%s: trying again each second: %s", name, error)
                is_logged = True
            if stopped.wait(RETRY_SECONDS):
                raise
