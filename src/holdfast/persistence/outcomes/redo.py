"""Redo: does again, after a crash, what pending commit records order. docs/format.md, "Commit records".

Every step changes nothing if it was done before: a finished message stays finished, a settled vote is gone, and so is a
removed file. The caller holds the write lock and the groups lock, so the owner of a group opened it either after this,
or before with nothing to redo.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

from holdfast.clock import Clock
from holdfast.errors import HoldfastError, QueueLockedError, StorageError
from holdfast.persistence.filesystem.file_names import finish_naming, name_again
from holdfast.persistence.filesystem.layout import (
    QueueDirectory,
    is_segment_name,
    list_batch_files,
    list_segments,
    open_directory,
)
from holdfast.persistence.filesystem.storage import MISSING, Storage, real_path
from holdfast.persistence.format.commit_record import Acknowledged, CommitRecord, Participant
from holdfast.persistence.format.constants import ENTRY_DONE
from holdfast.persistence.format.report import DAMAGED, Damage
from holdfast.persistence.groups.group_files import find_group, progress_reader, sync_absence
from holdfast.persistence.groups.group_visit import visit_group
from holdfast.persistence.groups.position_entry import Change
from holdfast.persistence.groups.progress import GroupProgress
from holdfast.persistence.groups.reach import Reach
from holdfast.persistence.groups.vote import outcome_changes
from holdfast.persistence.log.pending_commit_records import DurabilityCheck, Needs, OwnFile, PendingCommitRecords
from holdfast.persistence.outcomes.outcome_log import COMMITTED, OutcomeLog
from holdfast.persistence.segment.batch_file_reader import read_summary

OWN = "."
"""Path of a participant that is a side of the same queue."""


def redo_commit_records(
    storage: Storage, directory: QueueDirectory, queue_id: bytes, clock: Clock, commit_records: PendingCommitRecords
) -> list[Damage]:
    """Redo pending commit records, durably, and end those that are complete; return undone changes as damage.

    Files that a killed process prepared or removed are made durable before any step acts upon them.
    """
    if directory.prepared.name in storage.list(directory.root):
        finish_naming(storage, directory.prepared)
        for transaction_id in list_batch_files(storage, directory):
            name_again(storage, directory.batch_file(transaction_id))
        if directory.joint.name in storage.list(directory.prepared):
            name_again(storage, directory.joint)
        storage.sync_directory(directory.prepared)
    bounded, damage = _bounded(Reach(storage, directory), directory, list(commit_records))
    settled = _note_in_groups(storage, directory, queue_id, clock, bounded)
    for commit_record in commit_records:
        _remember(storage, directory, commit_record)
        _remove_waiting_file(storage, directory, queue_id, commit_record)
        watch(storage, directory, clock, commit_records, commit_record, settled)
    commit_records.end(commit_records.applied_needs(), frozenset())
    return damage


def _bounded(
    reach: Reach, directory: QueueDirectory, commit_records: Sequence[CommitRecord]
) -> tuple[list[CommitRecord], list[Damage]]:
    """Return commit records without the runs that reach beyond the log, and damage for those runs."""
    bounded, damage = [], []
    for commit_record in commit_records:
        acknowledged = []
        for each in commit_record.acknowledged:
            runs = tuple(run for run in each.runs if reach.covers(run[0] + run[1]))
            acknowledged.append(replace(each, runs=runs))
            if runs != each.runs:
                reason = f"commit record {commit_record.id} finishes messages of group {each.group!r} beyond the log"
                damage.append(Damage(directory.data, 0, 0, range(0), DAMAGED, f"{reason}; they do not count"))
        bounded.append(replace(commit_record, acknowledged=tuple(acknowledged)))
    return bounded, damage


def _note_in_groups(
    storage: Storage, directory: QueueDirectory, queue_id: bytes, clock: Clock, commit_records: Sequence[CommitRecord]
) -> set[str]:
    """Note in each group, once for all commit records, what they finish; return the groups whose votes are settled.

    Raises QueueLockedError if the old owner still owns a group that has to note acknowledgements.
    """
    acknowledged: dict[str, list[Acknowledged]] = {}
    voted: dict[str, list[bytes]] = {}
    for commit_record in commit_records:
        for each in commit_record.acknowledged:
            if _is_same_group(storage, directory, each):
                acknowledged.setdefault(each.group, []).append(each)
        for side in commit_record.participants:
            if side.path == OWN:
                voted.setdefault(side.group, []).append(commit_record.nonce)
    settled = set()
    for group in {**acknowledged, **voted}:
        finish = partial(_finish, acknowledged.get(group, []))
        settle = partial(_settle, voted.get(group, []))
        both = partial(_both, finish, settle)
        is_needed = _always if group in voted else both  # an owner may have settled a vote without a sync yet
        if visit_group(storage, directory, queue_id, clock, group, both, is_needed=is_needed):
            settled.add(group)
        elif not visit_group(storage, directory, queue_id, clock, group, finish):
            raise _still_owned(directory, group)
    return settled


def _still_owned(directory: QueueDirectory, group: str) -> QueueLockedError:
    """Return the error for a group whose closing owner has not noted its outcomes."""
    return QueueLockedError(
        f"group {group!r} of {directory.root} has not noted every outcome, and a handle that is being closed "
        "owns it; try again when it is closed",
        path=str(directory.group(group)),
        pid=None,
        host=None,
    )


def watch(
    storage: Storage,
    directory: QueueDirectory,
    clock: Clock,
    commit_records: PendingCommitRecords,
    commit_record: CommitRecord,
    settled: Collection[str],
) -> None:
    """Let a commit record end once all participants have noted it, beside those groups of this queue that have."""
    others = [each for each in commit_record.participants if each.path != OWN or each.group not in settled]
    checks = [settled_check(storage, directory.root, clock, each, commit_record.nonce) for each in others]
    own = {OwnFile.PREPARED} if _may_be_in_segment(storage, directory, commit_record) else set[OwnFile]()
    commit_records.applied(commit_record.nonce, Needs(frozenset(own), tuple(checks)))


def _may_be_in_segment(storage: Storage, directory: QueueDirectory, commit_record: CommitRecord) -> bool:
    """Whether a segment has the batch, perhaps: one that has moved since is in its segment, too."""
    path = directory.root / commit_record.waiting_file
    return is_segment_name(path.name) or (path.parent == directory.prepared and bool(list_segments(storage, directory)))


def settled_check(
    storage: Storage, root: Path, clock: Clock, participant: Participant, nonce: bytes
) -> DurabilityCheck:
    """Return a function that calls :func:`has_settled`."""
    return partial(has_settled, storage, root, clock, participant, nonce)


def _is_same_group(storage: Storage, directory: QueueDirectory, acknowledged: Acknowledged) -> bool:
    group = find_group(storage, directory, acknowledged.group)
    return group is not None and group.group_id in (acknowledged.group_id, bytes(16))


def _finish(acknowledged: Sequence[Acknowledged], progress: GroupProgress) -> list[Change]:
    return [
        Change(ENTRY_DONE, first, count, (sequence, end))
        for each in acknowledged
        for first, count, sequence, end in each.runs
        if progress.unfinished_in(first, first + count)
    ]


def _settle(nonces: Sequence[bytes], progress: GroupProgress) -> list[Change]:
    votes = [progress.votes[nonce] for nonce in nonces if nonce in progress.votes]
    return [change for vote in votes for change in outcome_changes(vote, committed=True)]


def _both(
    finish: Callable[[GroupProgress], list[Change]],
    settle: Callable[[GroupProgress], list[Change]],
    progress: GroupProgress,
) -> list[Change]:
    return finish(progress) + settle(progress)


def _remember(storage: Storage, directory: QueueDirectory, commit_record: CommitRecord) -> None:
    if not commit_record.waiting_file.startswith(f"{directory.prepared.name}/"):
        return  # outcomes of other coordinators are remembered too: the batch file may come back
    outcome_log = OutcomeLog(storage, directory.outcome_log)
    try:
        outcome_log.note(
            commit_record.id, commit_record.nonce, COMMITTED, commit_record.offsets, commit_record.timestamp_ns
        )
        outcome_log.sync()
    finally:
        outcome_log.close()


def _remove_waiting_file(
    storage: Storage, directory: QueueDirectory, queue_id: bytes, commit_record: CommitRecord
) -> None:
    """Remove the file of a batch that is in the log now, if it is still that batch's file.

    A batch of the prepared log goes when that is opened, behind this.
    """
    path = directory.root / commit_record.waiting_file
    if not commit_record.waiting_file or is_segment_name(path.name):
        return
    try:
        if read_summary(storage, path, queue_id).commit_record.nonce == commit_record.nonce:
            storage.remove(path)
        storage.sync_directory(path.parent)
    except StorageError:
        return  # damaged: it may be another one of the same id, and is reported when it is asked for
    except MISSING:
        if path.parent.name in storage.list(directory.root):
            storage.sync_directory(path.parent)


# -- Other queues ----------------------------------------------------------------------------------------------------


@cache
def relative_path(target: str, root: str) -> str:
    """Return ``target`` relative to ``root``, both real paths: queues that are moved together find each other."""
    return os.path.relpath(target, root)


def other_root(root: Path, participant: Participant) -> Path:
    """Return the path of another queue, as seen from the one at ``root``."""
    return Path(os.path.normpath(real_path(root) / participant.path))


def find_queue(storage: Storage, root: Path, participant: Participant) -> QueueDirectory | None:
    """Return the directory of another queue; None if it is missing, or has another id."""
    try:
        directory, queue_id, _ = open_directory(storage, other_root(root, participant), create=False, writable=False)
    except HoldfastError:
        return None
    return directory if queue_id == participant.queue_id else None


def has_settled(storage: Storage, root: Path, clock: Clock, participant: Participant, nonce: bytes) -> bool:
    """Whether another queue has noted the outcome of its part, durably; False if it cannot be read.

    A durable note of a group's owner cannot be seen from outside: the check is repeated once the group has no owner.
    """
    directory = find_queue(storage, root, participant)
    if directory is None:
        return False
    if not participant.group:
        return _has_committed(storage, directory, participant.queue_id, nonce)
    group = find_group(storage, directory, participant.group)
    if group is None:
        sync_absence(storage, directory, participant.group)
        return True
    progress = progress_reader(storage, directory, participant.queue_id, group).refresh()
    return nonce not in progress.votes and visit_group(
        storage, directory, participant.queue_id, clock, group.name, _nothing, is_needed=_always
    )


def _nothing(progress: GroupProgress) -> list[Change]:
    return []


def _always(progress: GroupProgress) -> bool:
    return True


def _has_committed(storage: Storage, directory: QueueDirectory, queue_id: bytes, nonce: bytes) -> bool:
    """Whether no batch of that transaction waits in ``prepared/`` any more, durably."""
    for name in list_batch_files(storage, directory):
        try:
            if read_summary(storage, directory.batch_file(name), queue_id).commit_record.nonce == nonce:
                return False
        except StorageError:
            return False  # damaged: it may be that batch
    if "prepared" in storage.list(directory.root):
        storage.sync_directory(directory.prepared)
    storage.sync_directory(directory.data)  # the place of an adopted one, whose process may have been killed
    return True
