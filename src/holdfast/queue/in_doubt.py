"""Prepared transactions of one queue: which there are, and what is decided of them. docs/transactions.md.

What a transaction has prepared stands in up to two places: its puts in ``prepared/``, its acknowledgements as a vote in
a group's position file. Where there are puts, putting them into the log is the decision, and the vote follows it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.errors import (
    CorruptionError,
    HoldfastError,
    QueueLockedError,
    TransactionNotFoundError,
    TransactionStateError,
)
from holdfast.persistence.batch_file_reader import BatchSummary, read_summary
from holdfast.persistence.decided import ABORTED, COMMITTED, Decided, DecidedFile
from holdfast.persistence.decision import Participant
from holdfast.persistence.group_files import groups_locked, list_groups, progress_reader
from holdfast.persistence.group_visit import is_group_free, visit_group
from holdfast.persistence.layout import is_missing, list_batch_files
from holdfast.persistence.open_decisions import Witness
from holdfast.persistence.position_entry import Change
from holdfast.persistence.progress import GroupProgress
from holdfast.persistence.redo import OWN, other_root
from holdfast.persistence.report import DAMAGED, Damage
from holdfast.persistence.storage import storage_error
from holdfast.persistence.vote import Vote, outcome_changes
from holdfast.queue.live_queues import Verdict
from holdfast.queue.sides import Sides

logger = logging.getLogger("holdfast")

AskCoordinator = Callable[[Participant, bytes], Verdict]
"""Asks another queue what became of a transaction: takes the queue as seen from this one, and the nonce."""


@dataclass(frozen=True, slots=True)
class PreparedTransaction:
    """A transaction that is durable and undecided.

    Attributes
    ----------
    id : str
        Its name, for ``commit_prepared`` and ``abort_prepared``.
    age_seconds : float
        Since it was prepared, by the wall clock.
    put_count, ack_count : int
        Messages that it puts, and that it finishes.
    size_bytes : int
        What its puts take, frames included.
    coordinator : Path or None
        The queue whose log decides; None: whoever calls.
    damage : tuple of Damage
        What of it does not verify: it can only be aborted.
    """

    id: str
    age_seconds: float
    put_count: int
    ack_count: int
    size_bytes: int
    coordinator: Path | None = None
    damage: tuple[Damage, ...] = ()


@dataclass(slots=True)
class _Found:
    """What stands where of one transaction."""

    id: str
    nonce: bytes
    timestamp_ns: int
    coordinator: Participant | None
    batch: BatchSummary | None = None
    votes: tuple[tuple[str, Vote], ...] = ()
    damage: tuple[Damage, ...] = ()

    @property
    def decider(self) -> Participant | None:
        """The other queue that decides; None where this one does, or whoever calls."""
        return None if self.coordinator is None or self.coordinator.path == OWN else self.coordinator


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
        self._deciding: set[str] = set()
        self._turn = threading.Condition()
        self._group_decided: DecidedFile | None = None

    # -- Looking -----------------------------------------------------------------------------------------------------

    def prepared(self) -> list[PreparedTransaction]:
        """Return what is in doubt, oldest first; what another queue has decided meanwhile is settled first."""
        self.resolve()
        now = self._sides.clock.time_ns()
        return [self._describe(found, now) for found in self._find_all()]

    def _describe(self, found: _Found, now: int) -> PreparedTransaction:
        batch, decider = found.batch, found.decider
        damage = found.damage
        if batch is not None and self._sides.batches is not None:
            damage += tuple(self._sides.batches.damage(batch))
        return PreparedTransaction(
            id=found.id,
            age_seconds=max(0, now - found.timestamp_ns) / 1e9 if found.timestamp_ns else 0.0,
            put_count=batch.message_count if batch is not None else 0,
            ack_count=sum(vote.count for _, vote in found.votes),
            size_bytes=batch.frames_bytes if batch is not None else 0,
            coordinator=None if decider is None else other_root(self._sides.path, decider),
            damage=damage,
        )

    def _find_all(self) -> list[_Found]:
        found: dict[bytes, _Found] = {}
        damaged: list[_Found] = []
        for each in self._batches():
            if each.batch is None:
                damaged.append(each)
            else:
                found[each.nonce] = each
        for group, vote in self._votes():
            each = found.setdefault(vote.nonce, _Found(vote.id, vote.nonce, vote.timestamp_ns, vote.coordinator))
            each.votes += ((group, vote),)
        for each in damaged:  # its vote, if it has one, knows the nonce
            twin = next((other for other in found.values() if other.id == each.id and other.batch is None), None)
            if twin is not None:
                twin.damage = each.damage
            else:
                found[each.id.encode()] = each
        return sorted(found.values(), key=lambda each: (each.timestamp_ns, each.id))

    def _batches(self) -> Iterator[_Found]:
        for transaction_id in list_batch_files(self._sides.storage, self._sides.directory):
            path = self._sides.directory.batch_file(transaction_id)
            try:
                batch = self._batch(transaction_id)
            except CorruptionError as error:
                damage = Damage(path, error.position, 0, range(0), DAMAGED, str(error))
                yield _Found(transaction_id, b"", 0, None, damage=(damage,))
                continue
            if batch is not None:
                decision = batch.decision
                yield _Found(decision.id, decision.nonce, decision.timestamp_ns, decision.coordinator, batch)

    def _batch(self, transaction_id: str) -> BatchSummary | None:
        """Return what waits under an id; None where nothing does."""
        path = self._sides.directory.batch_file(transaction_id)
        try:
            return read_summary(self._sides.storage, path, self._sides.queue_id)
        except OSError as error:
            if is_missing(error):
                return None
            raise storage_error(error, "reading a prepared transaction", path) from error

    def _votes(self) -> Iterator[tuple[str, Vote]]:
        """Yield every vote of every group: of the own one as it is in memory, of others as they stand on the disk."""
        sides = self._sides
        own = sides.read_side.progress if sides.read_side is not None else None
        if own is not None:
            yield from ((sides.group.name, vote) for vote in list(own.votes.values()))
        for group in list_groups(sides.storage, sides.directory):
            if own is None or group.name != sides.group.name:
                progress = progress_reader(sides.storage, sides.directory, sides.queue_id, group).refresh()
                yield from ((group.name, vote) for vote in progress.votes.values())

    def check_free(self, transaction_id: str) -> None:
        """Refuse an id that is in doubt already; raises TransactionStateError."""
        sides = self._sides
        votes = sides.read_side.progress.votes.values() if sides.read_side is not None else ()
        taken = {vote.id for vote in list(votes)} | set(list_batch_files(sides.storage, sides.directory))
        if transaction_id in taken:
            raise TransactionStateError(
                f"transaction {transaction_id} is prepared: decide it before its id is used again",
                transaction=transaction_id,
                state="prepared",
            )

    # -- Deciding ----------------------------------------------------------------------------------------------------

    def commit(self, transaction_id: str, *, force: bool = False) -> range:
        """Commit a prepared transaction; return the offsets of its puts. Again: the same, and nothing happens."""
        with self._deciding_alone(transaction_id):
            found = self._find(transaction_id, COMMITTED, force=force)
            return found.offsets if isinstance(found, Decided) else self._commit(found)

    def abort(self, transaction_id: str, *, force: bool = False) -> None:
        """Abort a prepared transaction. Again: nothing happens."""
        with self._deciding_alone(transaction_id):
            found = self._find(transaction_id, ABORTED, force=force)
            if not isinstance(found, Decided):
                self._abort(found)

    @contextmanager
    def _deciding_alone(self, transaction_id: str) -> Iterator[None]:
        """Let one thread at a time decide a transaction; others go on with theirs."""
        with self._turn:
            self._turn.wait_for(lambda: transaction_id not in self._deciding)
            self._deciding.add(transaction_id)
        try:
            yield
        finally:
            with self._turn:
                self._deciding.discard(transaction_id)
                self._turn.notify_all()

    def _find(self, transaction_id: str, verdict: int, *, force: bool) -> _Found | Decided:
        """Return a transaction that is in doubt, or what was decided of it, where that is the same verdict."""
        for each in self._find_all():
            if each.id == transaction_id:
                if each.decider is None or force:
                    self._check_locks(each)
                    return each
                if not self._resolve(each):
                    raise self._decided_elsewhere(each)
        decided = self._decided(transaction_id)
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

    def _decided_elsewhere(self, found: _Found) -> TransactionStateError:
        decider = found.decider
        assert decider is not None
        return TransactionStateError(
            f"transaction {found.id} is decided by the log of {other_root(self._sides.path, decider)}: open that "
            "queue, and this one follows it; force=True decides here, and may break all-or-nothing",
            transaction=found.id,
            state="prepared",
        )

    def _check_locks(self, found: _Found) -> None:
        """Refuse to decide for a group that another process owns, before anything is done."""
        sides = self._sides
        for group, _ in found.votes:
            if group != sides.group.name or sides.read_side is None:
                with groups_locked(sides.storage, sides.directory, sides.clock):
                    is_free = is_group_free(sides.storage, sides.directory, group)
                if not is_free:
                    raise QueueLockedError(
                        f"transaction {found.id} holds messages of group {group!r}, which another handle owns; "
                        "decide it there, or close that one",
                        path=str(sides.directory.group(group)),
                        pid=None,
                        host=None,
                    )

    def _commit(self, found: _Found) -> range:
        sides, batch = self._sides, found.batch
        if found.damage:
            raise CorruptionError(
                f"transaction {found.id} is damaged ({found.damage[0].reason}): it cannot be committed; abort it, and "
                "put again what it held",
                path=str(found.damage[0].path),
            )
        if batch is None:
            self._remember_votes(found, COMMITTED)
            self._settle_votes(found, is_committed=True, is_durable=True)
            end = sides.next_offset()
            return range(end, end)
        offsets = sides.require_batches().commit(batch)
        witnesses: list[Witness] = [sides.require_batches().sync]
        try:
            if batch.decision.is_remembered:
                sides.require_batches().remember(batch.decision, offsets)
            self._settle_votes(found, is_committed=True, is_durable=False)
        except HoldfastError as error:
            logger.error("%s is committed, and the next opening of %s does the rest: %s", found.id, sides.path, error)
            return offsets
        if found.votes and sides.read_side is not None:
            witnesses.append(sides.read_side.flush)
        sides.require_write_side().open_decisions.applied(found.nonce, *witnesses)
        return offsets

    def _abort(self, found: _Found) -> None:
        sides = self._sides
        if found.batch is not None or found.damage:
            sides.require_batches().abort(found.id, found.nonce or bytes(16), sides.clock.time_ns())
        else:
            self._remember_votes(found, ABORTED)
        self._settle_votes(found, is_committed=False, is_durable=True)

    def _settle_votes(self, found: _Found, *, is_committed: bool, is_durable: bool) -> None:
        sides = self._sides
        for group, vote in found.votes:
            if group == sides.group.name and sides.read_side is not None:
                sides.read_side.resolve(vote.nonce, is_committed=is_committed, is_durable=is_durable)
            else:
                with groups_locked(sides.storage, sides.directory, sides.clock):
                    settle = _outcome(vote, is_committed=is_committed)
                    visit_group(sides.storage, sides.directory, sides.queue_id, sides.clock, group, settle)

    # -- The memory of what was decided ------------------------------------------------------------------------------

    def _decided(self, transaction_id: str) -> Decided | None:
        batches = self._sides.batches
        decided = batches.decided.find(transaction_id) if batches is not None else None
        return decided or self._votes_memory().find(transaction_id)

    def _votes_memory(self) -> DecidedFile:
        """Return the memory of transactions that only acknowledged: it is in the group's directory, and its owner's."""
        if self._group_decided is None:
            sides = self._sides
            self._group_decided = DecidedFile(sides.storage, sides.directory.group(sides.group.name) / "decided")
        return self._group_decided

    def _remember_votes(self, found: _Found, verdict: int) -> None:
        if found.decider is None:
            memory = self._votes_memory()
            memory.note(found.id, found.nonce, verdict, range(0), self._sides.clock.time_ns())
            memory.sync()

    # -- What another queue decides ----------------------------------------------------------------------------------

    def resolve(self) -> None:
        """Do what other queues have decided meanwhile, and let go of votes whose puts were never prepared."""
        for found in self._find_all():
            try:
                with self._deciding_alone(found.id):
                    self._resolve(found)
            except HoldfastError as error:
                logger.warning("transaction %s of %s stays in doubt: %s", found.id, self._sides.path, error)

    def _resolve(self, found: _Found) -> bool:
        """Settle what this handle owns of a transaction, if its coordinator says how; return whether it did."""
        sides = self._sides
        if found.coordinator is None or found.damage:
            return False
        votes = tuple(each for each in found.votes if each[0] == sides.group.name and sides.read_side is not None)
        found = replace(found, votes=votes, batch=found.batch if sides.batches is not None else None)
        if not votes and found.batch is None:
            return False
        verdict = self._own_verdict(found) if found.decider is None else self._ask(found.decider, found.nonce)
        if verdict is Verdict.COMMITTED and found.batch is not None:
            self._commit(found)
        elif verdict is Verdict.COMMITTED:
            self._settle_votes(found, is_committed=True, is_durable=True)
        elif verdict is Verdict.ABORTED:
            self._abort_quietly(found)
        return verdict is not Verdict.IN_DOUBT

    def _own_verdict(self, found: _Found) -> Verdict:
        """Return what became of a transaction that this queue's own log decides."""
        coordinator = self._sides.coordinator
        verdict = coordinator.verdict(found.nonce) if coordinator is not None else Verdict.ABORTED
        if verdict is Verdict.ABORTED and self._batch(found.id) is not None:  # looked for once nobody prepares it
            return Verdict.IN_DOUBT
        return verdict

    def _abort_quietly(self, found: _Found) -> None:
        """Abort what nobody asks for by its id."""
        batches = self._sides.batches
        if found.batch is not None and batches is not None:
            batches.drop(found.batch.path)
            batches.sync()
        self._settle_votes(found, is_committed=False, is_durable=True)

    # -- Ending ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Let go of what is held."""
        if self._group_decided is not None:
            self._group_decided.close()


def _outcome(vote: Vote, *, is_committed: bool) -> Callable[[GroupProgress], list[Change]]:
    def changes(progress: GroupProgress) -> list[Change]:
        return outcome_changes(vote, committed=is_committed) if vote.nonce in progress.votes else []

    return changes
