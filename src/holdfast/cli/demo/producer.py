"""The producer: puts each order into the queue, and may be killed at any moment."""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

from holdfast.cli.demo.journal import Journal
from holdfast.cli.demo.opening import Reign, open_queue
from holdfast.cli.demo.orders import order

PAUSE_SECONDS_MAX = 0.028
"""Longest pause between two orders; with a put and the time that restarts take, about 50 orders a second."""


def produce(queue_path: Path, journal_path: Path, order_count: int, demo_pid: int) -> None:
    """Put the orders that are not in the queue yet.

    The queue itself knows where to continue: order *n* has offset *n*, so the next offset is the next order. That
    counts a put whose process was killed before it could return. One that the owner has still to do then is not done
    twice, because an order has its number as ``dedup_id``.
    """
    journal = Journal(journal_path)
    with open_queue(queue_path, "shared", journal) as queue:
        reign = Reign(queue, journal)
        first = queue.stats().next_offset
        journal.note("resumed", first)
        for number in range(first, order_count):
            if os.getppid() != demo_pid:  # the demo itself was killed
                return
            offset = queue.put(order(number), dedup_id=str(number))
            journal.note("put", offset)
            reign.look()
            time.sleep(random.uniform(0, PAUSE_SECONDS_MAX))


if __name__ == "__main__":
    produce(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
