"""The thread of an owner that looks for what other processes ask. docs/format.md, "Requests".

One thread looks for both sides of a handle: it lists one directory, soon again while requests come, and more seldom
while none do. Where nobody ever asked anything the directory is not there: looking costs one system call that fails.
"""

from __future__ import annotations

import logging
import threading

from holdfast.errors import HoldfastError
from holdfast.persistence.mailbox import ANSWERS
from holdfast.persistence.requests import list_requests
from holdfast.persistence.storage import storage_errors
from holdfast.queue.group_desk import GroupDesk
from holdfast.queue.in_doubt import InDoubt
from holdfast.queue.request_desk import RequestDesk
from holdfast.queue.sides import Sides

logger = logging.getLogger("holdfast")

BUSY_SECONDS = 0.0005
_BUSY_COUNT = 40
"""So many looks in vain at that pace before the pauses grow: whoever was answered has something new soon."""

IDLE_SECONDS = 0.015
"""The longest pause while anybody may ask: a request is picked up within 20 ms."""

ALONE_SECONDS = 0.1
"""The longest pause while nobody has a mailbox: looking more often would be what an idle queue costs most."""

_CLEAR_SECONDS = 30.0
"""How often to remove what processes that have died left in ``requests/``."""

_TROUBLE_SECONDS = 0.25
"""The pause after ``requests/`` could not be read."""


class RequestServer:
    """Serves requests in the background while a side is open.

    Parameters
    ----------
    sides : Sides
        The queue, with its write side, its read side, or both.
    in_doubt : InDoubt
        Decides prepared transactions.
    """

    def __init__(self, sides: Sides, in_doubt: InDoubt) -> None:
        self._storage = sides.storage
        self._clock = sides.clock
        self._directory = sides.directory
        self._path = sides.path
        self._write_desk = RequestDesk(sides, in_doubt) if sides.write_side is not None else None
        self._group_desk = GroupDesk(sides) if sides.read_side is not None else None
        self._cleared_at: float | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="holdfast-requests", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; what is under way is finished, what waits goes on waiting."""
        self._stopped.set()
        if self._thread is not threading.current_thread():
            self._thread.join()
        self._close_desks()

    def forget(self) -> None:
        """In a forked child, which has no such thread: close the copies of the handles."""
        self._stopped.set()
        self._close_desks()

    def _close_desks(self) -> None:
        for desk in (self._write_desk, self._group_desk):
            if desk is not None:
                desk.close()

    def _run(self) -> None:
        pause, vain_count = BUSY_SECONDS, _BUSY_COUNT
        while not self._clock.wait(self._stopped, pause):
            try:
                self._clear()
                names = self._list()
                vain_count = 0 if self._serve(names) else vain_count + 1
                pause_max = IDLE_SECONDS if any(each.endswith(ANSWERS) for each in names) else ALONE_SECONDS
                pause = BUSY_SECONDS if vain_count < _BUSY_COUNT else min(2 * pause, pause_max)
            except HoldfastError as error:
                logger.error("requests to %s wait: %s", self._path, error)
                pause = _TROUBLE_SECONDS
            except Exception:  # a fault of ours in one request must not leave all others unanswered
                logger.exception("requests to %s wait", self._path)
                pause = _TROUBLE_SECONDS

    def _clear(self) -> None:
        """Remove now and then what the dead have left: who has the write side knows what of it is in the log."""
        now = self._clock.monotonic()
        if self._write_desk is not None and (self._cleared_at is None or now - self._cleared_at >= _CLEAR_SECONDS):
            self._write_desk.clear()
            self._cleared_at = now

    def _list(self) -> list[str]:
        with storage_errors("looking for requests", self._directory.requests):
            return list_requests(self._storage, self._directory)

    def _serve(self, names: list[str]) -> bool:
        is_busy = self._group_desk is not None and self._group_desk.serve(names)
        return (self._write_desk is not None and self._write_desk.serve(names)) or is_busy
