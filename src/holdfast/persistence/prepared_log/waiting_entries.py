"""What waits in a prepared log, for a process that does not own it: it reads while the owner appends and removes."""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.errors import CorruptionError
from holdfast.persistence.filesystem.layout import QueueDirectory, list_segments
from holdfast.persistence.filesystem.storage import MISSING, Storage
from holdfast.persistence.format.report import Damage
from holdfast.persistence.prepared_log.emptying import unreadable
from holdfast.persistence.prepared_log.entry import Entry
from holdfast.persistence.prepared_log.segment_reader import DamagedEntry, SegmentContent, read_segment


@dataclass(slots=True)
class WaitingEntries:
    """The undecided entries of a prepared log.

    Attributes
    ----------
    entries : list of Entry or DamagedEntry
        Oldest first. One of them may have a batch file too, which counts: so batch files are read behind this.
    lost : list of Damage
        Damage that may have taken entries, or the frames that end them.
    """

    entries: list[Entry | DamagedEntry] = field(default_factory=list)
    lost: list[Damage] = field(default_factory=list)


def read_waiting_entries(storage: Storage, directory: QueueDirectory, queue_id: bytes) -> WaitingEntries:
    """Return the undecided entries; a segment that goes meanwhile has none.

    Raises
    ------
    UnsupportedVersionError
        A Holdfast of another format version wrote a segment.
    OSError
        A segment cannot be read.
    """
    contents: list[SegmentContent] = []
    for sequence in list_segments(storage, directory):
        path = directory.segment(sequence)
        try:
            contents.append(read_segment(storage, path, queue_id))
        except CorruptionError as error:
            contents.append(unreadable(path, queue_id, sequence, error))
        except MISSING:
            continue
    ended = {nonce for each in contents for nonce in each.ended}
    found = [entry for each in contents for entry in each.all_entries()]
    return WaitingEntries(
        [entry for entry in found if entry.nonce not in ended], [damage for each in contents for damage in each.lost]
    )
