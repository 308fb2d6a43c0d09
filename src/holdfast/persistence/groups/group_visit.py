"""Notes something in the books of a group that nobody owns just now, and makes it durable before it lets go.

What an earlier owner has noted is written once more with it: that owner's sync may have failed, and a second sync could
succeed over lost data.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.clock import Clock
from holdfast.persistence.filesystem import locks
from holdfast.persistence.filesystem.layout import QueueDirectory
from holdfast.persistence.filesystem.storage import Storage
from holdfast.persistence.groups.group_files import find_group, progress_reader
from holdfast.persistence.groups.position_entry import Change
from holdfast.persistence.groups.position_file_writer import PositionFileWriter
from holdfast.persistence.groups.progress import GroupProgress

POSITION_FILE_BYTES = 16 * 2**10
"""Enough for a visit; the owner makes larger ones."""


def is_group_free(storage: Storage, directory: QueueDirectory, name: str) -> bool:
    """Whether nobody owns a group. The caller holds the groups lock."""
    lock = locks.try_acquire(storage, directory.group_lock(name))
    if lock is not None:
        lock.release()
    return lock is not None


def visit_group(
    storage: Storage,
    directory: QueueDirectory,
    queue_id: bytes,
    clock: Clock,
    name: str,
    changes: Callable[[GroupProgress], list[Change]],
    *,
    is_needed: Callable[[GroupProgress], object] | None = None,
) -> bool:
    """Append what ``changes`` makes of a group's progress, durably; False where somebody owns the group.

    A group that does not exist has nothing to be noted. Neither has one whose owner has noted it all, for it wrote
    down, when it came, what it had found; ``is_needed`` says whether there is more, and is ``changes`` unless given.
    """
    is_needed = is_needed or changes
    group = find_group(storage, directory, name)
    if group is None:
        return True
    reader = progress_reader(storage, directory, queue_id, group)
    lock = locks.try_acquire(storage, directory.group_lock(name), is_visitor=True)
    if lock is None:
        return not is_needed(reader.refresh())
    try:
        positions = PositionFileWriter(
            storage,
            directory.group(name),
            clock,
            queue_id,
            group.group_id,
            reader.refresh,
            file_bytes=POSITION_FILE_BYTES,
        )
        try:
            new = changes(positions.progress)
            if new:
                positions.append(new)
        finally:
            positions.close()
    finally:
        lock.release()
    return True
