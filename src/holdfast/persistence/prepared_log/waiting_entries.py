"""What segments say together: the entries that wait, and the damage that leaves some in doubt.

A process that does not own the queue reads them while the owner appends and removes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from holdfast.errors import CorruptionError
from holdfast.persistence.filesystem.layout import QueueDirectory, list_segments
from holdfast.persistence.filesystem.storage import MISSING, Storage
from holdfast.persistence.format.file_header import SegmentHeader
from holdfast.persistence.format.report import DAMAGED, Damage
from holdfast.persistence.prepared_log.entry import Entry
from holdfast.persistence.prepared_log.segment_reader import DamagedEntry, SegmentContent, read_segment

LOST_ADVICE = (
    "prepared transactions, or what became of them, may be lost: compare prepared() and the log with your own records, "
    "put again what is missing, and decide each one that prepared() lists as damaged"
)
"""What to do about damage of a segment that names no transaction."""

_WHOLE_ADVICE = (
    "the transaction is whole and may have been decided before: if not, commit it with force=True; or abort it"
)

QUARANTINED_ADVICE = (
    "an opening has quarantined it, because it is damaged or of another queue: prepared transactions, or what became "
    "of them, may be lost. Compare prepared() and the log with your own records, put again what is missing, and remove "
    "this file"
)
"""What to do about a segment that was quarantined."""


@dataclass(slots=True)
class WaitingEntries:
    """The undecided entries of a prepared log.

    Attributes
    ----------
    entries : list of Entry or DamagedEntry
        Oldest first. One of them may have a batch file too, which counts.
    lost : list of Damage
        Damage that may have taken entries, or the frames that end them.
    without_puts : set of bytes or None
        The nonces of votes whose puts may have been there; None: of any vote.
    """

    entries: list[Entry | DamagedEntry] = field(default_factory=list)
    lost: list[Damage] = field(default_factory=list)
    without_puts: frozenset[bytes] | None = None

    def lost_of(self, nonce: bytes) -> tuple[Damage, ...]:
        """Return the damage that may have taken the puts of a vote."""
        return tuple(self.lost) if self.without_puts is None or nonce in self.without_puts else ()


def read_segments(storage: Storage, directory: QueueDirectory, queue_id: bytes) -> list[SegmentContent]:
    """Return what the segments say, oldest first; one that goes meanwhile says nothing.

    What seems damaged is read twice: damage that is gone then was a write in progress.

    Raises
    ------
    UnsupportedVersionError
        A Holdfast of another format version wrote one.
    OSError
        One cannot be read.
    """
    found = (_look_twice(storage, directory, queue_id, sequence) for sequence in list_segments(storage, directory))
    return [content for content in found if content is not None]


def undecided(contents: Sequence[SegmentContent]) -> WaitingEntries:
    """Return the entries that no "ended" frame makes void.

    Where such a frame may be lost, an entry counts as damaged: in segments up to the last one with such damage.
    """
    ended = {nonce for content in contents for nonce in content.ended}
    lost = [damage for content in contents for damage in content.lost]
    doubtful = max((content.header.sequence for content in contents if content.lost), default=0)
    entries: list[Entry | DamagedEntry] = []
    for content in contents:
        for entry in content.all_entries():
            if entry.nonce in ended:
                continue
            is_doubtful = entry.sequence <= doubtful
            entries.append(_in_doubt(entry, lost[-1]) if is_doubtful else entry)
    return WaitingEntries(entries, lost)


def _in_doubt(entry: Entry | DamagedEntry, lost: Damage) -> DamagedEntry:
    """Return an entry that may have ended: what said so may be among the bytes that are lost."""
    if isinstance(entry, DamagedEntry):
        return entry
    damage = replace(lost, reason=f"{lost.reason}; {_WHOLE_ADVICE}")
    return DamagedEntry(entry.id, entry.nonce, entry.timestamp_ns, entry.sequence, damage, entry)


def unreadable_segment(path: Path, queue_id: bytes, sequence: int, error: CorruptionError) -> SegmentContent:
    """Return what a segment says whose header cannot be read: that anything may be lost."""
    damage = Damage(path, error.position, 0, range(0), DAMAGED, str(error))
    return SegmentContent(path, SegmentHeader(queue_id, sequence), lost=[damage])


def _look_twice(storage: Storage, directory: QueueDirectory, queue_id: bytes, sequence: int) -> SegmentContent | None:
    found = _look_at(storage, directory, queue_id, sequence)
    if found is None or not (found.lost or found.damaged_entries):
        return found
    again = _look_at(storage, directory, queue_id, sequence)
    if again is not None:
        places = _places((*found.lost, *(entry.damage for entry in found.damaged_entries)))
        again.lost = [damage for damage in again.lost if damage.position in places]
        again.damaged_entries = [entry for entry in again.damaged_entries if entry.damage.position in places]
    return again


def _places(damage: Iterable[Damage]) -> set[int]:
    return {each.position for each in damage}


def _look_at(storage: Storage, directory: QueueDirectory, queue_id: bytes, sequence: int) -> SegmentContent | None:
    path = directory.segment(sequence)
    try:
        return read_segment(storage, path, queue_id)
    except CorruptionError as error:
        return unreadable_segment(path, queue_id, sequence, error)
    except MISSING:
        return None
