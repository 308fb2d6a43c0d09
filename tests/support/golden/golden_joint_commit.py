"""Makes the golden queue of joint commits: run once for each format version, commit what it makes, never again.

``PYTHONPATH=tests python -m support.golden.golden_joint_commit tests/compat/joint-v2`` leaves a queue whose process
was killed in the middle of a joint commit: one of its three parts is in the log, a part that was not named is still
there, and so is one of the next version. Another application has committed before.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from holdfast import PersistentQueue
from holdfast.queue.prepared.prepared_resolver import PreparedResolver

APPLICATION, VERSION = "stream", 7
OTHER, OTHER_VERSION = "other", 3
PARTS = ("first", "second", "third")
NEXT = "next"
"""Id of the part of the next version, and its one payload."""


def prepare(queue: PersistentQueue, id: str, application: str, version: int) -> str:
    """Prepare a part that puts its id."""
    transaction = queue.begin()
    transaction.put(id.encode())
    return transaction.prepare(id, part_of=(application, version))


def main(path: Path) -> None:
    """Make the queue, and die between two parts."""
    queue = PersistentQueue(path, mode="exclusive", data_file_bytes=16 * 1024)
    queue.put(b"taken")
    assert queue.get() == b"taken"
    queue.joint_commits.commit(OTHER, OTHER_VERSION, [prepare(queue, "before", OTHER, OTHER_VERSION)])
    ids = [prepare(queue, id, APPLICATION, VERSION) for id in PARTS]
    prepare(queue, "loser", APPLICATION, VERSION)
    prepare(queue, NEXT, APPLICATION, VERSION + 1)
    settle = PreparedResolver.settle

    def dying(self: PreparedResolver, transaction_id: str, nonce: bytes, *, lets_go: bool = False) -> bool:
        if transaction_id == PARTS[1]:
            for lock in path.rglob("*.lock"):
                lock.unlink()  # they say who made this, which is nobody's business
            (path / "groups" / ".reserve").unlink()  # room, and nothing in it
            os._exit(0)
        return settle(self, transaction_id, nonce, lets_go=lets_go)

    PreparedResolver.settle = dying  # type: ignore[method-assign]
    queue.joint_commits.commit(APPLICATION, VERSION, ids)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
