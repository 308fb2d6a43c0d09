"""Serves requests to a group without an owner: takes its read side for a moment, and releases it.

A permanent owner does not fail because of a temporary one: it waits until the visit is over, as for one to the write
side (``visitor.py``).
"""

from __future__ import annotations

import logging
import threading
from dataclasses import replace

from holdfast.errors import HoldfastError, QueueLockedError
from holdfast.persistence.log.flush_policy import FlushPolicy
from holdfast.queue.engine.queue_handle import QueueHandle
from holdfast.queue.options.settings import Settings
from holdfast.queue.prepared.outcome_memory import OutcomeMemory
from holdfast.queue.prepared.own_votes import OwnVotes
from holdfast.queue.server.group_desk import GroupDesk
from holdfast.queue.server.visits import may_visit
from holdfast.queue.threads.keyed_lock import KeyedLock

logger = logging.getLogger("holdfast")


class GroupVisitor:
    """Takes the read side of a group in the calling thread, if it has no owner.

    Parameters
    ----------
    asking : QueueHandle
        The handle that asks.
    group : str
        The group of its requests.

    Attributes
    ----------
    failure : HoldfastError or None
        Why the last visit came to nothing.
    is_there : bool
        Whether it could visit when it was called last.
    """

    def __init__(self, asking: QueueHandle, group: str) -> None:
        self._asking = asking
        self._lock_path = asking.directory.group_lock(group)
        settings: Settings = {"flush": FlushPolicy.every_commit()}
        self._options = replace(
            asking.options, mode="consume", group=group, settings=settings, lock_timeout=0, is_visitor=True
        )
        self._turn = threading.Lock()
        self._handle: QueueHandle | None = None
        self.failure: HoldfastError | None = None
        self.is_there = False

    def call(self) -> None:
        """Serve waiting requests if the group has no owner, and leave; one thread of a handle does it for all."""
        if self._turn.locked():  # another thread does it
            return
        with self._turn:
            try:
                self.is_there = False
                if may_visit(self._asking, self._lock_path):
                    self._visit()
            except QueueLockedError:
                pass  # another owner was faster
            except HoldfastError as error:
                self.failure = error

    def _visit(self) -> None:
        self._handle = handle = QueueHandle(self._asking.storage, self._asking.clock, self._asking.path, self._options)
        try:
            memory = OutcomeMemory(handle)
            desk = GroupDesk(handle, OwnVotes(handle, memory, KeyedLock()))
            try:
                desk.serve()
            finally:
                desk.close()
                memory.close()
            self.is_there, self.failure = True, None
        finally:
            self._handle = None
            try:
                handle.close()
            except HoldfastError as error:
                logger.error("a visitor could not leave %s in order: %s", handle.path, error)

    def stop(self) -> None:
        """Do nothing: a visit ends with the request that it is for."""

    def forget(self) -> None:
        """In a forked child: close the copies of the handles."""
        self._turn = threading.Lock()
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.forget_after_fork()
