"""Gives the space of data files back that are not needed, wherever they are in the log. The one place that decides it.

A file goes once every group has finished it, and once it is outside of what retention keeps. The order makes it safe:
every group's progress is synced first, then the file is removed and ``data/`` is synced. A group cannot be created
meanwhile: both hold the groups lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import pairwise

from holdfast.clock import Clock
from holdfast.persistence.filesystem.layout import DataFileName, QueueDirectory
from holdfast.persistence.filesystem.storage import free_bytes
from holdfast.persistence.groups.group_files import groups_locked, list_groups, progress_reader, sync_deletions
from holdfast.persistence.groups.group_visit import make_durable
from holdfast.persistence.groups.progress import GroupProgress
from holdfast.persistence.groups.retention import NOTHING, Distances, Retention
from holdfast.persistence.log.log_files import LogFiles

_FILES_MAX = 1000
"""Retired in one call, which takes a third of a second: who makes a group, or takes, may wait for it."""


def retire_finished_files(
    directory: QueueDirectory,
    files: LogFiles,
    clock: Clock,
    retention: Retention,
    *,
    own_group: str | None = None,
    own: GroupProgress | None = None,
    syncs: Sequence[Callable[[], object]] = (),
) -> list[DataFileName]:
    """Retire sealed data files that all groups have finished and that need not be kept; return their names.

    There may be more of them than one call retires: the oldest go first.

    Parameters
    ----------
    directory, files, clock
        The queue.
    retention : Retention
        What is kept although it is finished.
    own_group, own
        The group whose read side calls, and its progress; None if the caller has none, and all groups are read from the
        disk.
    syncs : sequence of callable
        Make the progress of the groups durable that this process has open. One raises, and nothing is retired, if an
        earlier sync of its group has failed: a second one of another handle could succeed over lost data.
    """
    retire = partial(_retire, directory, files, clock, retention, own_group, own, syncs)
    return groups_locked(files.storage, directory, clock).run(retire)  # a close may follow an interruption at once


def _retire(
    directory: QueueDirectory,
    files: LogFiles,
    clock: Clock,
    retention: Retention,
    own_group: str | None,
    own: GroupProgress | None,
    syncs: Sequence[Callable[[], object]],
) -> list[DataFileName]:
    storage, queue_id = files.storage, files.queue_id
    files.refresh()
    files.remove_rests()
    distances = Distances(directory, files, clock.time_ns())
    missing_bytes = _missing_bytes(directory, retention)
    is_short = missing_bytes > 0
    if is_short:
        files.remove_spares()
        missing_bytes = _missing_bytes(directory, retention)
    if retention.total_bytes_max is not None:
        missing_bytes = max(missing_bytes, files.total_bytes - retention.total_bytes_max)
    outside = distances.outside(NOTHING if missing_bytes else retention.kept)
    ends = {name: following.first_offset for name, following in pairwise(files.names())}  # all but the last
    finished = {name: ends[name] for name in outside}
    if own is not None:
        finished = _finished_by(own, finished)
    if not finished:
        return []
    groups = list_groups(storage, directory)
    others = [group for group in groups if group.name != own_group]
    readers = [progress_reader(storage, directory, queue_id, group) for group in others]
    for reader in readers:
        if finished:
            finished = _finished_by(reader.refresh(), finished)
    if not groups:
        unread = distances.outside(retention.unread)
        finished = {name: end for name, end in finished.items() if name in unread}
    if missing_bytes:
        finished = _enough(files, finished, distances.outside(retention.kept), missing_bytes)
    if not finished:
        return []
    sync_deletions(storage, directory, groups)  # a group must not come back without its files
    for sync in syncs:
        sync()
    for group, reader in zip(others, readers, strict=True):
        finished = _finished_by(make_durable(storage, directory, clock, group, reader), finished)
    retired = list(finished)[:_FILES_MAX]
    for name in retired:
        files.retire(name, is_spare=not is_short and files.size_of(name) <= retention.spare_bytes_max)
    return retired


def _finished_by(progress: GroupProgress, files: dict[DataFileName, int]) -> dict[DataFileName, int]:
    return {name: end for name, end in files.items() if progress.unfinished_in(name.first_offset, end) == 0}


def _missing_bytes(directory: QueueDirectory, retention: Retention) -> int:
    """Return how much less space is free than has to be."""
    free = free_bytes(directory.data) if retention.free_bytes_min else None
    return 0 if free is None else max(0, retention.free_bytes_min - free)


def _enough(
    files: LogFiles, finished: dict[DataFileName, int], outside: Iterable[DataFileName], missing_bytes: int
) -> dict[DataFileName, int]:
    """Return those finished files that go for the space that is missing, oldest first, and those that go anyway."""
    kept = set(finished).difference(outside)
    chosen = {}
    for name, end in finished.items():
        if name in kept and missing_bytes <= 0:
            break
        chosen[name] = end
        missing_bytes -= files.size_of(name)
    return chosen
