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
    leftovers : set of Path
        Batch files that may be there and have to go: of what is in the log, or in the prepared log, too.
    removals : Poison
        Set when a sync of the directory has failed: a second one proves nothing. Names that came or went may be lost,
        so nothing more is prepared, and what is committed stays pending.
    """

    def __init__(self, storage: Storage, directory: QueueDirectory, log: PreparedLog) -> None:
        self.log = log
        self._storage = storage
        self._directory = directory
        self._sync_lock = threading.Lock()
        self._has_removed = False
        self.leftovers: set[Path] = set()
        self.outcome_log = OutcomeLog(storage, directory.outcome_log)
        self.removals = Poison("the directory of prepared transactions", directory.prepared)

    def drop(self, batch: Waiting, outcome: int) -> None:
        """Remove a batch that was decided."""
        record = batch.commit_record
        self.drop_named(record.id, record.nonce, outcome, record.timestamp_ns)

    def drop_named(self, transaction_id: str, nonce: bytes, outcome: int, timestamp_ns: int) -> None:
        """Remove the batch of an id: its entry, or its file; both as long as a move may have left some."""
        if self.leftovers or self.log.find(transaction_id) is None:
            self.drop_file(self._directory.batch_file(transaction_id))
        self.log.end(transaction_id, nonce, outcome, timestamp_ns)

    def drop_file(self, path: Path) -> None:
        """Remove a batch file."""
        with storage_errors("removing a batch", path), suppress(*MISSING):
            self._storage.remove(path)
        self.note_removed(path)

    def note_removed(self, path: Path) -> None:
        """Note that a batch file has gone, though not durably so before :meth:`sync`."""
        self._has_removed = True
        self.leftovers.discard(path)

    def sync(self) -> bool:
        """Make durable what was removed and remembered; False as long as something could not be removed."""
        self.outcome_log.sync()
        with self._sync_lock:
            if self._has_removed:
                self._has_removed = False  # before the sync: what is removed meanwhile needs the next one
                try:
                    with storage_errors("syncing", self._directory.prepared):
                        self._storage.sync_directory(self._directory.prepared)
                except BaseException as error:
                    self.removals.set(error)
                    raise
        return self.log.sync_ends() and not self.leftovers and self.removals.cause is None
