"""Serves requests while the write side has no owner: takes it for a moment, and releases it when no more come.

A permanent owner does not fail because of a temporary one: it waits a little, notes that, and the temporary one leaves
(``persistence/filesystem/locks.py``). Many handles may try to visit; one does, and serves all.
"""

from __future__ import annotations

import logging
import math
import threading
from dataclasses import replace

from holdfast.errors import HoldfastError, QueueLockedError
from holdfast.persistence.filesystem import locks
from holdfast.persistence.log.flush_policy import FlushPolicy
from holdfast.queue.engine.queue_handle import QueueHandle
from holdfast.queue.options.queue_options import Options
from holdfast.queue.options.settings import Settings
from holdfast.queue.prepared.joint_resolver import JointResolver
from holdfast.queue.prepared.other_queues import asking
from holdfast.queue.prepared.prepared_resolver import PreparedResolver
from holdfast.queue.server.group_askers import GroupAskers
from holdfast.queue.server.request_desk import RequestDesk
from holdfast.queue.server.visits import may_visit
from holdfast.queue.threads.notifier import Flag
from holdfast.threads import join_thread, start_thread

logger = logging.getLogger("holdfast")

LINGER_SECONDS = 0.1
"""How long a visitor waits for more: opening the write side costs some milliseconds and a few syncs."""

ALONE_SECONDS = 0.25
"""How long a visitor stays without a thread of its own: whoever has asked waits for its own answer, not for others'."""

_PAUSE_SECONDS = 0.002
_AWAITED_SECONDS = 0.02
"""How often to look whether somebody waits who comes to stay."""


class Visitor:
    """Takes the write side of a queue in a thread of its own, when it is called and the side has no owner.

    Parameters
    ----------
    handle : QueueHandle
        The handle that submits.
    """

    def __init__(self, handle: QueueHandle) -> None:
        self._asking = handle
        self._directory = handle.directory
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._more = Flag()
        self._is_stopped = False
        self._handle: QueueHandle | None = None
        self.failure: HoldfastError | None = None

    @property
    def is_there(self) -> bool:
        """Whether it has the write side now."""
        return self._handle is not None

    def call(self) -> None:
        """Have requests served if the write side has no owner; returns at once, or soon if there can be no thread."""
        if self._handle is not None:
            self._more.set()
            return
        with self._lock:
            is_wanted = not self._is_stopped and (self._thread is None or not self._thread.is_alive())
            if is_wanted:
                self._thread = start_thread(self._run, "holdfast-visitor", self._end)
            is_alone = is_wanted and self._thread is None
        if is_alone:
            self._run(ALONE_SECONDS)

    def stop(self) -> None:
        """Leave, once running requests are finished."""
        with self._lock:
            self._end()
        join_thread(self._thread)

    def _end(self) -> None:
        """Have the thread end soon."""
        self._is_stopped = True
        self._more.set()

    def forget(self) -> None:
        """In a forked child, which has no such thread: close the copies of the handles."""
        self._lock = threading.Lock()
        self._is_stopped = True
        self._thread = None
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.forget_after_fork()

    def _options(self) -> Options:
        """Return how to visit: as a short-lived owner, with the settings of the queue."""
        settings: Settings = {"flush": FlushPolicy.every_commit()}
        return replace(self._asking.options, mode="produce", settings=settings, lock_timeout=0, is_visitor=True)

    def _run(self, seconds_max: float = math.inf) -> None:
        try:
            if not may_visit(self._asking, self._directory.write_lock):
                return
            handle = QueueHandle(self._asking.storage, self._asking.clock, self._asking.path, self._options())
        except QueueLockedError:
            return
        except HoldfastError as error:
            self.failure = error
            return
        self.failure = None
        try:
            self._handle = handle
            self._visit(handle, seconds_max)
        except HoldfastError as error:
            self.failure = error
        finally:
            self._handle = None
            try:
                handle.close()
            except HoldfastError as error:
                logger.error("a visitor could not leave %s in order: %s", handle.path, error)

    def _visit(self, handle: QueueHandle, seconds_max: float) -> None:
        askers = GroupAskers(handle)
        resolver = PreparedResolver(handle, asking(handle.storage, handle.clock, handle.path), askers.do)
        JointResolver(handle, resolver).resume()
        desk = RequestDesk(handle, resolver)
        monotonic, write_lock = handle.clock.monotonic, self._directory.write_lock
        served_at = looked_at = began_at = monotonic()
        try:
            while not self._is_stopped and looked_at - began_at < seconds_max:
                self._more.clear()
                is_busy, now = desk.serve(), monotonic()
                if is_busy:
                    served_at = now
                elif now - served_at >= LINGER_SECONDS:
                    break
                if now - looked_at >= _AWAITED_SECONDS:
                    looked_at = now
                    if locks.is_awaited(handle.storage, write_lock, handle.clock):
                        break
                if not is_busy:
                    handle.clock.wait(self._more, _PAUSE_SECONDS)
        finally:
            desk.close()
            resolver.close()
            askers.close()
