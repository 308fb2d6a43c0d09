"""The consumer: receives each event, works on it, acknowledges it, and may be killed at any moment."""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

from examples.demo.events import digest
from examples.demo.journal import Journal
from examples.demo.opening import open_queue
from holdfast import Empty

WORK_SECONDS_MAX = 0.004
"""Longest time spent on one event; a kill in it makes the queue deliver the event again."""


def consume(queue_path: Path, journal_path: Path, event_count: int) -> None:
    """Receive events until all of them were put and none is left."""
    journal = Journal(journal_path)
    parent = os.getppid()
    with open_queue(queue_path, "consume", journal) as queue:
        while os.getppid() == parent:  # whoever started the demo is still there
            try:
                delivery = queue.receive(timeout=0.1)
            except Empty:
                # In this order: when the last event is in and nothing can be taken, nothing will come any more.
                if queue.stats().next_offset >= event_count and queue.empty():
                    return
                continue
            journal.note("received", delivery.offset, digest(delivery.payload))
            time.sleep(random.uniform(0, WORK_SECONDS_MAX))
            delivery.ack()
            journal.note("acked", delivery.offset)


if __name__ == "__main__":
    consume(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
