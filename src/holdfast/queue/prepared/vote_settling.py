"""Settles the votes of a transaction: in the groups that are open here, and in those that are not.

docs/transactions.md, "Other groups". No other process owns a group of a queue whose write side this one owns.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from holdfast.errors import QueueLockedError
from holdfast.persistence.filesystem.storage import storage_errors
from holdfast.persistence.format.commit_record import Participant
from holdfast.persistence.groups.group_files import groups_locked
from holdfast.persistence.groups.group_visit import is_group_free, visit_group
from holdfast.persistence.groups.position_entry import Change
from holdfast.persistence.groups.progress import GroupProgress
from holdfast.persistence.groups.vote import Vote, outcome_changes
from holdfast.persistence.log.pending_commit_records import DurabilityCheck
from holdfast.persistence.outcomes.redo import OWN, settled_check
from holdfast.queue.consumer.read_side import ReadSide
from holdfast.queue.engine.queue_handle import QueueHandle
from holdfast.queue.prepared.outcome_memory import OutcomeMemory
from holdfast.queue.prepared.prepared_transactions import Found
from holdfast.queue.threads.notifier import Flag

_OPENING_SECONDS = 10.0
"""How long a group is waited for that another thread opens just now: by far longer than its recovery takes."""

_PAUSE_SECONDS = 0.005


class VoteSettling:
    """Settles votes for a handle with the write side, in its own and in other groups.

    Parameters
    ----------
    handle : QueueHandle
        The queue, with the sides that this handle owns.
    memory : OutcomeMemory
        The outcomes of transactions that were decided by id.
    """

    def __init__(self, handle: QueueHandle, memory: OutcomeMemory) -> None:
        self._handle = handle
        self._memory = memory

    def follow(self, found: Found, *, is_committed: bool, is_durable: bool = True) -> None:
        """Settle each vote as a log has decided; again: changes nothing. In groups that are not open always durably.

        Raises
        ------
        QueueLockedError
            Another thread opens the group, and does not end: try again.
        """
        for group, vote in found.votes:
            own = partial(self._resolve, vote, is_committed=is_committed, is_durable=is_durable)
            self._settle(group, own, partial(self._visit, group, vote, is_committed=is_committed))

    def decide(self, found: Found, outcome: int, *, is_committed: bool) -> None:
        """Decide a transaction without puts, durably: note the outcome with its group, and settle the vote.

        Raises
        ------
        QueueLockedError
            As :meth:`follow`; of that group nothing was done.
        """
        for group, vote in found.votes:
            own = partial(self._decide_own, found.id, vote, group, outcome, is_committed=is_committed)
            visit = partial(self._decide_visiting, found.id, vote, group, outcome, is_committed=is_committed)
            self._settle(group, own, visit)

    def make_durable(self, nonce: bytes) -> None:
        """Make durable what the group of a transaction has noted that was decided without puts.

        The process that has noted it may have died before its sync. A group that is open has synced what it found.
        Raises as :meth:`follow`.
        """
        group = self._memory.group_of(nonce)
        if group is not None:
            self._settle(group, lambda side: None, partial(self._visit_group, group, lambda progress: []))

    def durability_checks(self, found: Found) -> tuple[DurabilityCheck, ...]:
        """Return the durability checks of other groups' votes: whether they are seen to be settled durably."""
        handle = self._handle
        return tuple(
            settled_check(
                handle.storage, handle.path, handle.clock, Participant(OWN, handle.queue_id, group), vote.nonce
            )
            for group, vote in found.votes
            if group not in handle.group_readers
        )

    def _settle(self, group: str, own: Callable[[ReadSide], object], visit: Callable[[], bool]) -> None:
        """Settle a vote in the group's read side, or without one; ``visit`` returns False if there is one after all."""
        handle, wait = self._handle, Flag()
        deadline = handle.clock.monotonic() + _OPENING_SECONDS
        while True:
            side = handle.group_readers.get(group)
            if side is not None:
                own(side)
                return
            with (
                storage_errors("visiting a group", handle.directory.group(group)),
                groups_locked(handle.storage, handle.directory, handle.clock),
            ):
                if visit():
                    return
            if handle.clock.monotonic() >= deadline:
                raise QueueLockedError(
                    f"group {group!r} of {handle.path} is just being opened, and that does not end; try again",
                    path=str(handle.directory.group(group)),
                    pid=None,
                    host=None,
                )
            handle.clock.wait(wait, _PAUSE_SECONDS)

    # -- Groups that are open here -----------------------------------------------------------------------------------

    def _resolve(self, vote: Vote, side: ReadSide, *, is_committed: bool, is_durable: bool) -> None:
        side.resolve(vote.nonce, is_committed=is_committed, is_durable=is_durable)

    def _decide_own(
        self, transaction_id: str, vote: Vote, group: str, outcome: int, side: ReadSide, *, is_committed: bool
    ) -> None:
        self._memory.note_own_vote(group, transaction_id, vote.nonce, outcome)
        self._resolve(vote, side, is_committed=is_committed, is_durable=True)

    # -- Others, while the lock of all groups is held: nothing opens them --------------------------------------------

    def _visit(self, group: str, vote: Vote, *, is_committed: bool) -> bool:
        """Settle a vote if its group is not open; entries of its last owner may not be synced yet."""

        def changes(progress: GroupProgress) -> list[Change]:
            return outcome_changes(vote, committed=is_committed) if vote.nonce in progress.votes else []

        return self._visit_group(group, changes)

    def _visit_group(self, group: str, changes: Callable[[GroupProgress], list[Change]]) -> bool:
        handle = self._handle
        return visit_group(
            handle.storage, handle.directory, handle.queue_id, handle.clock, group, changes, is_needed=lambda _: True
        )

    def _decide_visiting(
        self, transaction_id: str, vote: Vote, group: str, outcome: int, *, is_committed: bool
    ) -> bool:
        if not is_group_free(self._handle.storage, self._handle.directory, group):
            return False
        self._memory.note_vote(group, transaction_id, vote.nonce, outcome)
        return self._visit(group, vote, is_committed=is_committed)
