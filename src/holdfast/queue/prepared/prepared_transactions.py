"""Finds the prepared transactions of one queue: their puts in ``prepared/``, their votes in position files."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.errors import ConfigError, CorruptionError
from holdfast.persistence.filesystem.layout import check_name, list_batch_files
from holdfast.persistence.filesystem.storage import MISSING, storage_errors
from holdfast.persistence.format.commit_record import Participant, PartOf
from holdfast.persistence.format.report import Damage
from holdfast.persistence.groups.group_files import list_groups, progress_reader
from holdfast.persistence.groups.vote import Vote
from holdfast.persistence.outcomes.prepared_files import Waiting
from holdfast.persistence.outcomes.redo import OWN
from holdfast.persistence.outcomes.waiting_puts import has_batch_file, read_batch, read_waiting_entries, waiting_puts
from holdfast.persistence.prepared_log.entry import Entry
from holdfast.persistence.prepared_log.segment_reader import DamagedEntry
from holdfast.persistence.prepared_log.waiting_entries import WaitingEntries
from holdfast.persistence.segment.batch_file_reader import verify_batch
from holdfast.queue.engine.queue_handle import QueueHandle


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
        Bytes of its puts, frames included.
    coordinator : Path or None
        The queue whose log decides; None: the caller does.
    part_of : PartOf or None
        The joint commit that decides (``queue.joint_commits``); None: there is none.
    damage : tuple of Damage
        Its bytes that do not verify, or others that may hide its outcome: the reason says what can be done with it.
    """

    id: str
    age_seconds: float
    put_count: int
    ack_count: int
    size_bytes: int
    coordinator: Path | None = None
    part_of: PartOf | None = None
    damage: tuple[Damage, ...] = ()


@dataclass(slots=True)
class Found:
    """The places of one transaction: puts in ``prepared/``, acknowledgements in votes, each with its group."""

    id: str
    nonce: bytes
    timestamp_ns: int
    coordinator: Participant | None
    batch: Waiting | None = None
    votes: tuple[tuple[str, Vote], ...] = ()
    damage: tuple[Damage, ...] = ()
    whole: Entry | None = None

    @property
    def decider(self) -> Participant | None:
        """The other queue that decides; None if this one does, or the caller."""
        return None if self.coordinator is None or self.coordinator.path == OWN else self.coordinator

    @property
    def part_of(self) -> PartOf | None:
        """The joint commit that decides; None if there is none."""
        return None if self.batch is None else self.batch.commit_record.part_of

    def forced(self) -> Found:
        """Return it as an operator may commit it: with puts that verify, although they may have been decided before."""
        return self if self.whole is None else replace(self, batch=self.whole, damage=())


def find_prepared(handle: QueueHandle) -> list[Found]:
    """Return the transactions in doubt, oldest first. Raises ``OSError``."""
    found: dict[bytes, Found] = {}
    nameless: list[Found] = []
    waiting = waiting_entries(handle)
    for each in _find_batches(handle, waiting):
        if each.nonce:
            found[each.nonce] = each
        else:
            nameless.append(each)
    for group, vote in _votes(handle):
        each = found.setdefault(vote.nonce, _of_vote(vote, waiting))
        each.votes += ((group, vote),)
    for each in nameless:  # a damaged file: its vote, if it has one, knows the nonce
        twin = next((other for other in found.values() if other.id == each.id and other.batch is None), None)
        if twin is not None:
            twin.damage = each.damage
        else:
            found[each.id.encode()] = each
    return sorted(found.values(), key=lambda each: (each.timestamp_ns, each.id))


def _of_vote(vote: Vote, waiting: WaitingEntries) -> Found:
    """Return a transaction whose vote alone is known: damage may have taken its puts."""
    left_to_log = vote.coordinator is not None and vote.coordinator.path == OWN
    damage = waiting.lost_of(vote.nonce) if left_to_log else ()
    return Found(vote.id, vote.nonce, vote.timestamp_ns, vote.coordinator, damage=damage)


def find_transaction(handle: QueueHandle, transaction_id: str) -> Found | None:
    """Return one transaction that is in doubt, reading no more than that; None if there is none of that id.

    Raises ``OSError``.
    """
    try:
        batch = find_batch(handle, check_name(transaction_id, "transaction"))
    except ConfigError:  # which no transaction can have
        return None
    except CorruptionError:
        return next((each for each in find_prepared(handle) if each.id == transaction_id), None)
    if batch is None:
        own = next((each for each in _own_votes(handle, handle.group_readers) if each[1].id == transaction_id), None)
        if own is None:
            return next((each for each in find_prepared(handle) if each.id == transaction_id), None)
        return replace(_of_vote(own[1], waiting_entries(handle)), votes=(own,))
    commit_record = batch.commit_record
    voters = {each.group for each in commit_record.participants if each.path == OWN}
    found = _votes(handle, voters) if voters else ()
    votes = tuple(each for each in found if each[1].nonce == commit_record.nonce)
    return Found(
        commit_record.id, commit_record.nonce, commit_record.timestamp_ns, commit_record.coordinator, batch, votes
    )


def is_in_doubt(handle: QueueHandle, transaction_id: str) -> bool:
    """Whether a transaction of this id waits for its outcome. Raises ``OSError``.

    A vote of another group that this queue's log decides, and whose puts do not wait, has its outcome: unless damage
    may have taken them.
    """
    waiting = waiting_entries(handle)
    if any(each.id == transaction_id for each in waiting.entries):
        return True
    if transaction_id in list_batch_files(handle.storage, handle.directory):
        return True
    own = list(handle.group_readers)
    return any(
        vote.id == transaction_id
        and (group in own or vote.coordinator is None or vote.coordinator.path != OWN or waiting.lost_of(vote.nonce))
        for group, vote in _votes(handle)
    )


def waits_here(handle: QueueHandle, transaction_id: str) -> bool:
    """As :func:`is_in_doubt`, without a vote of a group that is not open here: none is read. Raises ``OSError``."""
    if handle.batches is not None and handle.batches.prepared.log.find(transaction_id) is not None:
        return True
    if has_batch_file(handle.storage, handle.directory, transaction_id):
        return True
    return any(vote.id == transaction_id for _, vote in _own_votes(handle, handle.group_readers))


def waiting_entries(handle: QueueHandle) -> WaitingEntries:
    """Return what waits in the prepared log: from memory if it is owned here. To be read before batch files are."""
    if handle.batches is None:
        return read_waiting_entries(handle.storage, handle.directory, handle.queue_id)
    return handle.batches.prepared.log.waiting()


def find_batches(handle: QueueHandle) -> Iterator[Found]:
    """Yield the transactions that put, without their votes. Raises ``OSError``."""
    yield from _find_batches(handle, waiting_entries(handle))


def _find_batches(handle: QueueHandle, waiting: WaitingEntries) -> Iterator[Found]:
    with storage_errors("reading a prepared transaction", handle.directory.prepared):
        found = waiting_puts(handle.storage, handle.directory, handle.queue_id, waiting.entries)
    for each in found:
        coordinator = None if each.batch is None else each.batch.commit_record.coordinator
        yield Found(each.id, each.nonce, each.timestamp_ns, coordinator, each.batch, (), each.damage, each.whole)


def find_batch(handle: QueueHandle, transaction_id: str) -> Waiting | None:
    """Return the puts that wait under an id; None if there are none. Raises CorruptionError if they are damaged."""
    entry = _find_entry(handle, transaction_id)
    if isinstance(entry, Entry):
        return entry
    with storage_errors("reading a prepared transaction", handle.directory.batch_file(transaction_id)):
        batch = read_batch(handle.storage, handle.directory, handle.queue_id, transaction_id)
    if batch is None and entry is not None:
        raise damaged_transaction(transaction_id, entry.damage, entry.whole)
    return batch


def damaged_transaction(transaction_id: str, damage: Damage, whole: Entry | None) -> CorruptionError:
    """Return the error for a transaction that cannot be committed because of damage."""
    if whole is not None:
        text = f"transaction {transaction_id} waits beside damage ({damage.reason})"
    else:
        advice = "it cannot be committed; abort it, and put its messages again"
        text = f"transaction {transaction_id} is damaged ({damage.reason}): {advice}"
    return CorruptionError(text, path=str(damage.path), position=damage.position)


def _find_entry(handle: QueueHandle, transaction_id: str) -> Entry | DamagedEntry | None:
    if handle.batches is not None:
        return handle.batches.prepared.log.find(transaction_id)
    entries = read_waiting_entries(handle.storage, handle.directory, handle.queue_id).entries
    return next((each for each in entries if each.id == transaction_id), None)


def waits_still(handle: QueueHandle, found: Found) -> bool:
    """Whether the puts of a transaction that was found before still wait; true if it has none.

    Else another thread has decided it meanwhile, and another transaction may have its id. Raises CorruptionError.
    """
    if found.batch is None:
        return True
    batch = find_batch(handle, found.id)
    return batch is not None and batch.commit_record.nonce == found.nonce


def is_left_to_log(found: Found) -> bool:
    """Whether these are votes without waiting puts: this queue's log has the puts, or never will."""
    return found.batch is None and not found.damage and found.coordinator is not None and found.decider is None


def find_damage(handle: QueueHandle, batch: Waiting) -> list[Damage]:
    """Return the damage of a batch, reading all of it unless that was done before."""
    if isinstance(batch, Entry):  # what is damaged is none
        return []
    if handle.batches is not None:
        return handle.batches.damage(batch)
    with storage_errors("verifying a prepared transaction", batch.path):
        try:
            return [each for each in verify_batch(handle.storage, batch.path, handle.queue_id) if each.offsets]
        except MISSING:  # decided just now
            return []


def _votes(handle: QueueHandle, names: Container[str] | None = None) -> Iterator[tuple[str, Vote]]:
    """Yield the votes of every group, or of those named: of those open here from memory, of others from the disk."""
    own = list(handle.group_readers)
    yield from _own_votes(handle, own if names is None else [each for each in own if each in names])
    for group in list_groups(handle.storage, handle.directory, but=own):
        if names is None or group.name in names:
            progress = progress_reader(handle.storage, handle.directory, handle.queue_id, group).refresh()
            yield from ((group.name, vote) for vote in progress.votes.values())


def _own_votes(handle: QueueHandle, names: Iterable[str]) -> Iterator[tuple[str, Vote]]:
    """Yield the votes of groups that are open here, with the group."""
    for name in list(names):
        yield from ((name, vote) for vote in list(handle.group_readers[name].progress.votes.values()))
