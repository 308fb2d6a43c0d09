"""Makes the golden queue of filters: run once for each format version, commit what it makes, never again.

``PYTHONPATH=tests python -m support.golden.golden_filter tests/compat/filter-v2`` leaves a queue whose process was
killed. Its group has a filter, and has finished some messages unread.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from holdfast import PersistentQueue

GROUP = "paid"
EXPRESSION = "has(headers.kind) && headers.kind == 'paid' || priority > 7"
KINDS = ("open", "paid", "open", "paid", "", "open", "paid")
TAKEN_COUNT = 1


def main(path: Path) -> None:
    """Make the queue, and die."""
    with PersistentQueue(path, mode="exclusive", data_file_bytes=16 * 1024) as queue:
        queue.groups.create(GROUP, filter=EXPRESSION, lease_seconds=60)
        for number, kind in enumerate(KINDS):
            queue.put(b"%d" % number, headers={"kind": kind} if kind else {})
    queue = PersistentQueue(path, mode="exclusive", group=GROUP)
    queue.get_many(TAKEN_COUNT, timeout=0)
    queue.put(b"urgent", priority=8)
    for lock in path.rglob("*.lock"):
        lock.unlink()  # they say who made this, which is nobody's business
    (path / "groups" / ".reserve").unlink()  # room, and nothing in it
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
