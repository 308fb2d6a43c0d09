"""The producer: puts each event into the queue, and may be killed at any moment."""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

from examples.demo.events import read_events
from examples.demo.journal import Journal
from examples.demo.opening import open_queue

PAUSE_SECONDS_MAX = 0.002
"""Longest pause between two events, so that the show lasts some seconds."""


def produce(queue_path: Path, journal_path: Path, event_count: int) -> None:
    """Put the events that are not in the queue yet.

    The queue itself knows where to go on: event *n* has offset *n*, so the next offset is the next event. That counts
    a put whose process was killed before it could return, and nothing goes in twice.
    """
    journal = Journal(journal_path)
    events = read_events(event_count)
    with open_queue(queue_path, "produce", journal) as queue:
        first = queue.stats().next_offset
        journal.note("resumed", first)
        for event in events[first:]:
            offset = queue.put(event)
            journal.note("put", offset)
            time.sleep(random.uniform(0, PAUSE_SECONDS_MAX))


if __name__ == "__main__":
    produce(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
