"""Resolves the prepared transactions of one queue: lists, commits and aborts them. docs/transactions.md.

A prepared transaction is in up to two places: its puts in ``prepared/``, its acknowledgements as a vote in a group's
position file. If there are puts, putting them into the log commits it, and the vote follows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial

from holdfast.errors import (
    HoldfastError,
    QueueLockedError,
    ShutDown,
    TransactionNotFoundError,
    TransactionStateError,
    UsageError,
)
from holdfast.persistence.filesystem.storage import storage_errors
from holdfast.persistence.format.commit_record import Participant, PartOf
from holdfast.persistence.log.pending_commit_records import DurabilityCheck, Needs, OwnFile
from holdfast.persistence.outcomes.outcome_log import ABORTED, COMMITTED, OutcomeEntry
from holdfast.persistence.outcomes.redo import OWN, other_root
from holdfast.queue.engine.coordinators import Outcome
from holdfast.queue.engine.queue_handle import QueueHandle
from holdfast.queue.prepared.outcome_memory import OutcomeMemory
from holdfast.queue.prepared.own_votes import OwnVotes
from holdfast.queue.prepared.parts import check_may_prepare, outcome_of_part
from holdfast.queue.prepared.prepared_transactions import (
    Found,
    PreparedTransaction,
    damaged_transaction,
    find_batch,
    find_damage,
    find_prepared,
    find_transaction,
    is_in_doubt,
    is_left_to_log,
    waits_here,
    waits_still,
)
from holdfast.queue.prepared.vote_settling import VoteSettling
from holdfast.queue.threads.lifecycle import Lifecycle
from holdfast.queue.threads.open_calls import Result
from holdfast.threads import log_later

logger = logging.getLogger("holdfast")

AskCoordinator = Callable[[Participant, bytes], Outcome]
"""Asks another queue what became of a transaction: takes the queue as seen from this one, and the nonce."""


class PreparedResolver:
    """Decides prepared transactions.

    Parameters
    ----------
    handle : QueueHandle
        The queue, with the sides that this process owns.
    ask : callable
        How another queue is asked for the outcome.
    memory : OutcomeMemory or None
        That of the handle with the write side, if this is one beside it.

    Attributes
    ----------
    memory : OutcomeMemory
        The outcomes of transactions that were decided by id.
    own_votes : OwnVotes
        The votes of this handle's group, for clients.
    """

    def __init__(self, handle: QueueHandle, ask: AskCoordinator, memory: OutcomeMemory | None = None) -> None:
        self._handle = handle
        self._ask = ask
        self.memory = self._memory = memory or OutcomeMemory(handle)
        self._votes = VoteSettling(handle, self._memory)
        self.own_votes = OwnVotes(handle, self._memory, handle.deciding)
        self._lifecycle = Lifecycle(handle.path, "open it again and decide there")

    # -- Looking -----------------------------------------------------------------------------------------------------

    def prepared(self) -> list[PreparedTransaction]:
        """Return the transactions in doubt, oldest first; outcomes of other queues are settled first."""
        if not self.resolve():
            return []
        now = self._handle.clock.time_ns()
        return [self._describe(found, now) for found in self._find_all()]

    def _describe(self, found: Found, now: int) -> PreparedTransaction:
        batch, decider = found.batch or found.whole, found.decider
        damage = found.damage
        if batch is not None:
            damage += tuple(find_damage(self._handle, batch))
        return PreparedTransaction(
            id=found.id,
            age_seconds=max(0, now - found.timestamp_ns) / 1e9 if found.timestamp_ns else 0.0,
            put_count=batch.message_count if batch is not None else 0,
            ack_count=sum(vote.count for _, vote in found.votes),
            size_bytes=batch.frames_bytes if batch is not None else 0,
            coordinator=None if decider is None else other_root(self._handle.path, decider),
            part_of=found.part_of,
            damage=damage,
        )

    def _found(self, transaction_id: str) -> Found | None:
        with storage_errors("looking for a prepared transaction", self._handle.path):
            return find_transaction(self._handle, transaction_id)

    def _find_all(self) -> list[Found]:
        with storage_errors("looking for prepared transactions", self._handle.path):
            return find_prepared(self._handle)

    def make_ready(
        self,
        transaction_id: str,
        *,
        puts: bool,
        part_of: PartOf | None = None,
        is_new: bool = False,
        group: str | None = None,
    ) -> None:
        """Refuse an id that is in doubt already, in any group, and reserve space for its outcome.

        ``is_new``: no other transaction has it, unless one has chosen it. ``group``: whose messages it acknowledges, if
        it puts nothing; None: this handle's.

        Raises TransactionStateError, DiskFullError or StorageError.
        """
        handle = self._handle
        if part_of is not None:
            check_may_prepare(handle, transaction_id, part_of)
        with storage_errors("looking for prepared transactions", handle.path):
            is_taken = (waits_here if is_new else is_in_doubt)(handle, transaction_id)
        if is_taken:
            raise TransactionStateError(
                f"transaction {transaction_id} is prepared: decide it before its id is used again",
                transaction=transaction_id,
                state="prepared",
            )
        self._memory.reserve(puts=puts, group=group or handle.group.name)

    # -- Deciding ----------------------------------------------------------------------------------------------------

    def commit(self, transaction_id: str, *, force: bool = False, nonce: bytes | None = None) -> range:
        """Commit a prepared transaction; return the offsets of its puts. Again: returns the same, and changes nothing.

        ``nonce``: only that one, not a later transaction of the same id.
        """

        def decide() -> range:
            found = self._find(transaction_id, COMMITTED, nonce, force=force)
            if isinstance(found, OutcomeEntry):
                return found.offsets
            return self._commit(found.forced() if force else found, is_asked=True)

        self._check_may_decide()
        return self._alone(transaction_id, decide)

    def abort(self, transaction_id: str, *, force: bool = False, nonce: bytes | None = None) -> None:
        """Abort a prepared transaction. Again: changes nothing. ``nonce`` as for :meth:`commit`."""

        def decide() -> None:
            found = self._find(transaction_id, ABORTED, nonce, force=force)
            if not isinstance(found, OutcomeEntry):
                self._abort(found)

        self._check_may_decide()
        self._alone(transaction_id, decide)

    def finish(self, transaction_id: str, nonce: bytes) -> None:
        """Commit a transaction that only holds messages of a group open here: as :meth:`commit`, but with one sync.

        It is not remembered: its holder sees that it is gone, so that it was committed.
        """

        def finish_votes() -> bool:
            holding = [side for side in list(self._handle.group_readers.values()) if nonce in side.progress.votes]
            return any(side.resolve(nonce, is_committed=True, is_durable=True) for side in holding)

        self._check_may_decide()
        if not self._alone(transaction_id, finish_votes):  # it was decided by its id
            self.commit(transaction_id, nonce=nonce)

    def _alone(self, transaction_id: str, decide: Callable[[], Result]) -> Result:
        """Decide a transaction, one thread at a time and before the queue is closed; others continue with theirs."""

        def locked() -> Result:
            with self.deciding_alone(transaction_id):
                return decide()

        return self._handle.calls.run(locked)

    def deciding_alone(self, transaction_id: str) -> AbstractContextManager[object]:
        """Return what to hold while one decides a transaction, in a call that closing waits for."""
        return self._handle.deciding.alone(transaction_id)

    def _find(self, transaction_id: str, outcome: int, nonce: bytes | None, *, force: bool) -> Found | OutcomeEntry:
        """Return a transaction in doubt, or its outcome if that is the requested one."""
        found = self._found(transaction_id)
        if nonce is not None and found is not None and found.nonce not in (nonce, b""):  # b"": damaged
            found = None
        if found is not None and (self._finish_decided(found) or self._follow_log(found)):
            found = None
        if found is not None and ((found.decider is None and found.part_of is None) or force):
            return found
        if found is not None and (found.part_of is not None or not self._resolve(found)):
            raise _decided_elsewhere(self._handle, found)
        self._note_pending(transaction_id)
        known = self._memory.outcome_log(transaction_id, nonce, is_committed=outcome == COMMITTED)
        if known is None:
            raise TransactionNotFoundError(
                f"no transaction {transaction_id!r} is prepared in {self._handle.path}, and no outcome of that id is "
                "known; prepared() lists those in doubt",
                id=transaction_id,
            )
        self._votes.make_durable(known.nonce)
        return known

    def _note_pending(self, transaction_id: str) -> None:
        """Note the commit of an id whose own thread was interrupted before it did: its commit record is pending."""
        side = self._handle.write_side
        named = [] if side is None else [each for each in side.pending_commit_records if each.id == transaction_id]
        for record in named:
            known = self._memory.find(transaction_id, None)
            is_latest = known is None or known.timestamp_ns <= record.timestamp_ns
            if record.is_remembered and is_latest and self._handle.require_write_side().has_decided(record.nonce):
                self._memory.note_batch(record, record.offsets)

    def _commit(self, found: Found, *, is_asked: bool) -> range:
        """Commit a transaction that this handle may commit; remember it if it was requested by id."""
        handle, batch = self._handle, found.batch
        if found.damage:
            raise damaged_transaction(found.id, found.damage[0], found.whole)
        if batch is None:
            end = handle.next_offset()  # which may fail, so before anything is done
            self._votes.decide(found, COMMITTED, is_committed=True)
            return range(end, end)
        offsets = handle.require_batches().commit(batch)
        own, others = {OwnFile.PREPARED}, tuple[DurabilityCheck, ...]()
        try:
            if not self._follow(found, is_committed=True, is_durable=False):
                others = self._votes.durability_checks(found)
            if is_asked:
                self._memory.note_batch(batch.commit_record, offsets)
        except HoldfastError as error:
            log_later(
                logging.ERROR,
                "%s is committed, and the next opening of %s finishes it: %s",
                found.id,
                handle.path,
                error,
            )
            return offsets
        if any(group in handle.group_readers for group, _ in found.votes):
            own.add(OwnFile.GROUP)
        handle.require_write_side().pending_commit_records.applied(found.nonce, Needs(frozenset(own), others))
        return offsets

    def _abort(self, found: Found) -> None:
        handle = self._handle
        if found.batch is not None or found.damage:
            handle.require_batches().abort(found.id, found.nonce or bytes(16), handle.clock.time_ns())
            self._follow(found, is_committed=False)
        else:
            self._votes.decide(found, ABORTED, is_committed=False)

    def _follow(self, found: Found, *, is_committed: bool, is_durable: bool = True) -> bool:
        """Settle the votes as the log has decided; if the owner of a group does not, the vote stays to be settled."""
        try:
            self._votes.follow(found, is_committed=is_committed, is_durable=is_durable)
        except QueueLockedError as error:
            outcome = "committed" if is_committed else "aborted"
            log_later(
                logging.ERROR,
                "%s of %s is %s, and its group has yet to note it: %s",
                found.id,
                self._handle.path,
                outcome,
                error,
            )
            return False
        return True

    def _finish_decided(self, found: Found) -> bool:
        """Finish a transaction that was decided here before a fault or an interruption; False: it was not decided.

        A file that could not be removed may still be there; or it is there again, because its removal was not durable.
        """
        write_side, batches = self._handle.write_side, self._handle.batches
        if write_side is None or batches is None:
            return False
        is_committed = write_side.has_decided(found.nonce)
        if not is_committed:
            known = batches.prepared.outcome_log.find_nonce(found.nonce) if found.batch is not None else None
            if known is None:
                return False
            is_committed = known.is_committed
        if found.batch is not None:
            batches.prepared.outcome_log.sync()  # after a failed sync its contents are unknown
            batches.prepared.drop(found.batch, COMMITTED if is_committed else ABORTED)
            batches.prepared.sync()
        self._follow(found, is_committed=is_committed)
        return True

    def _follow_log(self, found: Found) -> bool:
        """Settle votes without waiting puts by this queue's own log; False: there are none.

        Raises TransactionStateError if it is just being prepared or decided.
        """
        if not is_left_to_log(found):
            return False
        outcome = self._own_outcome(found)
        if outcome is Outcome.IN_DOUBT:
            raise TransactionStateError(
                f"transaction {found.id} is being prepared or decided just now, or by a log that cannot be read; see "
                "prepared()",
                transaction=found.id,
                state="prepared",
            )
        self._follow(found, is_committed=outcome is Outcome.COMMITTED)
        return True

    # -- What another queue decides ----------------------------------------------------------------------------------

    def resolve(self) -> bool:
        """Follow the outcomes of other queues, and abort votes whose puts were never prepared.

        Returns whether there was anything in doubt.
        """
        all_found = self._find_all()
        for found in all_found:
            if found.part_of is not None:  # JointResolver puts parts into the log in their order
                continue
            try:
                self._alone(found.id, partial(self._resolve_found, found))
            except (HoldfastError, ShutDown) as error:
                logger.warning("transaction %s of %s stays in doubt: %s", found.id, self._handle.path, error)
        return bool(all_found)

    def _resolve_found(self, found: Found) -> None:
        if waits_still(self._handle, found):
            self._resolve(found)

    def _resolve(self, found: Found) -> bool:
        """Settle this handle's part of a transaction, if its coordinator has the outcome; return whether it has."""
        handle = self._handle
        if self._finish_decided(found):
            return True
        if (found.coordinator is None and found.part_of is None) or found.damage:
            return False
        votes = found.votes
        if handle.write_side is None or not is_left_to_log(found):  # else no other handle can decide them
            votes = tuple(each for each in votes if each[0] in handle.group_readers)
        found = replace(found, votes=votes, batch=found.batch if handle.batches is not None else None)
        if not votes and found.batch is None:
            return False
        if found.part_of is not None:
            outcome = outcome_of_part(handle, found)
        else:
            outcome = self._own_outcome(found) if found.decider is None else self._ask(found.decider, found.nonce)
        if outcome is Outcome.COMMITTED and found.batch is not None:
            self._commit(found, is_asked=False)
        elif outcome is Outcome.COMMITTED:
            self._votes.follow(found, is_committed=True)
        elif outcome is Outcome.ABORTED:
            self._discard(found)
        return outcome is not Outcome.IN_DOUBT

    def settle(self, transaction_id: str, nonce: bytes, *, lets_go: bool = False) -> bool:
        """Settle one transaction by its commit record; False if there is none. Missing parts count as settled.

        ``lets_go``: abort it if it is undecided.
        """

        def settle() -> bool:
            found = self._found(transaction_id)
            if found is None or found.nonce not in (nonce, b"") or self._resolve(found):  # b"": damaged
                return True
            if lets_go:
                self._discard(found)
            return lets_go

        return self._alone(transaction_id, settle)

    def follow(self, transaction_id: str, nonce: bytes, *, is_committed: bool) -> range:
        """Settle a part as the log of another queue has decided; return the offsets of its puts.

        Again changes nothing; the offsets are those of before, as long as its commit record is pending, and else none.
        """

        def follow() -> range:
            found = self._found(transaction_id)
            if found is not None and found.nonce == nonce and not self._finish_decided(found):
                if is_committed and found.batch is not None:
                    return self._commit(found, is_asked=False)
                if is_committed:
                    self._votes.follow(found, is_committed=True)
                else:
                    self._discard(found)
            commit_record = self._handle.require_write_side().pending_commit_records.find(nonce)
            return range(0) if commit_record is None else commit_record.offsets

        self._check_may_decide()
        return self._alone(transaction_id, follow)

    def outcome(self, transaction_id: str, nonce: bytes) -> Outcome:
        """Return the outcome of a transaction in this queue's own log; another handle may hold its votes.

        Raises UsageError if this handle has no write side.
        """
        with self.deciding_alone(transaction_id):
            if self._handle.require_write_side().has_decided(nonce):
                return Outcome.COMMITTED
            own = Participant(OWN, self._handle.queue_id)
            return self._own_outcome(Found(transaction_id, nonce, 0, own))

    def _own_outcome(self, found: Found) -> Outcome:
        """Return the outcome of a transaction that this queue's own log decides."""
        assert found.coordinator is not None
        own = self._handle.coordinator
        outcome = own.outcome(found.nonce) if own is not None else self._ask(found.coordinator, found.nonce)
        if outcome is not Outcome.ABORTED:
            return outcome
        waits = find_batch(self._handle, found.id) is not None  # looked for once no thread prepares or commits it
        return Outcome.IN_DOUBT if waits else outcome

    def _discard(self, found: Found) -> None:
        """Abort a transaction without remembering it by id."""
        batches = self._handle.batches
        if found.batch is not None and batches is not None:
            batches.prepared.drop(found.batch, ABORTED)
            batches.prepared.sync()
        self._votes.follow(found, is_committed=False)

    # -- Ending ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the files, and decide nothing more."""
        self._lifecycle.close()
        self._memory.close()

    def _check_may_decide(self) -> None:
        self._lifecycle.check()
        if self._handle.look_side is not None:
            raise UsageError(f"a handle of mode={self._handle.options.mode!r} cannot decide; use mode='shared'")


def _decided_elsewhere(handle: QueueHandle, found: Found) -> TransactionStateError:
    """Return the error for deciding a transaction that a joint commit, or another queue, decides."""
    part_of, decider = found.part_of, found.decider
    if part_of is not None:
        what = f"the document in {part_of.directory}" if part_of.is_shared else "joint_commits"
        who = f"is a part of version {part_of.version} of {part_of.application}: {what} decides it"
    else:
        assert decider is not None, "without a coordinator the caller decides"
        where = other_root(handle.path, decider)
        who = f"is decided by the log of {where}: open that queue, and this one follows it"
    return TransactionStateError(
        f"transaction {found.id} {who}; force=True decides it alone, and may break all-or-nothing",
        transaction=found.id,
        state="prepared",
    )
