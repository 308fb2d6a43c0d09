"""Moves what has been undecided for long out of the prepared log, so that its segments can go."""

from __future__ import annotations

import logging
import threading
import time

from holdfast.errors import HoldfastError
from holdfast.persistence.prepared_log.entry import Entry
from holdfast.queue.engine.queue_handle import QueueHandle
from holdfast.queue.threads.poller import unwatch, watch
from holdfast.threads import start_thread

logger = logging.getLogger("holdfast")


LOOK_SECONDS = 1.0
"""Between two looks."""

RETRY_SECONDS = 60.0
"""After a failure nothing is tried for so long: a full disk stays so for a while, and each failure is logged."""


class LogMoves:
    """The moves of one queue that is open here with its write side.

    Parameters
    ----------
    handle : QueueHandle
        The queue.
    """

    def __init__(self, handle: QueueHandle) -> None:
        self._handle = handle
        self._is_over = False
        self._is_running = False
        self._due = 0.0
        self._lock = threading.RLock()  # a logging handler may close the queue in the middle of a move
        watch(self, handle.clock)

    def look(self) -> float:
        """Start a thread if something is due; does not wait for it. Return how many seconds the next look may wait."""
        log, now = self._handle.require_batches().prepared.log, time.monotonic()
        if not self._is_running and now >= self._due and (log.has_ended_segments or log.long_undecided(now)):
            self._is_running = True  # first: the thread may end before start_thread returns
            if start_thread(self._run_logged, "holdfast-prepared", self._end_soon) is None:
                self._is_running = False
        return LOOK_SECONDS

    def _run_logged(self) -> None:
        try:
            self.run()
        except HoldfastError as error:
            self._due = time.monotonic() + RETRY_SECONDS
            logger.warning("prepared transactions of %s stay in their log for now: %s", self._handle.path, error)
        finally:
            self._is_running = False

    def stop(self) -> None:
        """Begin no move any more; waits for one that is under way."""
        unwatch(self, self._handle.clock)
        self._end_soon()
        with self._lock:
            pass

    def _end_soon(self) -> None:
        self._is_over = True

    def run(self) -> None:
        """Move what is due, and remove segments. Raises the first HoldfastError, once all of it was tried."""
        log = self._handle.require_batches().prepared.log
        failure: HoldfastError | None = None
        with self._lock:
            for entry in log.long_undecided(time.monotonic()):
                if self._is_over:
                    return
                try:
                    self._move(entry)
                except HoldfastError as error:
                    failure = failure or error
            if not self._is_over:
                log.remove_ended()
        if failure is not None:
            raise failure

    def _move(self, entry: Entry) -> None:
        batches = self._handle.require_batches()
        with self._handle.deciding.alone(entry.id):
            if batches.prepared.log.find(entry.id) is entry:  # else it was decided meanwhile
                batches.move(entry)
