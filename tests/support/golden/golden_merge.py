"""Makes the golden queue of merged data files: run once for each format version, commit what it makes, never again.

``PYTHONPATH=tests python -m support.golden.golden_merge tests/compat/merge-v2`` leaves a queue that was killed behind a
merge. In the merged file are a dead letter, a message that has failed, and one that only the second group needs.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from holdfast import PersistentQueue
from support.builders.clocks import FakeClock
from support.builders.handles import handle_of
from support.owners.second_groups import open_beside

SLOW = "slow"
FILES, IN_FILE = 3, 12
DEAD, FAILED, SLEPT_ON = 4, 17, 30
LIVE = (DEAD, FAILED, SLEPT_ON)
END = FILES * IN_FILE
REASON = "no such address"


def payload(offset: int) -> bytes:
    """Return a payload: twelve of them are more than a data file has, so that a batch gets one of its own."""
    return b"%04d" % offset + bytes(2300)


def main(path: Path) -> None:
    """Make the queue, and die."""
    queue = PersistentQueue(path, mode="exclusive", clock=FakeClock(), data_file_bytes=16 * 1024, backoff=[])
    queue.groups.create(SLOW)
    for first in range(0, END, IN_FILE):
        queue.put_many([payload(offset) for offset in range(first, first + IN_FILE)])
    queue.put(b"last", headers={"kind": "last"})
    deliveries = queue.receive_many(END)
    deliveries.ack([each for each in deliveries if each.offset not in (DEAD, FAILED)])
    deliveries[DEAD].reject(REASON)
    with open_beside(queue, SLOW) as slow:
        slow.get_many(SLEPT_ON)
        slow.receive()
        slow.get_many(END - SLEPT_ON - 1)
    deliveries[FAILED].nack()
    done = queue.compact()
    assert done.merged_count == 1, done
    assert [name.generation for name in handle_of(queue).files.names()] == [1, 0]
    for lock in path.rglob("*.lock"):
        lock.unlink()  # they say who made this
    (path / "groups" / ".reserve").unlink()  # room, and nothing in it
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
