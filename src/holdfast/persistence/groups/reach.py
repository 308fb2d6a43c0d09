"""How far anything may reach that speaks of offsets: progress, decisions, ``group.json``. One place decides it.

Power may take the end of the log and leave what was noted of it, so an entry may speak of messages that are not there
any more: of as many as one data file can hold, because whatever is in an earlier file was synced with it. What reaches
further was never written by us. It would move the next offset to where no log comes, so it is damage.
"""

from __future__ import annotations

from dataclasses import replace

from holdfast.persistence.filesystem.layout import QueueDirectory, list_data_files
from holdfast.persistence.filesystem.storage import MISSING, Storage
from holdfast.persistence.format.constants import (
    DATA_FILE_BYTES_LIMIT,
    ENTRY_DELIVERED,
    ENTRY_RETURNED,
    FRAME_HEADER_BYTES,
)
from holdfast.persistence.groups.position_entry import Change, reach_of
from holdfast.persistence.log.watermark import marked_end

REACH_MAX = (DATA_FILE_BYTES_LIMIT + 1) // FRAME_HEADER_BYTES
"""Messages that one data file can hold: 2**27 frames of 32 bytes."""

_UNKNOWN_BOUND = 2**62
"""Where all data files and ``write.mark`` are lost, progress alone knows which offsets were given."""

_LONG_RUN_COUNT = 1024
"""What is handed out is kept message by message: a longer run is held against the log before it is believed."""


class Reach:
    """Says of offsets whether anything in a queue's directory may speak of them.

    Most queues never come to more than ``REACH_MAX`` messages, and then nothing is looked at.

    Parameters
    ----------
    storage, directory
        The queue.
    """

    def __init__(self, storage: Storage, directory: QueueDirectory) -> None:
        self._storage = storage
        self._directory = directory
        self._log_end = 0
        self._bound = REACH_MAX
        self._is_fresh = False

    def renew(self) -> None:
        """Look again where the log ends, once something reaches behind what is known: it grows meanwhile."""
        self._is_fresh = False

    def covers(self, end: int) -> bool:
        """Whether there may be, or may have been, a message right before offset ``end``. Raises ``OSError``."""
        if end > self._bound:
            self._look()
        return end <= self._bound

    def bounded(self, change: Change) -> Change | None:
        """Return an entry as far as it may be believed; None where it is damage. Raises ``OSError``.

        A run of deliveries ends with the log: how often a message was handed out that is not there helps nobody, and
        a reader keeps something for each.
        """
        end = reach_of(change)
        if not self.covers(end):
            return None
        if change.count <= _LONG_RUN_COUNT or change.kind not in (ENTRY_DELIVERED, ENTRY_RETURNED):
            return change
        self._look()
        return change if end <= self._log_end else replace(change, count=max(0, self._log_end - change.first_offset))

    def _look(self) -> None:
        if self._is_fresh:
            return
        end = _log_end_max(self._storage, self._directory)
        self._is_fresh = True
        if end is None:
            self._bound = _UNKNOWN_BOUND
        else:
            self._log_end = max(self._log_end, end)
            self._bound = self._log_end + REACH_MAX


def _log_end_max(storage: Storage, directory: QueueDirectory) -> int | None:
    """Return an offset at or behind the log's end: behind what the last data file has room for, and ``write.mark``.

    That one speaks of a later file only where the last one is missing. None where there is neither.
    """
    marked = marked_end(storage, directory.write_mark)
    while names := list_data_files(storage, directory):
        try:
            file = storage.open(directory.data_file(names[-1]), writable=False)
        except MISSING:
            continue  # retired between the two looks, so there is a later one
        with file:
            return max(marked or 0, names[-1].first_offset + min(file.size() // FRAME_HEADER_BYTES, REACH_MAX))
    return marked
