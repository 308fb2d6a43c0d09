"""Makes the golden queues of a joint commit over several: run once for each format version, commit what it makes.

``PYTHONPATH=tests python -m support.golden.golden_queues_joint_commit tests/compat/queues-joint-v2`` leaves two
queues whose process was killed in the middle of a joint commit: the part of the one is in its log, that of the other
waits. A part that was not named is still there, and so is one of the next version. With a second argument ``once`` the
application commits once: the document forgets it when every queue has followed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from holdfast import PersistentQueue
from holdfast.persistence.filesystem.storage import OsStorage
from holdfast.queue.prepared.prepared_resolver import PreparedResolver
from holdfast.queue.queues_joint_commits import QueuesJointCommits
from support.builders.joint import file_part

APPLICATION, VERSION = "stream", 7
NAMES = ("first", "second")
"""Of the queues, and their one payload."""

LOSER, NEXT = "loser", "next"
"""Ids of parts of this version and of the next one, in the second queue."""


def main(path: Path, *, is_remembered: bool = True) -> None:
    """Make the queues, and die between them."""
    for name in NAMES:
        with PersistentQueue(path / name, mode="exclusive", data_file_bytes=16 * 1024) as queue:
            queue.put(b"taken")
            assert queue.get() == b"taken"
    commits = QueuesJointCommits(path, mode="exclusive")
    commits.create()
    storage, part_of = OsStorage(), commits.part_of(APPLICATION, VERSION)
    parts = [file_part(storage, path / name, name, part_of) for name in NAMES]
    file_part(storage, path / NAMES[1], LOSER, part_of)
    file_part(storage, path / NAMES[1], NEXT, commits.part_of(APPLICATION, VERSION + 1))
    settle = PreparedResolver.settle

    def dying(self: PreparedResolver, transaction_id: str, nonce: bytes, *, lets_go: bool = False) -> bool:
        if transaction_id == NAMES[1]:
            for lock in (*path.rglob("*.lock"), *path.rglob("lock")):
                lock.unlink()  # they say who made this, which is nobody's business
            for reserve in path.glob("*/groups/.reserve"):
                reserve.unlink()  # room, and nothing in it
            os._exit(0)
        return settle(self, transaction_id, nonce, lets_go=lets_go)

    PreparedResolver.settle = dying  # type: ignore[method-assign]
    commits.commit(APPLICATION, VERSION, parts, is_remembered=is_remembered)


if __name__ == "__main__":
    main(Path(sys.argv[1]), is_remembered=sys.argv[2:] != ["once"])
