"""Logs which messages became dead letters, and why: the last trace of them unless dead letters are listed.

It is noted under the take lock and logged after it, because a handler of log records may be any code.
"""

from __future__ import annotations

import logging
from collections import deque
from contextlib import suppress

from holdfast.queue.options.failure import Failure, Redact, exception_info, redacted

logger = logging.getLogger("holdfast")

_LEVELS = {"expired": logging.INFO, "rejected": logging.WARNING, "undecodable": logging.WARNING}
"""What somebody has decided; everything else is a message that nobody could handle."""


class DeadLetterLog:
    """For one consumer group.

    Parameters
    ----------
    queue, group : str
        Their names.
    redact : callable or None
        Takes secrets out of texts.

    Attributes
    ----------
    noted : deque
        The entries to be logged.
    """

    def __init__(self, queue: str, group: str, redact: Redact | None) -> None:
        self._queue = queue
        self._group = group
        self._redact = redact
        self.noted: deque[tuple[int, int, Failure]] = deque()

    def redacted(self, failure: Failure) -> Failure:
        """Return a failure with texts that may be stored and logged. Not to be called under a lock."""
        return redacted(failure, self._redact)

    def note(self, offset: int, delivery_count: int, failure: Failure) -> None:
        """Take up that a message became a dead letter."""
        self.noted.append((offset, delivery_count, failure))

    def say(self) -> None:
        """Log the noted entries. Not to be called under a lock."""
        with suppress(IndexError):  # all is logged, by this thread or another
            while True:
                self._say(*self.noted.popleft())

    def _say(self, offset: int, delivery_count: int, failure: Failure) -> None:
        says = f"{failure.exception or failure.reason}: {failure.detail}".rstrip(": ")
        logger.log(
            _LEVELS.get(failure.reason, logging.ERROR),
            "%s: offset %d is a dead letter at delivery %d (%s): %s",
            self._queue,
            offset,
            delivery_count,
            failure.reason,
            says,
            exc_info=exception_info(failure),
            extra={
                "queue": self._queue,
                "group": self._group,
                "offset": offset,
                "delivery_count": delivery_count,
                "reason": failure.reason,
            },
        )
