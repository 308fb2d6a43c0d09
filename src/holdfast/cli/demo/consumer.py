"""A consumer: receives orders, works on each, acknowledges it, and may be killed at any moment."""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

from holdfast.cli.demo.journal import Journal
from holdfast.cli.demo.opening import Reign, open_queue
from holdfast.cli.demo.orders import digest
from holdfast.errors import Empty

WORK_SECONDS_MAX = 0.01
"""Longest time spent on one order; a kill in it makes the queue deliver the order again."""


def consume(queue_path: Path, journal_path: Path, order_count: int, demo_pid: int) -> None:
    """Receive orders until all of them were put and none is left."""
    journal = Journal(journal_path)
    with open_queue(queue_path, "shared", journal) as queue:
        reign = Reign(queue, journal)
        while os.getppid() == demo_pid:  # the demo itself was not killed
            reign.look()
            try:
                delivery = queue.receive(timeout=0.1)
            except Empty:
                # In this order: when the last order is in and nothing can be taken, nothing will come any more.
                # The other consumer finishes what it has in hand; if it is killed, the process in its place finds that.
                if queue.stats().next_offset >= order_count and queue.empty():
                    return
                continue
            journal.note("received", delivery.offset, digest(delivery.payload))
            time.sleep(random.uniform(0, WORK_SECONDS_MAX))  # here a shop would send the mail
            delivery.ack()
            journal.note("acked", delivery.offset)


if __name__ == "__main__":
    consume(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
