"""How processes open the queue of a demo, and note which of them owns it."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from holdfast import FlushPolicy, PersistentQueue
from holdfast.cli.demo.journal import Journal
from holdfast.queue.options.queue_options import Mode

DATA_FILE_BYTES = 64 * 2**10
"""About 150 orders: small, so that the kills also hit moments where one file follows another or is reused."""


def open_queue(path: Path, mode: Mode, journal: Journal) -> PersistentQueue:
    """Open the queue, recovered from whatever happened to its last owner, and note how long that took."""
    logging.getLogger("holdfast").setLevel(logging.ERROR)  # "was not closed in order": here that is the plan
    journal.note("opening")
    started = time.perf_counter()
    queue = PersistentQueue(path, mode=mode, flush=FlushPolicy.every_commit(), data_file_bytes=DATA_FILE_BYTES)
    torn_bytes = queue.recovery.torn_bytes if mode != "shared" else 0  # of a shared queue its owner notes them
    journal.note("opened", time.perf_counter() - started, torn_bytes)
    return queue


class Reign:
    """Notes when this process has become the owner of a shared queue: it was the first, or the owner before is gone."""

    def __init__(self, queue: PersistentQueue, journal: Journal) -> None:
        self._queue = queue
        self._journal = journal
        self._has_begun = False
        self.look()

    def look(self) -> None:
        """Look whether it has, and what its opening of the queue had to drop."""
        if not self._has_begun and self._queue.is_owner:
            self._has_begun = True
            self._journal.note("owner", self._queue.recovery.torn_bytes)
