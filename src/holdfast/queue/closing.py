"""Closes an engine whose queue the application drops without closing it.

A weak reference tells when a queue was dropped: so for one that was closed nothing runs when it is collected, and no
interruption is lost in there.
"""

from __future__ import annotations

import logging
import time
import warnings
import weakref
from abc import ABC, abstractmethod

from holdfast.errors import HoldfastError
from holdfast.threads import TROUBLE_SECONDS

logger = logging.getLogger("holdfast")


class Closing(ABC):
    """Base of the engines: the parts of one queue, without the object that the application has.

    Attributes
    ----------
    is_over : bool
        Whether nothing is left to be closed.
    """

    def __init__(self) -> None:
        self.is_over = False
        self._finalizer: weakref.finalize | None = None  # type: ignore[type-arg]  # it has no type at run time

    @abstractmethod
    def close(self) -> None:
        """Abort open transactions and close everything; prepared ones stay. Closing wakes all waiting threads."""

    @abstractmethod
    def close_later(self) -> None:
        """Have :meth:`close_dropped` called in a thread, once nothing of the queue is in use.

        The garbage collector may come here while any lock is held: this takes none.
        """

    def expect(self, queue: object) -> None:
        """Have the parts closed once ``queue`` is collected."""
        self._finalizer = weakref.finalize(queue, self._drop, repr(queue))
        self._finalizer.atexit = False  # a process that ends releases its locks by itself

    def call_off(self) -> None:
        """Do nothing when the queue is collected: nothing is left to be closed, or another thread closes it."""
        if self._finalizer is not None:
            self._finalizer.detach()
        self.is_over = True  # last: a close that was interrupted before continues

    def _drop(self, name: str) -> None:
        self.close_later()
        warnings.warn(f"{name} was dropped and not closed: use `with`, or call close()", ResourceWarning, stacklevel=2)

    def close_dropped(self, path: object) -> None:
        """Close the parts of a queue that was dropped; log an error. Without memory, try again until there is some."""
        while True:
            try:
                self.close()
            except MemoryError:
                time.sleep(TROUBLE_SECONDS)
                continue
            except HoldfastError as error:
                logger.error("closing %s, which was dropped, failed: %s", path, error)
            return
