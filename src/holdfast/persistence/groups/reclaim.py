"""Gives the space of finished data files back, wherever they are in the log.

The order makes it safe: every group's progress is synced first, then the file is removed and ``data/`` is synced. A
group cannot be created meanwhile: both hold the groups lock.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from holdfast.clock import Clock
from holdfast.persistence.filesystem.layout import DataFileName, QueueDirectory
from holdfast.persistence.groups.group_files import groups_locked, list_groups, progress_reader, sync_deletions
from holdfast.persistence.groups.progress import GroupProgress
from holdfast.persistence.log.log_files import LogFiles


def retire_finished_files(
    directory: QueueDirectory,
    files: LogFiles,
    clock: Clock,
    *,
    own_group: str | None = None,
    own_progress: GroupProgress | None = None,
    sync_own: Callable[[], object] | None = None,
) -> list[DataFileName]:
    """Retire every sealed data file that all groups have finished; return their names.

    Parameters
    ----------
    directory, files, clock
        The queue.
    own_group, own_progress, sync_own
        The group whose read side calls, its progress, and a function that makes it durable; None if the caller owns no
        group, and all groups are read from the disk.
    """
    storage, queue_id = files.storage, files.queue_id
    with groups_locked(storage, directory, clock):
        files.refresh()
        finished = {name: following.first_offset for name, following in pairwise(files.names())}  # all but the last
        if own_progress is not None:
            finished = _finished_by(own_progress, finished)
        if not finished:
            return []
        groups = list_groups(storage, directory)
        readers = [progress_reader(storage, directory, queue_id, group) for group in groups if group.name != own_group]
        for reader in readers:
            if finished:
                finished = _finished_by(reader.refresh(), finished)
        if not finished or not groups:
            return []
        sync_deletions(storage, directory, groups)  # a group must not come back without its files
        if sync_own is not None:
            sync_own()
        for reader in readers:
            reader.sync()
        for name in finished:
            files.retire(name)
        return list(finished)


def _finished_by(progress: GroupProgress, files: dict[DataFileName, int]) -> dict[DataFileName, int]:
    return {name: end for name, end in files.items() if progress.unfinished_in(name.first_offset, end) == 0}
