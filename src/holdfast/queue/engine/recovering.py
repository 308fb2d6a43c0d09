"""Recovers a queue that is about to be owned: its groups, its log, and what pending commit records order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from holdfast.clock import Clock
from holdfast.persistence.filesystem.layout import QueueDirectory
from holdfast.persistence.filesystem.storage import Storage
from holdfast.persistence.groups.group_files import list_groups, sync_deletions
from holdfast.persistence.groups.own_group import OwnGroup
from holdfast.persistence.log.log_files import LogFiles
from holdfast.persistence.outcomes.redo import redo_commit_records
from holdfast.persistence.recovery.log_recovery import RecoveredLog, recover_log


def recover(
    storage: Storage,
    directory: QueueDirectory,
    queue_id: bytes,
    clock: Clock,
    files: LogFiles,
    own_group: OwnGroup,
    living: Callable[[int], bool],
) -> RecoveredLog:
    """Recover everything, and return the log, whose report tells of all of it.

    The caller holds the write lock and the groups lock. Commit records stay pending for sessions that are ``living``.
    """
    started = clock.monotonic()
    seen = 0
    groups = list_groups(storage, directory)
    sync_deletions(storage, directory, groups)  # the result of opening does not change
    for group in groups:
        seen = max(seen, own_group.recover(group).seen_end)
    log = recover_log(storage, directory, files, queue_id, finished_offset=seen)
    log.tail.commit_records.keep_sessions(living)
    undone = redo_commit_records(storage, directory, queue_id, clock, log.tail.commit_records)
    seconds = clock.monotonic() - started
    return replace(log, report=replace(log.report, seconds=seconds, progress_damage=tuple(undone)))
