"""The batches of one queue that wait outside of its log, in ``prepared/``: being written, or prepared and undecided.

Committing copies a small batch into the log. It adopts a large batch, or any batch if there is no space for a copy: the
file becomes the next data file as it is. docs/format.md, "Batch files".
"""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from holdfast.errors import CorruptionError, DiskFullError, TransactionStateError
from holdfast.persistence.filesystem.layout import QueueDirectory, list_batch_files
from holdfast.persistence.filesystem.poison import commit_unknown
from holdfast.persistence.filesystem.storage import MISSING, Storage, storage_errors
from holdfast.persistence.format.commit_record import CommitRecord
from holdfast.persistence.format.report import Damage
from holdfast.persistence.outcomes.joint_file import JointFile
from holdfast.persistence.outcomes.outcome_log import ABORTED
from holdfast.persistence.outcomes.prepared_files import PreparedFiles
from holdfast.persistence.segment.batch_file import BatchFileWriter
from holdfast.persistence.segment.batch_file_reader import BatchSummary, messages, read_summary, verify_batch
from holdfast.queue.producer.write_side import WriteSide

logger = logging.getLogger("holdfast")

COPY_BYTES_MAX = 16 * 2**20
"""A larger batch is never copied, whatever the size of a data file: a copy passes through memory."""

_STAGING = ".staging"


class WaitingBatches:
    """Makes, lists, commits and removes batch files; the process owns the write side.

    Parameters
    ----------
    storage, directory, queue_id
        The queue.
    write_side : WriteSide
        Where batches are committed.
    prepared : PreparedFiles
        Where they are removed.
    file_bytes : int
        Size of a data file: a batch of more than a quarter of it is adopted.

    Attributes
    ----------
    prepared : PreparedFiles
        As above.
    joint : JointFile
        The document of joint commits.
    copy_bytes_max : int
        A batch whose frames take more is adopted.
    """

    def __init__(
        self,
        storage: Storage,
        directory: QueueDirectory,
        queue_id: bytes,
        write_side: WriteSide,
        prepared: PreparedFiles,
        file_bytes: int,
    ) -> None:
        self._storage = storage
        self._directory = directory
        self._queue_id = queue_id
        self._write_side = write_side
        self.prepared = prepared
        self.copy_bytes_max = min(file_bytes // 4, COPY_BYTES_MAX)
        self._lock = threading.Lock()
        self._sound: set[bytes] = set()
        self._is_made = False
        self.joint = JointFile(storage, directory.joint, is_owner=True)
        self._remove_staging()

    def _remove_staging(self) -> None:
        """Remove files that transactions were writing when their process died: these were not prepared."""
        with storage_errors("clearing", self._directory.prepared):
            if "prepared" in self._storage.list(self._directory.root):
                for name in self._storage.list(self._directory.prepared):
                    if name.endswith(_STAGING):
                        self._storage.remove(self._directory.prepared / name)

    # -- Making ------------------------------------------------------------------------------------------------------

    def stage(self, nonce: bytes) -> BatchFileWriter:
        """Begin a batch file that no other process sees; it is removed after this process ends."""
        self.make_directory()
        return BatchFileWriter(self._storage, self._directory.prepared / (nonce.hex() + _STAGING), self._queue_id)

    def make_directory(self) -> None:
        """Make ``prepared/``, durably, if it is not there yet. Raises DiskFullError or StorageError."""
        with self._lock, storage_errors("making", self._directory.prepared):
            if self._is_made:
                return
            self._storage.make_directory(self._directory.prepared)
            try:
                self._storage.sync_directory(self._directory.root)
            except OSError:  # a second sync could succeed over a lost name: the next attempt makes a new one
                with suppress(OSError):
                    self._storage.remove_directory(self._directory.prepared)
                raise
            self._is_made = True

    def prepared_name(self, transaction_id: str) -> str:
        """Return the path below the queue's directory at which :meth:`prepare` puts a batch."""
        return f"{self._directory.prepared.name}/{self._directory.batch_file(transaction_id).name}"

    def prepare(self, writer: BatchFileWriter, commit_record: CommitRecord) -> BatchSummary:
        """Make a batch durable under its id, and return its summary; it waits for its outcome over every restart.

        Raises
        ------
        TransactionStateError
            The id is in doubt already.
        DiskFullError, StorageError
            It is not prepared; the caller discards the batch.
        """
        summary = writer.finish(commit_record)
        writer.sync()
        path = self._enter(writer.path, commit_record)
        self._sound.add(commit_record.nonce)
        writer.close()
        return replace(summary, path=path)

    def take_over(self, source: Path) -> None:
        """Prepare a batch that another process has written and synced. Raises as :meth:`prepare`, and ``OSError``."""
        commit_record = read_summary(self._storage, source, self._queue_id).commit_record
        if (
            commit_record.waiting_file != self.prepared_name(commit_record.id)
            or commit_record.participants
            or commit_record.acknowledged
        ):
            raise CorruptionError(f"{source} holds no puts to prepare", path=str(source))
        self.make_directory()
        self._enter(source, commit_record)

    def _enter(self, source: Path, commit_record: CommitRecord) -> Path:
        """Give a batch that is on the disk the name that makes it prepared; return its path."""
        if commit_record.coordinator is not None:  # another log decides: earlier puts here are not lost without it
            self._write_side.flush()
        path = self._directory.batch_file(commit_record.id)
        with self._lock, storage_errors("preparing", path):
            if commit_record.id in list_batch_files(self._storage, self._directory):
                raise TransactionStateError(
                    f"transaction {commit_record.id} is prepared: decide it before its id is used again",
                    transaction=commit_record.id,
                    state="prepared",
                )
            self._storage.rename(source, path)
            try:
                self._storage.sync_directory(self._directory.prepared)
            except OSError as error:
                self.prepared.removals.set(error)
                with suppress(OSError):
                    self._storage.remove(path)
                raise commit_unknown("preparing a transaction", path, error) from error
        return path

    # -- Looking -----------------------------------------------------------------------------------------------------

    def damage(self, summary: BatchSummary) -> list[Damage]:
        """Return the damage of a prepared batch. Read once: a batch that was prepared here was good."""
        if summary.commit_record.nonce in self._sound:
            return []
        with storage_errors("verifying", summary.path):
            try:
                found = [each for each in verify_batch(self._storage, summary.path, self._queue_id) if each.offsets]
            except MISSING:  # decided just now
                return []
        if not found:
            self._sound.add(summary.commit_record.nonce)
        return found

    # -- Deciding ----------------------------------------------------------------------------------------------------

    def commit(self, summary: BatchSummary, *, is_new: bool = False) -> range:
        """Put a batch into the log, with the commit record in its file, durably; return its offsets.

        Its file is gone from here on, though not durably so: see :meth:`PreparedFiles.sync`. ``is_new``: this process
        has just written it, so it is not read before.

        Raises
        ------
        CorruptionError
            Some of it is damaged; nothing was done.
        DiskFullError, StorageError
            Nothing was done.
        CommitUnknownError, PoisonedError
            The outcome is unknown, or an earlier failure has poisoned the side: reopen the queue and check.
        """
        damage = [] if is_new else self.damage(summary)
        if damage:
            raise CorruptionError(
                f"{summary.path} is damaged ({damage[0].reason}): it cannot be committed; abort it, and put again "
                "what it held",
                path=str(summary.path),
                position=damage[0].position,
            )
        if summary.frames_bytes > self.copy_bytes_max:
            return self._adopt(summary)
        with storage_errors("reading a prepared batch", summary.path):
            content = list(messages(self._storage, summary.path, self._queue_id))
        payloads = [payload for payload, _ in content]
        headers = {number: stored for number, (_, stored) in enumerate(content) if stored}
        try:
            offsets = self._write_side.decide(payloads, headers, summary.commit_record)
        except DiskFullError:
            return self._adopt(summary)
        self._sound.discard(summary.commit_record.nonce)
        self.prepared.note_removed()
        try:
            self._storage.remove(summary.path)
        except OSError as error:  # it is committed: its record stays pending, and the next opening removes this
            if not isinstance(error, MISSING):
                self.prepared.note_leftover()
                logger.warning("%s is committed and could not be removed: %s", summary.path, error)
        return offsets

    def _adopt(self, summary: BatchSummary) -> range:
        with storage_errors("opening a prepared batch", summary.path):
            file = self._storage.open(summary.path)
        with file:
            offsets = self._write_side.adopt(file, summary)
        self._sound.discard(summary.commit_record.nonce)
        self.prepared.note_removed()
        return offsets

    def abort(self, transaction_id: str, nonce: bytes, timestamp_ns: int) -> None:
        """Remove a prepared batch, durably, and remember it as aborted."""
        outcome_log = self.prepared.outcome_log
        outcome_log.note(transaction_id, nonce, ABORTED, range(0), timestamp_ns)
        outcome_log.sync()
        self.prepared.drop(self._directory.batch_file(transaction_id))
        self._sound.discard(nonce)
        self.prepared.sync()

    def close(self) -> None:
        """Close the outcome log."""
        self.prepared.outcome_log.close()
