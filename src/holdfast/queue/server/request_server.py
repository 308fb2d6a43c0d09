"""Polls for requests of other processes to an owner, and serves them. docs/format.md, "Requests".

A poll is one listing for both sides of a handle, by the thread that polls all queues of the process
(``queue/threads/poller.py``). If there was never a request, the directory is missing, which costs one failing system
call. A thread of the queue's own serves the requests. It polls again soon while requests come, and ends when none have
come for a while: so no queue waits for the requests of another. If no thread can be started, the polling thread serves
too.
"""

from __future__ import annotations

import logging
import threading

from holdfast.errors import HoldfastError
from holdfast.persistence.exchange.mailbox import ANSWERS
from holdfast.persistence.exchange.requests import list_requests
from holdfast.queue.engine.queue_handle import QueueHandle
from holdfast.queue.prepared.prepared_resolver import PreparedResolver
from holdfast.queue.server.group_desk import GroupDesk
from holdfast.queue.server.request_desk import RequestDesk
from holdfast.queue.threads.notifier import Flag
from holdfast.queue.threads.poller import unwatch, watch
from holdfast.threads import join_thread, start_thread

logger = logging.getLogger("holdfast")

BUSY_SECONDS = 0.0005
_BUSY_COUNT = 40
"""So many looks in vain at that pace before the pauses grow: whoever was answered has something new soon."""

IDLE_SECONDS = 0.015
"""The longest pause while anybody may ask: a request is picked up within 20 ms."""

ALONE_SECONDS = 0.1
"""The longest pause while nobody has a mailbox: looking more often would be what an idle queue costs most."""

_LINGER_SECONDS = 1.0
"""How long the serving thread stays after the last request."""

_CLEAR_SECONDS = 30.0
"""How often to remove what processes that have died left in ``requests/``."""

_TROUBLE_SECONDS = 0.25
"""The pause after ``requests/`` could not be read."""


class RequestServer:
    """Serves requests in the background while a side is open.

    Parameters
    ----------
    handle : QueueHandle
        The queue, with its write side, its read side, or both.
    resolver : PreparedResolver
        Decides prepared transactions.
    """

    def __init__(self, handle: QueueHandle, resolver: PreparedResolver) -> None:
        self._storage = handle.storage
        self._clock = handle.clock
        self._requests = handle.directory.requests  # kept: making a path costs as much as a poll
        self._path = handle.path
        self._write_desk = RequestDesk(handle, resolver) if handle.write_side is not None else None
        self._group_desk = GroupDesk(handle, resolver.own_votes) if handle.read_side is not None else None
        self._cleared_at: float | None = None
        self._stopped = Flag()
        self._thread: threading.Thread | None = None
        self._is_serving = False
        watch(self, self._clock)

    def __repr__(self) -> str:
        return f"<RequestServer {self._path}>"

    def stop(self) -> None:
        """Serve no more; running requests are finished, others keep waiting."""
        unwatch(self, self._clock)
        self._stopped.set()
        join_thread(self._thread)
        self._close_desks()

    def forget(self) -> None:
        """In a forked child, which has no such thread: close the copies of the handles."""
        self._stopped.set()
        self._close_desks()

    def _close_desks(self) -> None:
        for desk in (self._write_desk, self._group_desk):
            if desk is not None:
                desk.close()

    # -- Looking -----------------------------------------------------------------------------------------------------

    def look(self) -> float:
        """Check for requests, and have them served; return how soon to poll again."""
        if self._is_serving:  # it polls by itself
            return IDLE_SECONDS
        try:
            names = list_requests(self._storage, self._requests)
        except OSError as error:
            logger.error("requests to %s wait: %s", self._path, error)
            return _TROUBLE_SECONDS
        if not names:
            return ALONE_SECONDS
        if (self._is_asked(names) or self._is_clearing_due()) and not self._begin():
            self._clear()
            return BUSY_SECONDS if self._serve(names) else _pause_max(names)
        return _pause_max(names)

    def _begin(self) -> bool:
        """Start the thread that serves; False if none can be started."""
        self._is_serving = True  # before it runs: it may have ended when it is known to have been started
        self._thread = start_thread(self._run, "holdfast-requests", self._stopped.set)
        if self._thread is None:
            self._is_serving = False
        return self._thread is not None

    def _is_asked(self, names: list[str]) -> bool:
        """Whether any of ``names`` waits for us."""
        return any(desk is not None and desk.find(names) for desk in (self._write_desk, self._group_desk))

    def _is_clearing_due(self) -> bool:
        if self._write_desk is None:
            return False
        return self._cleared_at is None or self._clock.monotonic() - self._cleared_at >= _CLEAR_SECONDS

    # -- Serving -----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        pause, vain_count, asked_at = 0.0, _BUSY_COUNT, self._clock.monotonic()
        while not self._clock.wait(self._stopped, pause):
            now = self._clock.monotonic()
            try:
                self._clear()
                names = list_requests(self._storage, self._requests)
                asked_at = now if self._is_asked(names) else asked_at
                vain_count = 0 if self._serve(names) else vain_count + 1
                pause = BUSY_SECONDS if vain_count < _BUSY_COUNT else min(2 * pause + BUSY_SECONDS, _pause_max(names))
            except (HoldfastError, OSError) as error:
                logger.error("requests to %s wait: %s", self._path, error)
                pause = _TROUBLE_SECONDS
            except Exception:  # a bug in one request must not leave all others unanswered
                logger.exception("requests to %s wait", self._path)
                pause = _TROUBLE_SECONDS
            if now - asked_at >= _LINGER_SECONDS:
                self._end()
                return

    def _end(self) -> None:
        """Leave the polling to the poller again: it finds later requests."""
        self._close_desks()
        self._is_serving = False

    def _clear(self) -> None:
        """Remove leftovers of dead processes now and then: the owner of the write side knows which are in the log."""
        if self._write_desk is not None and self._is_clearing_due():
            self._write_desk.clear()
            self._cleared_at = self._clock.monotonic()

    def _serve(self, names: list[str]) -> bool:
        is_busy = self._group_desk is not None and self._group_desk.serve(names)
        return (self._write_desk is not None and self._write_desk.serve(names)) or is_busy


def _pause_max(names: list[str]) -> float:
    """Return how long no poll is needed: each client has a mailbox."""
    return IDLE_SECONDS if any(each.endswith(ANSWERS) for each in names) else ALONE_SECONDS
