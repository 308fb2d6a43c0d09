"""What waits in ``prepared/``: the puts of each undecided transaction, in the prepared log or in a file of its own.

Segments are read first, then batch files: so an entry that moves meanwhile is seen. The batch file counts.
docs/format.md, "Prepared log".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from holdfast.errors import CorruptionError
from holdfast.persistence.filesystem.layout import QueueDirectory, list_batch_files, list_segments
from holdfast.persistence.filesystem.storage import MISSING, Storage
from holdfast.persistence.format.report import DAMAGED, Damage
from holdfast.persistence.outcomes.outcome_log import OutcomeLog
from holdfast.persistence.outcomes.published_commits import published_commits
from holdfast.persistence.prepared_log.entry import Entry
from holdfast.persistence.prepared_log.segment_reader import DamagedEntry
from holdfast.persistence.prepared_log.waiting_entries import WaitingEntries, read_segments, undecided
from holdfast.persistence.segment.batch_file_reader import BatchSummary, check_batch_name, read_summary


@dataclass(frozen=True, slots=True)
class WaitingPuts:
    """The puts of one transaction.

    Attributes
    ----------
    id : str
        Its id.
    nonce : bytes
        Its nonce; empty if damage hides it.
    timestamp_ns : int
        When it was prepared; 0 if damage hides it.
    batch : BatchSummary, Entry or None
        Where they are; None if they are damaged.
    damage : tuple of Damage
        Why.
    whole : Entry or None
        Puts that verify, though damage beside them may hide that they were decided.
    """

    id: str
    nonce: bytes
    timestamp_ns: int
    batch: BatchSummary | Entry | None = None
    damage: tuple[Damage, ...] = ()
    whole: Entry | None = None


def read_waiting_entries(storage: Storage, directory: QueueDirectory, queue_id: bytes) -> WaitingEntries:
    """Return what is undecided in the prepared log, for a process that does not own it.

    An entry that was decided before the call is not among them, nor is one that its owner moves meanwhile: its batch
    file is there by then.

    Raises
    ------
    UnsupportedVersionError
        A Holdfast of another format version wrote some of it.
    StorageError, OSError
        The disk refuses.
    """
    found = undecided(read_segments(storage, directory, queue_id))
    return found if not (found.entries or found.lost) else without_decided(storage, directory, queue_id, found)


def without_decided(
    storage: Storage, directory: QueueDirectory, queue_id: bytes, found: WaitingEntries
) -> WaitingEntries:
    """Return entries without those that the log or ``decided`` knows, and without what has gone since they were read.

    Raises as :func:`read_waiting_entries`.
    """
    committed = published_commits(storage, directory, queue_id)
    outcome_log = OutcomeLog(storage, directory.outcome_log)
    is_known = {each.nonce for each in found.entries if outcome_log.find_nonce(each.nonce) is not None} | committed
    there = set(list_segments(storage, directory))  # last: what ends an entry may have gone with a later segment
    paths = {directory.segment(sequence) for sequence in there}
    return WaitingEntries(
        [each for each in found.entries if each.sequence in there and each.nonce not in is_known],
        [damage for damage in found.lost if damage.path in paths],
    )


def waiting_puts(
    storage: Storage, directory: QueueDirectory, queue_id: bytes, entries: Iterable[Entry | DamagedEntry]
) -> list[WaitingPuts]:
    """Return the puts of every undecided transaction: of these entries, which were read before, and of batch files.

    Raises
    ------
    UnsupportedVersionError
        A Holdfast of another format version wrote a batch file.
    OSError
        One cannot be read.
    """
    found = {each.id: _of_entry(each) for each in entries}
    for each in _in_files(storage, directory, queue_id):
        if each.batch is not None or each.id not in found:  # opening replaces a damaged file by the entry
            found[each.id] = each
    return list(found.values())


def has_batch_file(storage: Storage, directory: QueueDirectory, transaction_id: str) -> bool:
    """Whether there is a batch file of a transaction: nothing else is listed. Raises ``OSError``."""
    try:
        storage.open(directory.batch_file(transaction_id)).close()
    except MISSING:
        return False
    return True


def read_batch(
    storage: Storage, directory: QueueDirectory, queue_id: bytes, transaction_id: str
) -> BatchSummary | None:
    """Return the summary of the batch file of an id; None if there is none.

    Raises
    ------
    CorruptionError
        It is damaged, or another transaction's.
    UnsupportedVersionError, OSError
        As :func:`waiting_puts`.
    """
    try:
        batch = read_summary(storage, directory.batch_file(transaction_id), queue_id)
    except MISSING:
        return None
    check_batch_name(batch, transaction_id)
    return batch


def _of_entry(entry: Entry | DamagedEntry) -> WaitingPuts:
    if isinstance(entry, DamagedEntry):
        return WaitingPuts(entry.id, entry.nonce, entry.timestamp_ns, damage=(entry.damage,), whole=entry.whole)
    return WaitingPuts(entry.id, entry.nonce, entry.timestamp_ns, entry)


def _in_files(storage: Storage, directory: QueueDirectory, queue_id: bytes) -> Iterator[WaitingPuts]:
    for transaction_id in list_batch_files(storage, directory):
        try:
            batch = read_batch(storage, directory, queue_id, transaction_id)
        except CorruptionError as error:
            damage = Damage(directory.batch_file(transaction_id), error.position, 0, range(0), DAMAGED, str(error))
            yield WaitingPuts(transaction_id, b"", 0, damage=(damage,))
        else:
            if batch is not None:
                record = batch.commit_record
                yield WaitingPuts(record.id, record.nonce, record.timestamp_ns, batch)
