"""Commits one transaction over several queues: all of it after any crash, or nothing. docs/transactions.md.

One queue coordinates. The others prepare. Then the coordinator's batch, with its commit record, goes into its log and
is synced: that is the commit. A queue that has prepared and crashes asks the coordinator; if its log has no commit
record, there will never be one.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from holdfast.errors import (
    CommitUnknownError,
    DiskFullError,
    HoldfastError,
    PoisonedError,
    StorageError,
)
from holdfast.persistence.filesystem.storage import is_disk_full
from holdfast.persistence.format.commit_record import CommitRecord, Participant
from holdfast.persistence.log.follow_up import follow_up
from holdfast.persistence.log.pending_commit_records import DurabilityCheck
from holdfast.persistence.outcomes.redo import relative_path
from holdfast.queue.producer.nonces import next_nonce
from holdfast.queue.transactions.branch import Branch
from holdfast.threads import log_later


def choose_coordinator(branches: Sequence[Branch]) -> Branch:
    """Return the coordinator: a branch that puts, if there is one, because it writes to its log anyway."""
    return max(branches, key=lambda branch: branch.put_count > 0)


def commit_together(branches: Sequence[Branch], transaction_id: str, timeout: float | None) -> dict[Branch, range]:
    """Commit branches as one; return the offsets of each one's puts.

    Its nonce is of this moment, because an owner may be asked: a request that its thread has made since the transaction
    began would be a later one.

    Raises
    ------
    CommitUnknownError
        A sync failed in the middle: the outcome is unknown. The others stay prepared, and follow once the coordinator
        is reopened.
    HoldfastError
        Anything else: nothing has happened; prepared branches are aborted.
    """
    deciding = choose_coordinator(branches)
    others = [branch for branch in branches if branch is not deciding]
    for branch in branches:
        branch.wait_for_space(timeout)
    nonce = next_nonce()
    for branch in branches:
        branch.renew(nonce)
    deciding.begin_deciding()
    try:
        try:
            _vote(others, transaction_id, deciding)
            commit_record = CommitRecord(
                transaction_id,
                nonce,
                deciding.put_count,
                deciding.handle.clock.time_ns(),
                participants=tuple(side for branch in others for side in _handle_of(branch, deciding)),
            )
            offsets = {deciding: deciding.decide(commit_record)}
        except (CommitUnknownError, PoisonedError):
            raise
        except Exception:
            _let_go(others)
            raise
        _follow(others, offsets, deciding)
    finally:
        deciding.end_deciding()
    return offsets


def _as_seen_from(branch: Branch, other: Branch, group: str = "") -> Participant:
    path = relative_path(other.handle.real_path, branch.handle.real_path)
    return Participant(path, other.handle.queue_id, group)


def _handle_of(branch: Branch, deciding: Branch) -> list[Participant]:
    """Return the sides of a prepared branch that wait for the outcome."""
    handle = [_as_seen_from(deciding, branch)] if branch.is_staged else []
    return handle + ([_as_seen_from(deciding, branch, branch.handle.group.name)] if branch.has_voted else [])


def _vote(branches: Sequence[Branch], transaction_id: str, deciding: Branch) -> None:
    """Prepare branches. A failure here means that nothing was decided: a prepared branch finds no commit record."""
    for branch in branches:
        try:
            branch.prepare(transaction_id, _as_seen_from(branch, deciding))
        except (CommitUnknownError, PoisonedError) as error:
            kind = DiskFullError if is_disk_full(error) else StorageError
            raise kind(
                f"{branch.handle.path} could not prepare, so the transaction is aborted everywhere: {error}",
                path=str(branch.handle.path),
            ) from error


def _let_go(branches: Sequence[Branch]) -> None:
    for branch in branches:
        try:
            branch.abort_prepared()
        except HoldfastError as error:
            log_later(
                logging.ERROR,
                "an aborted transaction stays in doubt in %s until it is reopened: %s",
                branch.handle.path,
                error,
            )


def _commit(branch: Branch, offsets: dict[Branch, range]) -> None:
    offsets[branch] = branch.commit_prepared()


def _follow(branches: Sequence[Branch], offsets: dict[Branch, range], deciding: Branch) -> None:
    """Follow the commit in every queue. If that fails, the commit counts, and the next opening does the rest."""
    checks: list[DurabilityCheck] = []
    has_followed = True
    for branch in branches:
        trouble = f"committed; {branch.handle.path} follows when it is reopened"
        if not follow_up(trouble, partial(_commit, branch, offsets), level=logging.ERROR):
            has_followed = False
        elif (check := branch.durability_check()) is not None:
            checks.append(check)
    if has_followed:
        follow_up("committed, and remembered for longer", partial(deciding.note_followed, checks))
