"""The preparer: makes a transaction durable, leaves it undecided, and waits to be killed."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from holdfast.cli.demo.journal import Journal
from holdfast.cli.demo.opening import open_queue

WAIT_SECONDS = 60.0
"""Longer than it lives."""


def prepare(queue_path: Path, journal_path: Path) -> None:
    """Take one message, put an answer, and prepare both: from here on they outlive this process, and are undecided."""
    journal = Journal(journal_path)
    with open_queue(queue_path, "exclusive", journal) as queue:
        tx = queue.begin()
        question = tx.receive(timeout=10)
        tx.put(b"answer to " + question.payload)
        tx.ack(question)
        journal.note("prepared", tx.prepare())
        time.sleep(WAIT_SECONDS)


if __name__ == "__main__":
    prepare(Path(sys.argv[1]), Path(sys.argv[2]))
