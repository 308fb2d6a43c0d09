"""Appends to the progress of a group without an owner, and makes it durable before it releases the group's lock.

It writes the progress of the earlier owner again: that owner's sync may have failed, and a second sync could succeed
over lost data.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from holdfast.clock import Clock
from holdfast.persistence.filesystem import locks
from holdfast.persistence.filesystem.layout import QueueDirectory, within
from holdfast.persistence.filesystem.storage import MISSING, Storage
from holdfast.persistence.groups.group_files import (
    GroupInfo,
    find_group,
    make_life_durable,
    progress_reader,
    sync_absence,
)
from holdfast.persistence.groups.position_entry import Change, floor_change
from holdfast.persistence.groups.position_file_reader import PositionFileReader
from holdfast.persistence.groups.position_file_writer import NEXT, POSITION_FILE_BYTES_MIN, PositionFileWriter
from holdfast.persistence.groups.position_run import apply_run
from holdfast.persistence.groups.progress import GroupProgress


def is_group_free(storage: Storage, directory: QueueDirectory, name: str) -> bool:
    """Whether a group has no owner. The caller holds the groups lock."""
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
    is_doubtful: bool = False,
    in_checkpoint: bool = False,
) -> bool:
    """Append the entries that ``changes`` returns for a group's progress, durably; False if the group has an owner.

    A group that does not exist needs no entries. Neither does a group whose owner has noted everything, because an
    owner rewrites the progress that it finds. ``is_needed`` tells whether entries are needed; the default is
    ``changes``. ``is_doubtful``: a visit before may have failed in the sync of a file that it could not remove.
    ``in_checkpoint``: the file begins with the progress behind the changes, which may take much less space. Then an
    error does not say that nothing is noted.
    """
    is_needed = is_needed or changes
    group = find_group(storage, directory, name)
    if group is not None:
        lock = locks.try_acquire(storage, directory.group_lock(name), is_visitor=True)
        if lock is None:
            return not is_needed(progress_reader(storage, directory, queue_id, group).refresh())
        try:
            group = find_group(storage, directory, name)  # until now its owner could begin another life
            if group is not None:
                reader = progress_reader(storage, directory, queue_id, group)
                make_life_durable(storage, directory, group, reader)
                if is_doubtful:
                    with suppress(*MISSING):
                        storage.remove(within(directory.group(name), NEXT))
                _append(storage, directory.group(name), clock, reader, changes, in_checkpoint=in_checkpoint)
        finally:
            lock.release()
    if group is None:
        sync_absence(storage, directory, name)
    return True


def _append(
    storage: Storage,
    path: Path,
    clock: Clock,
    reader: PositionFileReader,
    changes: Callable[[GroupProgress], list[Change]],
    *,
    in_checkpoint: bool,
) -> None:
    if in_checkpoint:
        apply_run(changes(reader.progress), reader.progress)
    positions = PositionFileWriter(storage, path, clock, reader, file_bytes=POSITION_FILE_BYTES_MIN)
    try:
        new = changes(positions.progress)
        if new or in_checkpoint:
            positions.append(new or _floor_again(positions.progress))  # with the witness behind it
    finally:
        positions.close()


def make_durable(
    storage: Storage, directory: QueueDirectory, clock: Clock, group: GroupInfo, reader: PositionFileReader
) -> GroupProgress:
    """Make the progress of a group durable that another handle has written; return it.

    If its file does not prove that it was synced, a sync may have failed in a process that is gone, and a second one
    could succeed over lost data. So it is written again. That of a group with an owner is synced. The caller holds the
    groups lock.
    """
    if reader.is_durable:
        return reader.progress
    name, always = group.name, lambda progress: True
    is_free = visit_group(
        storage, directory, reader.ids[0], clock, name, _floor_again, is_needed=always, is_doubtful=True
    )
    if not is_free:
        reader.sync()
    return reader.refresh()


def _floor_again(progress: GroupProgress) -> list[Change]:
    """Return the entry that proves, once the writer has closed, that all before it is on the disk."""
    return [floor_change(progress.floor, progress.lost_count, progress.skipped_count, progress.hint)]
