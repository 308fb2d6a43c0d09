"""Prepared transactions of one queue: which there are, and what is decided of them. docs/transactions.md.

What a transaction has prepared stands in up to two places: its puts in ``prepared/``, its acknowledgements as a vote in
a group's position file. Where there are puts, putting them into the log is the decision, and the vote follows it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

from holdfast.errors import (
    ClosedError,
    CorruptionError,
    HoldfastError,
    QueueLockedError,
    ShutDown,
    TransactionNotFoundError,
    TransactionStateError,
    UsageError,
)
from holdfast.persistence.decided import ABORTED, COMMITTED, Decided
from holdfast.persistence.decision import Participant, PartOf
from holdfast.persistence.group_files import groups_locked
from holdfast.persistence.group_visit import is_group_free, visit_group
from holdfast.persistence.layout import list_batch_files
from holdfast.persistence.locks import read_owner
from holdfast.persistence.open_decisions import Witness
from holdfast.persistence.position_entry import Change
from holdfast.persistence.progress import GroupProgress
from holdfast.persistence.redo import other_root
from holdfast.persistence.storage import storage_errors
from holdfast.persistence.vote import Vote, outcome_changes
from holdfast.queue.decided_memory import DecidedMemory
from holdfast.queue.live_queues import Verdict
from holdfast.queue.parts import check_may_prepare, decided_elsewhere, verdict_of_part
from holdfast.queue.prepared_transactions import (
    Found,
    PreparedTransaction,
    find_batch,
    find_damage,
    find_prepared,
    find_transaction,
)
from holdfast.queue.sides import Sides

logger = logging.getLogger("holdfast")

AskCoordinator = Callable[[Participant, bytes], Verdict]
"""Asks another queue what became of a transaction: takes the queue as seen from this one, and the nonce."""


class InDoubt:
    """Decides prepared transactions.

    Parameters
    ----------
    sides : Sides
        The queue, and what of it this process owns.
    ask : callable
        How another queue is asked for its verdict.
    """

    def __init__(self, sides: Sides, ask: AskCoordinator) -> None:
        self._sides = sides
        self._ask = ask
        self._deciding: dict[str, object] = {}
        self._turn = threading.Condition()
        self._memory = DecidedMemory(sides)
        self._is_closed = False

    # -- Looking -----------------------------------------------------------------------------------------------------

    def prepared(self) -> list[PreparedTransaction]:
        """Return what is in doubt, oldest first; what another queue has decided meanwhile is settled first."""
        self.resolve()
        now = self._sides.clock.time_ns()
        return [self._describe(found, now) for found in self._find_all()]

    def _describe(self, found: Found, now: int) -> PreparedTransaction:
        batch, decider = found.batch, found.decider
        damage = found.damage
        if batch is not None:
            damage += tuple(find_damage(self._sides, batch))
        return PreparedTransaction(
            id=found.id,
            age_seconds=max(0, now - found.timestamp_ns) / 1e9 if found.timestamp_ns else 0.0,
            put_count=batch.message_count if batch is not None else 0,
            ack_count=sum(vote.count for _, vote in found.votes),
            size_bytes=batch.frames_bytes if batch is not None else 0,
            coordinator=None if decider is None else other_root(self._sides.path, decider),
            part_of=found.part_of,
            damage=damage,
        )

    def _find_all(self) -> list[Found]:
        with storage_errors("looking for prepared transactions", self._sides.path):
            return find_prepared(self._sides)

    def make_ready(self, transaction_id: str, *, puts: bool, part_of: PartOf | None = None) -> None:
        """Refuse an id that is in doubt already, and set room aside for remembering what becomes of it.

        Raises TransactionStateError, DiskFullError or StorageError.
        """
        sides = self._sides
        if part_of is not None:
            check_may_prepare(sides, transaction_id, part_of)
        votes = sides.read_side.progress.votes.values() if sides.read_side is not None else ()
        with storage_errors("looking for prepared transactions", sides.path):
            taken = {vote.id for vote in list(votes)} | set(list_batch_files(sides.storage, sides.directory))
        if transaction_id in taken:
            raise TransactionStateError(
                f"transaction {transaction_id} is prepared: decide it before its id is used again",
                transaction=transaction_id,
                state="prepared",
            )
        self._memory.reserve(puts=puts)

    # -- Deciding ----------------------------------------------------------------------------------------------------

    def commit(self, transaction_id: str, *, force: bool = False, nonce: bytes | None = None) -> range:
        """Commit a prepared transaction; return the offsets of its puts. Again: the same, and nothing happens.

        ``nonce``: that one, and none that has its id by now.
        """
        self._check_may_decide()
        with self.deciding_alone(transaction_id):
            found = self._find(transaction_id, COMMITTED, nonce, force=force)
            return found.offsets if isinstance(found, Decided) else self._commit(found, is_asked=True)

    def abort(self, transaction_id: str, *, force: bool = False, nonce: bytes | None = None) -> None:
        """Abort a prepared transaction. Again: nothing happens. ``nonce`` as for :meth:`commit`."""
        self._check_may_decide()
        with self.deciding_alone(transaction_id):
            found = self._find(transaction_id, ABORTED, nonce, force=force)
            if not isinstance(found, Decided):
                self._abort(found)

    def finish(self, transaction_id: str, nonce: bytes) -> None:
        """Commit what only holds messages of this handle's group: as :meth:`commit`, but with one sync.

        It is not remembered: whoever holds it sees from its being gone that it was committed.
        """
        self._check_may_decide()
        with self.deciding_alone(transaction_id):
            side = self._sides.require_read_side()
            is_done = side.resolve(nonce, is_committed=True, is_durable=True)
        if not is_done:  # somebody has decided it by its id
            self.commit(transaction_id, nonce=nonce)

    @contextmanager
    def deciding_alone(self, transaction_id: str) -> Iterator[None]:
        """Let one thread at a time decide a transaction; others go on with theirs."""
        turn = object()
        try:
            with self._turn:
                self._turn.wait_for(lambda: transaction_id not in self._deciding)
                self._deciding[transaction_id] = turn
            yield
        finally:
            interruption: BaseException | None = None
            while True:  # left there, it would stop all others for ever
                try:
                    with self._turn:
                        if self._deciding.get(transaction_id) is turn:
                            del self._deciding[transaction_id]
                        self._turn.notify_all()
                    break
                except KeyboardInterrupt as error:
                    interruption = error
            if interruption is not None:
                raise interruption

    def _find(self, transaction_id: str, verdict: int, nonce: bytes | None, *, force: bool) -> Found | Decided:
        """Return a transaction that is in doubt, or what was decided of it, where that is the same verdict."""
        with storage_errors("looking for a prepared transaction", self._sides.path):
            found = find_transaction(self._sides, transaction_id)
        if nonce is not None and found is not None and found.nonce not in (nonce, b""):  # b"": damaged
            found = None
        if found is not None and self._finish_decided(found):
            found = None
        if found is not None and ((found.decider is None and found.part_of is None) or force):
            self._check_locks(found)
            return found
        if found is not None and (found.part_of is not None or not self._resolve(found)):
            raise decided_elsewhere(self._sides, found)
        decided = self._memory.find(transaction_id, nonce)
        if decided is None:
            raise TransactionNotFoundError(
                f"no transaction {transaction_id!r} is prepared in {self._sides.path}, and none of that id was decided "
                "lately; prepared() lists those in doubt",
                id=transaction_id,
            )
        if decided.is_committed != (verdict == COMMITTED):
            state = "committed" if decided.is_committed else "aborted"
            raise TransactionStateError(
                f"transaction {transaction_id} was {state}", transaction=transaction_id, state=state
            )
        return decided

    def _check_locks(self, found: Found) -> None:
        """Refuse to decide for a group that another process owns, before anything is done."""
        sides = self._sides
        for group, _ in found.votes:
            if group != sides.group.name or sides.read_side is None:
                with self._group_errors(group), groups_locked(sides.storage, sides.directory, sides.clock):
                    is_free = is_group_free(sides.storage, sides.directory, group)
                if not is_free:
                    raise self._locked(found, group)

    def _group_errors(self, group: str) -> AbstractContextManager[None]:
        return storage_errors("visiting a group", self._sides.directory.group(group))

    def _locked(self, found: Found, group: str) -> QueueLockedError:
        path = self._sides.directory.group(group)
        owner = read_owner(self._sides.storage, path / "read.lock")
        who = "another handle" if owner.pid is None else f"process {owner.pid} on {owner.host}"
        return QueueLockedError(
            f"transaction {found.id} holds messages of group {group!r}, which {who} owns; decide it there, or close "
            "that one",
            path=str(path),
            pid=owner.pid,
            host=owner.host,
        )

    def _commit(self, found: Found, *, is_asked: bool) -> range:
        """Commit what this handle may; remember it where it was asked for by its id."""
        sides, batch = self._sides, found.batch
        if found.damage:
            raise CorruptionError(
                f"transaction {found.id} is damaged ({found.damage[0].reason}): it cannot be committed; abort it, and "
                "put again what it held",
                path=str(found.damage[0].path),
            )
        if batch is None:
            end = sides.next_offset()  # which may fail, so before anything is done
            self._remember_votes(found, COMMITTED)
            self._settle_votes(found, is_committed=True, is_durable=True)
            return range(end, end)
        offsets = sides.require_batches().commit(batch)
        witnesses: list[Witness] = [sides.require_batches().sync]
        try:
            self._settle_votes(found, is_committed=True, is_durable=False)
            if is_asked:
                self._memory.note_batch(batch.decision, offsets)
        except HoldfastError as error:
            logger.error("%s is committed, and the next opening of %s does the rest: %s", found.id, sides.path, error)
            return offsets
        if found.votes and sides.read_side is not None:
            witnesses.append(sides.read_side.flush)
        sides.require_write_side().open_decisions.applied(found.nonce, *witnesses)
        return offsets

    def _abort(self, found: Found) -> None:
        sides = self._sides
        if found.batch is not None or found.damage:
            sides.require_batches().abort(found.id, found.nonce or bytes(16), sides.clock.time_ns())
        else:
            self._remember_votes(found, ABORTED)
        self._settle_votes(found, is_committed=False, is_durable=True)

    def _remember_votes(self, found: Found, verdict: int) -> None:
        self._memory.note_votes((group for group, _ in found.votes), found.id, found.nonce, verdict)

    def _settle_votes(self, found: Found, *, is_committed: bool, is_durable: bool) -> None:
        sides = self._sides
        for group, vote in found.votes:
            if group == sides.group.name and sides.read_side is not None:
                sides.read_side.resolve(vote.nonce, is_committed=is_committed, is_durable=is_durable)
            else:
                with self._group_errors(group), groups_locked(sides.storage, sides.directory, sides.clock):
                    settle = _outcome(vote, is_committed=is_committed)
                    done = visit_group(sides.storage, sides.directory, sides.queue_id, sides.clock, group, settle)
                if not done:
                    raise self._locked(found, group)

    def _finish_decided(self, found: Found) -> bool:
        """Do the rest of what was decided here, where a fault or an interruption came in between; False: it was not.

        A file that could not be removed may still be there, or, where nobody knows whether its removal was durable,
        be there again.
        """
        write_side, batches = self._sides.write_side, self._sides.batches
        if write_side is None or batches is None:
            return False
        is_committed = write_side.has_decided(found.nonce)
        if is_committed:
            decision = write_side.open_decisions.find(found.nonce)
            if decision is not None and decision.is_remembered:
                self._memory.note_batch(decision, decision.offsets)
        else:
            decided = batches.decided.find_nonce(found.nonce) if found.batch is not None else None
            if decided is None:
                return False
            is_committed = decided.is_committed
        if found.batch is not None:
            batches.decided.sync()  # where that failed before, nobody knows what it says
            batches.drop(found.batch.path)
            batches.sync()
        self._settle_votes(found, is_committed=is_committed, is_durable=True)
        return True

    # -- What another queue decides ----------------------------------------------------------------------------------

    def resolve(self) -> None:
        """Do what other queues have decided meanwhile, and let go of votes whose puts were never prepared."""
        for found in self._find_all():
            if found.part_of is not None:  # JointDecisions puts parts into the log in their order
                continue
            try:
                with self.deciding_alone(found.id):
                    self._resolve(found)
            except (HoldfastError, ShutDown) as error:
                logger.warning("transaction %s of %s stays in doubt: %s", found.id, self._sides.path, error)

    def _resolve(self, found: Found) -> bool:
        """Settle what this handle owns of a transaction, if its coordinator says how; return whether it did."""
        sides = self._sides
        if self._finish_decided(found):
            return True
        if (found.coordinator is None and found.part_of is None) or found.damage:
            return False
        votes = tuple(each for each in found.votes if each[0] == sides.group.name and sides.read_side is not None)
        found = replace(found, votes=votes, batch=found.batch if sides.batches is not None else None)
        if not votes and found.batch is None:
            return False
        if found.part_of is not None:
            verdict = verdict_of_part(sides, found)
        else:
            verdict = self._own_verdict(found) if found.decider is None else self._ask(found.decider, found.nonce)
        if verdict is Verdict.COMMITTED and found.batch is not None:
            self._commit(found, is_asked=False)
        elif verdict is Verdict.COMMITTED:
            self._settle_votes(found, is_committed=True, is_durable=True)
        elif verdict is Verdict.ABORTED:
            self._discard(found)
        return verdict is not Verdict.IN_DOUBT

    def settle(self, transaction_id: str, nonce: bytes, *, lets_go: bool = False) -> bool:
        """Settle one transaction as its decision says; False where there is none. What is not there is settled.

        ``lets_go``: where nobody has decided it, abort it.
        """
        with self.deciding_alone(transaction_id):
            with storage_errors("looking for a prepared transaction", self._sides.path):
                found = find_transaction(self._sides, transaction_id)
            if found is None or found.nonce not in (nonce, b"") or self._resolve(found):  # b"": damaged
                return True
            if lets_go:
                self._discard(found)
            return lets_go

    def _own_verdict(self, found: Found) -> Verdict:
        """Return what became of a transaction that this queue's own log decides."""
        assert found.coordinator is not None
        own = self._sides.coordinator
        verdict = own.verdict(found.nonce) if own is not None else self._ask(found.coordinator, found.nonce)
        if verdict is not Verdict.ABORTED:
            return verdict
        waits = find_batch(self._sides, found.id) is not None  # looked for once nobody prepares or commits it
        return Verdict.IN_DOUBT if waits else verdict

    def _discard(self, found: Found) -> None:
        """Abort what nobody asks for by its id."""
        batches = self._sides.batches
        if found.batch is not None and batches is not None:
            batches.drop(found.batch.path)
            batches.sync()
        self._settle_votes(found, is_committed=False, is_durable=True)

    # -- Ending ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Let go of what is held, and decide nothing more."""
        self._is_closed = True
        self._memory.close()

    def forget(self) -> None:
        """In a forked child: close the copy of the handle."""
        self._memory.forget()

    def _check_may_decide(self) -> None:
        if self._is_closed:
            raise ClosedError(f"{self._sides.path} is closed; open it again and decide there")
        if self._sides.look_side is not None:
            raise UsageError("this handle owns no side of the queue, so it decides nothing; open it with another mode")


def _outcome(vote: Vote, *, is_committed: bool) -> Callable[[GroupProgress], list[Change]]:
    def changes(progress: GroupProgress) -> list[Change]:
        return outcome_changes(vote, committed=is_committed) if vote.nonce in progress.votes else []

    return changes
