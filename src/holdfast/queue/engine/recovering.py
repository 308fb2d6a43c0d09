"""Recovers a queue that is about to be owned: its groups, its log, and what pending commit records order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from holdfast.clock import Clock
from holdfast.persistence.filesystem.layout import QueueDirectory, list_batch_files, list_segments
from holdfast.persistence.filesystem.storage import Storage, storage_errors
from holdfast.persistence.groups.group_files import list_groups, progress_reader, sync_deletions
from holdfast.persistence.groups.own_group import OwnGroup
from holdfast.persistence.log.log_files import LogFiles
from holdfast.persistence.log.log_writer import LogWriter
from holdfast.persistence.outcomes.outcome_log import COMMITTED
from holdfast.persistence.outcomes.prepared_files import PreparedFiles
from holdfast.persistence.outcomes.redo import OWN, redo_commit_records
from holdfast.persistence.outcomes.waiting_puts import waiting_puts
from holdfast.persistence.prepared_log.prepared_log import PreparedLog
from holdfast.persistence.recovery.log_recovery import RecoveredLog, recover_log
from holdfast.persistence.segment.staged_file import remove_abandoned
from holdfast.queue.producer.waiting_batches import copy_bytes_max


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
    sync_deletions(storage, directory, groups)  # what a killed process has deleted stays deleted
    for group in groups:
        seen = max(seen, own_group.recover(group).seen_end)
    log = recover_log(storage, directory, files, queue_id, finished_offset=seen)
    log.tail.commit_records.keep_sessions(living)
    undone = redo_commit_records(storage, directory, queue_id, clock, log.tail.commit_records)
    seconds = clock.monotonic() - started
    return replace(log, report=replace(log.report, seconds=seconds, progress_damage=tuple(undone)))


def open_prepared(
    storage: Storage, directory: QueueDirectory, queue_id: bytes, writer: LogWriter, file_bytes: int
) -> PreparedFiles:
    """Return what waits in ``prepared/``, with the prepared log emptied; behind :func:`recover`.

    Raises DiskFullError or StorageError.
    """
    pending = writer.pending_commit_records
    log = PreparedLog(storage, directory, queue_id, copy_bytes_max(file_bytes), writer.check_fence)
    prepared = PreparedFiles(storage, directory, log)

    def outcome_of(nonce: bytes) -> int | None:
        if pending.find(nonce) is not None:
            return COMMITTED
        known = prepared.outcome_log.find_nonce(nonce)
        return None if known is None else known.outcome

    with storage_errors("clearing", directory.prepared):  # first: a move must not write into what a sync has failed on
        remove_abandoned(storage, directory)
        waits = bool(list_segments(storage, directory) or list_batch_files(storage, directory))
    may_move = not waits or writer.reserve_rest()  # what is in a file may be committed by sealing the active one
    log.take_over(outcome_of, lambda: _votes_without_file(storage, directory, queue_id), may_move=may_move)
    return prepared


def _votes_without_file(storage: Storage, directory: QueueDirectory, queue_id: bytes) -> set[bytes]:
    """Return the nonces of votes that this queue's log decides, and whose puts are in no batch file."""
    readers = (progress_reader(storage, directory, queue_id, group) for group in list_groups(storage, directory))
    votes = [vote for reader in readers for vote in reader.refresh().votes.values()]
    own = {each.nonce for each in votes if each.coordinator is not None and each.coordinator.path == OWN}
    return own - {each.nonce for each in waiting_puts(storage, directory, queue_id, ())}
