"""The worker: moves events from one queue to another, each in one transaction, and may be killed at any moment."""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

import holdfast
from examples.demo.events import enrich
from holdfast.cli.demo.journal import Journal
from holdfast.cli.demo.opening import open_queue

WORK_SECONDS_MAX = 0.002
"""Longest time spent on one event, with its transaction open."""


def move(source_path: Path, target_path: Path, journal_path: Path, demo_pid: int) -> None:
    """Move events until none is left.

    Taking an event from one queue, putting it into the other and acknowledging it happen together or not at all. So
    whatever a kill interrupts is done again from the start, and nothing is in both queues, or in none.
    """
    journal = Journal(journal_path)
    with (
        open_queue(source_path, "shared", journal) as source,
        open_queue(target_path, "shared", journal) as target,
    ):
        while source.stats().depth and os.getppid() == demo_pid:  # the demo itself was not killed
            with holdfast.transaction(source, target) as tx:
                message = tx.receive(source, timeout=10)
                journal.note("begun", message.offset)
                time.sleep(random.uniform(0, WORK_SECONDS_MAX))
                tx.put(target, enrich(message.payload), headers={"source-offset": str(message.offset)})
                tx.ack(source, message)
            journal.note("moved", message.offset)  # the transaction has committed


if __name__ == "__main__":
    move(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
