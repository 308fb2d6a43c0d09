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
        self._lock = threading.RLock()  # a logging handler may close the queue in the middle of a move
        watch(self, handle.clock)

    def look(self) -> float:
        """Start a thread if something is due; does not wait for it. Return how many seconds the next look may wait."""
        log = self._handle.require_batches().prepared.log
        if not self._is_running and (log.has_ended_segments or log.long_undecided(time.monotonic())):
            self._is_running = start_thread(self._run_logged, "holdfast-prepared", self._end_soon) is not None
        return LOOK_SECONDS

    def _run_logged(self) -> None:
        try:
            self.run()
        except HoldfastError as error:
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
        """Move what is due, and remove segments. Raises HoldfastError."""
        log = self._handle.require_batches().prepared.log
        with self._lock:
            for entry in log.long_undecided(time.monotonic()):
                if not self._is_over:
                    self._move(entry)
            if not self._is_over:
                log.remove_ended()

    def _move(self, entry: Entry) -> None:
        batches = self._handle.require_batches()
        with self._handle.deciding.alone(entry.id):
            if batches.prepared.log.find(entry.id) is entry:  # else it was decided meanwhile
                batches.move(entry)
