"""Closes the parts of an open queue, also for an application that drops the queue and does not.

A weak reference tells when a queue was dropped: so for one that was closed nothing runs when it is collected, and no
interruption is lost in there.
"""

from __future__ import annotations

import logging
import warnings
import weakref

from holdfast.errors import HoldfastError
from holdfast.queue.engine.idle_handles import IdleHandles
from holdfast.queue.engine.queue_handle import QueueHandle
from holdfast.queue.prepared.prepared_resolver import PreparedResolver
from holdfast.queue.transactions.transaction import OpenTransactions

logger = logging.getLogger("holdfast")


class Closing:
    """The parts of one queue, without the object that the application has."""

    def __init__(
        self,
        handle: QueueHandle,
        transactions: OpenTransactions,
        resolver: PreparedResolver,
        idle_handles: IdleHandles | None,
    ) -> None:
        self._handle = handle
        self._transactions = transactions
        self._resolver = resolver
        self._idle_handles = idle_handles
        self.is_over = False
        self._finalizer: weakref.finalize | None = None  # type: ignore[type-arg]  # it has no type at run time

    def close(self) -> None:
        """Abort open transactions and close everything; prepared ones stay. Closing wakes all waiting threads."""
        try:
            if self._idle_handles is not None:
                self._idle_handles.stop()
            self._transactions.close(wait=False)
        finally:
            self._handle.close()
        self._transactions.close(wait=True)
        self._resolver.close()

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
        """Warn, and have it closed. The garbage collector may come here while any lock is held: this takes none."""
        if self._idle_handles is not None:
            self._idle_handles.close_soon(self._close_dropped, self._is_in_use)
        else:
            assert self._handle.look_side is not None, "every mode has a side"
            self._handle.look_side.close()
        warnings.warn(f"{name} was dropped and not closed: use `with`, or call close()", ResourceWarning, stacklevel=2)

    def _is_in_use(self) -> bool:
        """Whether a delivery or a transaction is open, which may outlive the object that they come from."""
        side = self._handle.require_read_side()
        side.give_back_due()
        return bool(side.leased) or self._transactions.is_any_open

    def _close_dropped(self) -> None:
        try:
            self.close()
        except HoldfastError as error:
            logger.error("closing %s, which was dropped, failed: %s", self._handle.path, error)
