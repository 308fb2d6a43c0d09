"""The highest offset that progress, commit records and ``group.json`` may name. One place decides it.

A power cut may lose the end of the log and keep the progress, so an entry may name messages that are gone. They are at
most as many as one data file can hold, because earlier files are synced. An entry that reaches further was never
written by Holdfast. It would move the next offset far beyond the log, so it is damage.
"""

from __future__ import annotations

from dataclasses import replace

from holdfast.persistence.filesystem.layout import QueueDirectory, list_data_files
from holdfast.persistence.filesystem.storage import MISSING, Storage
from holdfast.persistence.format.constants import (
    DATA_FILE_BYTES_LIMIT,
    ENTRY_DELIVERED,
    ENTRY_RETURNED,
    ENTRY_SKIPPED,
    ENTRY_TAKEN_AWAY,
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

_KINDS_BY_MESSAGE = frozenset({ENTRY_DELIVERED, ENTRY_RETURNED, ENTRY_TAKEN_AWAY})


class Reach:
    """Decides which offsets the files of a queue may name.

    Most queues never have more than ``REACH_MAX`` messages, and then nothing is read.

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
        """Read the end of the log again if an offset is beyond the known one: the log grows meanwhile."""
        self._is_fresh = False

    def covers(self, end: int) -> bool:
        """Whether a message right before offset ``end`` may exist or may have existed. Raises ``OSError``."""
        if end > self._bound:
            self._look()
        return end <= self._bound

    def bounded(self, change: Change) -> Change | None:
        """Return the valid part of an entry; None if it is damage. Raises ``OSError``.

        A run of deliveries is cut at the end of the log: a delivery count of a missing message is useless, and a reader
        keeps one for each.
        """
        end = reach_of(change)
        if not self.covers(end):
            return None
        is_by_message = change.kind in _KINDS_BY_MESSAGE or (change.kind == ENTRY_SKIPPED and change.delivery_number)
        if change.count <= _LONG_RUN_COUNT or not is_by_message:
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
    """Return an offset at or behind the log's end: behind the last data file's capacity, and behind ``write.mark``.

    The mark names a later file only if the last one is missing. None if there is neither.
    """
    marked = marked_end(storage, directory.write_mark)
    while names := list_data_files(storage, directory):
        try:
            file = storage.open(directory.data_file(names[-1]), writable=False)
        except MISSING:
            continue  # retired between the two listings, so there is a later one
        with file:
            return max(marked or 0, names[-1].first_offset + min(file.size() // FRAME_HEADER_BYTES, REACH_MAX))
    return marked
