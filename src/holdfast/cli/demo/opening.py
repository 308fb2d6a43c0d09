"""How both processes open the queue that they share."""

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
    journal.note("opened", time.perf_counter() - started, queue.recovery.torn_bytes)
    return queue
