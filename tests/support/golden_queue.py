"""Makes the golden queue of the present format version: run once for each version, commit what it makes, never again.

``python tests/support/golden_queue.py tests/compat/v1`` leaves a queue with three data files (two sealed by rolling,
one cut short as a killed process leaves it), batches, headers, an empty payload, two groups and acknowledgements out of
order. ``tests/compat/test_golden_queues.py`` knows what must come out of it, whatever version reads it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from holdfast import PersistentQueue

DATA_FILE_BYTES = 16 * 1024
MESSAGE_COUNT = 90


def payload(offset: int) -> bytes:
    """Return what the golden queue holds at an offset."""
    return b"" if offset == 7 else f"message {offset} ".encode() * (1 + offset * 7 % 60)


def main(path: Path) -> None:
    """Make the queue, and die without closing it."""
    queue = PersistentQueue(path, data_file_bytes=DATA_FILE_BYTES)
    queue.put(payload(0), headers={"tenant": "acme", "größe": "1"})
    queue.put_many([payload(offset) for offset in range(1, 20)])
    for offset in range(20, MESSAGE_COUNT):
        queue.put(payload(offset))
    queue.groups.create("audit", start=10)
    assert queue.get_many(5) == [payload(offset) for offset in range(5)]
    deliveries = queue.receive_many(10)
    deliveries.ack([deliveries[2], deliveries[4]])  # offsets 7 and 9; 5, 6, 8 and 10 to 14 were delivered once
    for lock in path.rglob("*.lock"):
        lock.unlink()  # they say who made this, which is nobody's business
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
