"""What leaves ``prepared/``, and the memory of transactions that were decided there: made durable together."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path

from holdfast.persistence.filesystem.layout import QueueDirectory
from holdfast.persistence.filesystem.poison import Poison
from holdfast.persistence.filesystem.storage import MISSING, Storage, storage_errors
from holdfast.persistence.outcomes.outcome_log import OutcomeLog
from holdfast.persistence.prepared_log.entry import Entry
from holdfast.persistence.prepared_log.prepared_log import PreparedLog
from holdfast.persistence.segment.batch_file_reader import BatchSummary

Waiting = BatchSummary | Entry
"""Puts of a transaction that wait: in a file of their own, or in the prepared log."""


class PreparedFiles:
    """The files of ``prepared/`` as they are removed. Threads may share it.

    Parameters
    ----------
    storage, directory
        The queue.
    log : PreparedLog
        Its prepared log.

    Attributes
    ----------
    log
        As above.
    outcome_log : OutcomeLog
        The memory of transactions that were decided here.
    removals : Poison
        Set when a sync has failed: the removal of a batch may not survive a power cut.
    """

    def __init__(self, storage: Storage, directory: QueueDirectory, log: PreparedLog) -> None:
        self.log = log
        self._storage = storage
        self._directory = directory
        self._sync_lock = threading.Lock()
        self._has_removed = False
        self._has_leftovers = False
        self.outcome_log = OutcomeLog(storage, directory.outcome_log)
        self.removals = Poison("the removal of prepared batches", directory.prepared)

    def drop(self, batch: Waiting, outcome: int) -> None:
        """Remove a batch that was decided."""
        if isinstance(batch, Entry):
            self.log.end(batch.id, batch.nonce, outcome, batch.commit_record.timestamp_ns)
        else:
            self.drop_file(batch.path)

    def drop_file(self, path: Path) -> None:
        """Remove a batch file."""
        with storage_errors("removing a batch", path), suppress(*MISSING):
            self._storage.remove(path)
        self.note_removed()

    def note_removed(self) -> None:
        """Note that a batch file has gone, though not durably so before :meth:`sync`."""
        self._has_removed = True

    def note_leftover(self) -> None:
        """Note that a batch could not be removed: the next opening does it, and until then nothing is durable."""
        self._has_leftovers = True

    def sync(self) -> bool:
        """Make durable what was removed and remembered; False if something could not be removed."""
        self.outcome_log.sync()
        with self._sync_lock:
            if self._has_removed:
                self._has_removed = False  # before the sync: what is removed meanwhile needs the next one
                try:
                    with storage_errors("syncing", self._directory.prepared):
                        self._storage.sync_directory(self._directory.prepared)
                except BaseException as error:
                    self._has_leftovers = True  # never sync again what a sync has failed on
                    self.removals.set(error)
                    raise
        return self.log.sync_ends() and not self._has_leftovers
