"""Makes the golden queue of retention: run once for each format version, commit what it makes, never again.

``PYTHONPATH=tests python -m support.golden.golden_retention tests/compat/retention-v2`` leaves a queue that was
killed with every setting of retention. Its default group has skipped messages, one while a session had it in hand. A
group that nothing had open has skipped others. A dead letter and a vote were not skipped.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from holdfast import PersistentQueue
from support.builders.clocks import FakeClock
from support.builders.handles import handle_of, pass_over

SETTINGS: dict[str, Any] = {
    "retain_age": 604_800.0,
    "retain_bytes": 10**9,
    "retain_messages": 10**6,
    "data_file_max_age": 3600.0,
    "min_free_bytes": 1,
}
GROUP_SETTINGS: dict[str, Any] = {"max_lag_age": 7200.0, "max_lag_bytes": 10**9}
SLEEPS = "sleeps"
NUMBER = 1 << 32 | 7
"""Of the delivery in hand: take 7 of session 1."""
DEAD, HELD, IN_HAND = 0, 1, 2
HOURS = 8
SKIPPED = 3
"""In hand, and two that were never handed out. The group that sleeps has skipped the first two messages, too."""


def main(path: Path) -> None:
    """Make the queue, and die."""
    clock = FakeClock()
    queue = PersistentQueue(
        path, mode="exclusive", clock=clock, data_file_bytes=16 * 1024, **SETTINGS, **GROUP_SETTINGS
    )
    queue.groups.create(SLEEPS, **GROUP_SETTINGS)
    for number in range(HOURS):
        queue.put(str(number).encode())
        if number == DEAD:
            queue.receive().reject("no use")
        if number == HELD:
            transaction = queue.begin()
            transaction.ack(transaction.receive())
            transaction.prepare("held")
        if number == IN_HAND:
            handle_of(queue).require_read_side().receive(1, 0, number=NUMBER)
        clock.advance(3600)
        pass_over(queue)
    for lock in path.rglob("*.lock"):
        lock.unlink()  # they say who made this
    (path / "groups" / ".reserve").unlink()  # room, and nothing in it
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
