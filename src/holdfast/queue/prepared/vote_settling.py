"""Settles the votes of a transaction: in the own group, in groups without an owner, and through a group's owner.

docs/transactions.md, "Other handles". No request is made while a lock is held that its owner might need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from holdfast.errors import CommitUnknownError, QueueLockedError, RetryableError, UsageError
from holdfast.persistence.filesystem.locks import read_owner
from holdfast.persistence.filesystem.storage import storage_errors
from holdfast.persistence.format.commit_record import Participant
from holdfast.persistence.groups.group_files import groups_locked
from holdfast.persistence.groups.group_visit import is_group_free, visit_group
from holdfast.persistence.groups.position_entry import Change
from holdfast.persistence.groups.progress import GroupProgress
from holdfast.persistence.groups.vote import Vote, outcome_changes
from holdfast.persistence.log.pending_commit_records import DurabilityCheck
from holdfast.persistence.outcomes.redo import OWN, settled_check
from holdfast.queue.engine.queue_handle import QueueHandle
from holdfast.queue.prepared.outcome_memory import OutcomeMemory
from holdfast.queue.prepared.prepared_transactions import Found
from holdfast.queue.verbs.group_verbs import Fields
from holdfast.queue.verbs.vote_verbs import IS_HELD, has_vote_fields, settle_vote_fields

AskGroup = Callable[[str, Fields, float], Fields]
"""Has a verb done by the owner of a group: takes its name, the verb with its fields, and how long to wait."""

OWNER_SECONDS = 2.0
"""How long the owner of a group is waited for that has not taken a request yet: many times a look, and a long sync. The
owner of the write side serves no other requests meanwhile."""


class VoteSettling:
    """Settles votes for a handle, in its own and in other groups.

    Parameters
    ----------
    handle : QueueHandle
        The queue, with the sides that this handle owns.
    memory : OutcomeMemory
        The outcomes of transactions that were decided by id.
    ask_group : callable
        How the owners of other groups are asked.
    """

    def __init__(self, handle: QueueHandle, memory: OutcomeMemory, ask_group: AskGroup) -> None:
        self._handle = handle
        self._memory = memory
        self._ask_group = ask_group

    def check(self, found: Found) -> None:
        """Check that each vote can be settled once the log has decided; raises QueueLockedError, with nothing done."""
        for group, vote in found.votes:
            if self._is_own(group):
                continue
            with self._visiting(group):
                is_free = is_group_free(self._handle.storage, self._handle.directory, group)
            if not is_free and not self._ask(found, group, has_vote_fields(vote.nonce)).get(IS_HELD):
                raise self._locked(found, group, "has settled them just now; check prepared(), and decide again")

    def follow(self, found: Found, *, is_committed: bool, is_durable: bool = True) -> None:
        """Settle each vote as a log has decided; again: changes nothing. In other groups always durably.

        Raises QueueLockedError if the owner of a group does not settle: ask it again.
        """
        for group, vote in found.votes:
            if self._is_own(group):
                side = self._handle.group_readers[group]
                side.resolve(vote.nonce, is_committed=is_committed, is_durable=is_durable)
                continue
            with self._visiting(group):
                is_done = self._visit(group, vote, is_committed=is_committed)
            if not is_done:
                asked = settle_vote_fields(found.id, vote.nonce, is_committed=is_committed, is_decided=True)
                try:
                    self._ask(found, group, asked)
                except CommitUnknownError as error:
                    raise self._locked(found, group, "has not reported yet whether it has settled them") from error

    def decide(self, found: Found, outcome: int, *, is_committed: bool) -> None:
        """Decide a transaction without puts, durably: note the outcome with its group, and settle the vote.

        Raises
        ------
        QueueLockedError
            The owner of the group refuses; nothing was done.
        CommitUnknownError
            The owner has begun and does not report the outcome. Deciding the same again does no harm.
        TransactionStateError
            Another handle decided the opposite first.
        """
        for group, vote in found.votes:
            if self._is_own(group):
                self._memory.note_own_vote(group, found.id, vote.nonce, outcome)
                side = self._handle.group_readers[group]
                side.resolve(vote.nonce, is_committed=is_committed, is_durable=True)
                continue
            with self._visiting(group):
                is_free = is_group_free(self._handle.storage, self._handle.directory, group)
                if is_free:  # and stays so while the lock of all groups is held
                    self._memory.note_vote(group, found.id, vote.nonce, outcome)
                    self._visit(group, vote, is_committed=is_committed)
            if not is_free:
                asked = settle_vote_fields(found.id, vote.nonce, is_committed=is_committed, is_decided=False)
                self._ask(found, group, asked)

    def durability_checks(self, found: Found) -> tuple[DurabilityCheck, ...]:
        """Return the durability checks of other groups' votes: whether they are seen to be settled durably."""
        handle = self._handle
        return tuple(
            settled_check(
                handle.storage, handle.path, handle.clock, Participant(OWN, handle.queue_id, group), vote.nonce
            )
            for group, vote in found.votes
            if not self._is_own(group)
        )

    # -- Whose it is -------------------------------------------------------------------------------------------------

    def _is_own(self, group: str) -> bool:
        return group in self._handle.group_readers

    @contextmanager
    def _visiting(self, group: str) -> Iterator[None]:
        handle = self._handle
        with (
            storage_errors("visiting a group", handle.directory.group(group)),
            groups_locked(handle.storage, handle.directory, handle.clock),
        ):
            yield

    def _visit(self, group: str, vote: Vote, *, is_committed: bool) -> bool:
        """Settle a vote if its group has no owner; entries of the last owner may not be synced yet."""
        handle = self._handle

        def changes(progress: GroupProgress) -> list[Change]:
            return outcome_changes(vote, committed=is_committed) if vote.nonce in progress.votes else []

        return visit_group(
            handle.storage, handle.directory, handle.queue_id, handle.clock, group, changes, is_needed=lambda _: True
        )

    def _ask(self, found: Found, group: str, fields: Fields) -> Fields:
        """Ask the owner of a group to settle; if it cannot be asked, raise as for a locked group."""
        try:
            return self._ask_group(group, fields, OWNER_SECONDS)
        except UsageError as error:
            if type(error) is not UsageError:  # this handle was closed, or forked
                raise
            raise self._locked(found, group, "is too old to be asked; decide it there, or close that one") from error
        except RetryableError as error:
            raise self._locked(found, group, "does not answer; try again, or close that one") from error

    def _locked(self, found: Found, group: str, why: str) -> QueueLockedError:
        path = self._handle.directory.group(group)
        owner = read_owner(self._handle.storage, self._handle.directory.group_lock(group))
        who = "another handle" if owner.pid is None else f"process {owner.pid} on {owner.host}"
        return QueueLockedError(
            f"transaction {found.id} holds messages of group {group!r}, which {who} owns, and that {why}",
            path=str(path),
            pid=owner.pid,
            host=owner.host,
        )
