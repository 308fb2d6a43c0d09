"""The consumer group of a stream: keeps the messages that Spark may still ask for, and finishes the others.

The group has no owner. The process in which Spark reports a committed batch owns it for a moment, to finish messages;
so a stream holds no lock while it runs, and leaves none when it is killed.
"""

from __future__ import annotations

from holdfast.arrow.reading.file_range import Runs
from holdfast.clock import SystemClock
from holdfast.errors import ConfigError, QueueLockedError
from holdfast.persistence.filesystem.locks import read_owner
from holdfast.persistence.filesystem.storage import storage_errors
from holdfast.persistence.format.constants import ENTRY_FLOOR
from holdfast.persistence.groups.group_files import (
    GroupInfo,
    find_group,
    groups_locked,
    progress_reader,
    require_group,
    sync_group,
)
from holdfast.persistence.groups.group_visit import visit_group
from holdfast.persistence.groups.position_entry import NO_HINT, Change
from holdfast.persistence.groups.progress import GroupProgress
from holdfast.persistence.groups.reclaim import retire_finished_files
from holdfast.persistence.log.log_files import LogFiles
from holdfast.queue.engine.handle_settings import stored_retention
from holdfast.queue.persistent_queue import PersistentQueue
from holdfast.spark.streaming.log import StreamLog


def begin_group(log: StreamLog, group: str, offset: int) -> GroupInfo:
    """Create a group that starts at an offset, if there is none; return the group."""
    if find_group(log.storage, log.directory, group) is not None:
        path, clock = log.directory.group(group), SystemClock()
        with storage_errors("beginning a stream", path), groups_locked(log.storage, log.directory, clock):
            sync_group(log.storage, log.directory, group)  # its maker may have been killed before
            return require_group(log.storage, log.directory, group)
    with PersistentQueue(log.directory.root, mode="shared") as handle:
        handle.groups.create(group, min(offset, log.end))
    return require_group(log.storage, log.directory, group)


def unfinished_from(log: StreamLog, group: str) -> int:
    """Return the first offset that a group has not finished; the end of the log if there is no such group."""
    found = find_group(log.storage, log.directory, group)
    if found is None:
        return log.end
    return progress_reader(log.storage, log.directory, log.queue_id, found).refresh().floor


def never_there(log: StreamLog, group: str, group_id: str) -> Runs:
    """Return the ascending offsets that had been retired before a group was made: none of its business, and no loss.

    A group of that name with another id was made later than the stream's: messages unknown to it may be lost.
    """
    found = find_group(log.storage, log.directory, group)
    if found is None or found.group_id.hex() != group_id:
        return ()
    return tuple(sorted((gone.start, gone.stop) for gone in found.retired))


def finish_below(log: StreamLog, group: str, offset: int) -> None:
    """Finish every message of a group below an offset, durably, and retire the data files that no group needs.

    Raises
    ------
    QueueLockedError
        A process reads for the group just now; it is named. Nothing is lost by finishing later.
    ConfigError
        A consumer uses this group.

    Notes
    -----
    Cost: four syncs and one entry, however many messages; more only after the end of a data file.
    """
    offset = min(offset, log.end)  # the next message may get the offset of a lost one
    clock, floors = SystemClock(), list[int]()

    def changes(progress: GroupProgress) -> list[Change]:
        if progress.deliveries or progress.dead or progress.votes:
            raise ConfigError(
                f"group {group!r} of {log.directory.root} is used by a consumer, or has dead letters of messages whose "
                "ttl is over: give the stream a group of its own, with expired='drop'"
            )
        if progress.floor >= offset:
            return []
        floors.append(progress.floor)
        return [Change(ENTRY_FLOOR, offset, progress.lost_count, NO_HINT)]

    with storage_errors("finishing messages", log.directory.group(group)):
        with groups_locked(log.storage, log.directory, clock):
            is_done = visit_group(
                log.storage,
                log.directory,
                log.queue_id,
                clock,
                group,
                changes,
                is_needed=lambda progress: progress.floor < offset,
            )
        if not is_done:
            raise _locked(log, group)
        if floors and any(floors[0] < name.first_offset <= offset for name in log.names):
            files = LogFiles(log.storage, log.directory, log.queue_id)
            retire_finished_files(log.directory, files, clock, stored_retention(log.storage, log.directory))


def _locked(log: StreamLog, group: str) -> QueueLockedError:
    path = log.directory.group_lock(group)
    owner = read_owner(log.storage, path)
    return QueueLockedError(
        f"group {group!r} of {log.directory.root} is owned by process {owner.pid} on {owner.host}: "
        "give the stream a group of its own",
        path=str(path),
        pid=owner.pid,
        host=owner.host,
    )
