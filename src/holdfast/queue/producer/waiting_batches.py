"""The batches of one queue that wait outside of its log, in ``prepared/``: being written, or prepared and undecided.

Committing copies a small batch into the log. It adopts a large batch, or any batch if there is no space for a copy: the
file becomes the next data file as it is. docs/format.md, "Batch files".
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from holdfast.errors import CorruptionError, DiskFullError, Full, HoldfastError, StorageError, TransactionStateError
from holdfast.persistence.filesystem.layout import QueueDirectory
from holdfast.persistence.filesystem.poison import commit_unknown
from holdfast.persistence.filesystem.storage import MISSING, Storage, storage_errors
from holdfast.persistence.format.commit_record import CommitRecord, Participant
from holdfast.persistence.format.constants import (
    FRAME_HEADER_BYTES,
    OUTCOME_ABORTED,
    OUTCOME_COMMITTED,
    OUTCOME_MOVED,
)
from holdfast.persistence.format.message_options import dedup_id_of
from holdfast.persistence.format.report import Damage
from holdfast.persistence.outcomes.joint_file import JointFile
from holdfast.persistence.outcomes.prepared_files import PreparedFiles, Waiting
from holdfast.persistence.outcomes.waiting_puts import has_batch_file
from holdfast.persistence.prepared_log.emptying import move_entry
from holdfast.persistence.prepared_log.entry import Entry
from holdfast.persistence.segment.batch_file import BatchFileWriter
from holdfast.persistence.segment.batch_file_reader import BatchSummary, messages, read_summary, verify_batch
from holdfast.persistence.segment.staged_file import make_prepared, stage, staged_path
from holdfast.queue.producer.write_side import WriteSide
from holdfast.queue.threads.group_commit import GroupCommit
from holdfast.threads import log_later

COPY_BYTES_MAX = 16 * 2**20
"""A larger batch is never copied, whatever the size of a data file: a copy passes through memory."""


def copy_bytes_max(file_bytes: int) -> int:
    """Return the largest size of the frames of a batch that is copied, by the size of a data file."""
    return min(file_bytes // 4, COPY_BYTES_MAX)


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
        self.copy_bytes_max = copy_bytes_max(file_bytes)
        self._lock = threading.Lock()
        self._log_commits = GroupCommit(prepared.log.sync)
        self._sound: set[bytes] = set()
        self._is_made = False
        self.joint = JointFile(storage, directory.joint, is_owner=True)

    # -- Making ------------------------------------------------------------------------------------------------------

    def stage(self, nonce: bytes) -> BatchFileWriter:
        """Begin a batch file that no other process touches; it is removed after this process ends."""
        self.make_directory()
        return stage(self._storage, self._directory, nonce, self._queue_id)

    def make_directory(self) -> None:
        """Make ``prepared/``, durably, if it is not there yet. Raises DiskFullError or StorageError."""
        with self._lock, storage_errors("making", self._directory.prepared):
            if self._is_made:
                return
            make_prepared(self._storage, self._directory)
            self._is_made = True

    def prepare(self, writer: BatchFileWriter, commit_record: CommitRecord) -> BatchSummary:
        """Make a batch durable under its id, and return its summary; it waits for its outcome over every restart.

        Raises
        ------
        TransactionStateError
            The id is in doubt already.
        DiskFullError, StorageError
            It is not prepared; the caller discards the batch.
        """
        commit_record = commit_record.waiting_in(self._directory.batch_file(commit_record.id))
        summary = writer.finish(commit_record)
        writer.sync()
        path = self._enter(writer.path, commit_record)
        self._sound.add(commit_record.nonce)
        writer.close()
        return replace(summary, path=path)

    def prepare_in_log(
        self, payloads: Sequence[bytes], headers: Mapping[int, bytes], commit_record: CommitRecord
    ) -> Entry:
        """Make puts durable in the prepared log, which :meth:`fits_log` has said; threads share the sync.

        Raises
        ------
        TransactionStateError
            The id is in doubt already.
        DiskFullError, StorageError
            It is not prepared.
        CommitUnknownError, PoisonedError
            It may be prepared or not, or an earlier failure has poisoned the log: reopen the queue and check.
        """
        self.make_directory()
        with self._lock, storage_errors("preparing", self._directory.prepared):
            self.prepared.removals.check()
            self._check_new(commit_record.id)
            entry, ticket = self.prepared.log.append(payloads, headers, commit_record)
        self._log_commits.wait(ticket)
        return entry

    def fits_log(self, payloads: Sequence[bytes], headers: Mapping[int, bytes], commit_record: CommitRecord) -> bool:
        """Whether puts are prepared in the log: a caller decides them by id, and they are small enough to be copied."""
        if commit_record.coordinator is not None or commit_record.part_of is not None:
            return False
        size = sum(map(len, payloads)) + sum(map(len, headers.values())) + FRAME_HEADER_BYTES * len(payloads)
        return size <= self.copy_bytes_max

    def _check_new(self, transaction_id: str) -> None:
        """Raise TransactionStateError if an id is in doubt."""
        if self.prepared.log.find(transaction_id) is not None or has_batch_file(
            self._storage, self._directory, transaction_id
        ):
            raise TransactionStateError(
                f"transaction {transaction_id} is prepared: decide it before its id is used again",
                transaction=transaction_id,
                state="prepared",
            )

    def _check_preparable(self, summary: BatchSummary, voters: tuple[Participant, ...] = ()) -> None:
        """Raise CorruptionError unless a batch waits for an outcome together with the votes of ``voters`` only."""
        commit_record = summary.commit_record
        path = self._directory.batch_file(commit_record.id)
        if (
            commit_record.waiting_file != f"{path.parent.name}/{path.name}"
            or commit_record.participants != voters
            or commit_record.acknowledged
            or commit_record.session
        ):
            raise CorruptionError(f"{summary.path} holds no puts to prepare", path=str(summary.path))

    def staged_summary(
        self,
        transaction_id: str,
        nonce: bytes,
        voters: tuple[Participant, ...],
        coordinator: Participant | None = None,
    ) -> BatchSummary:
        """Return the summary of the batch that a session has staged and synced under a nonce, to be prepared.

        Raises
        ------
        CorruptionError
            It is another one than the caller says: of other votes, of another id, decided by another queue.
        StorageError
            It cannot be read.
        """
        path = staged_path(self._directory, nonce)
        with storage_errors("reading a staged batch", path):
            summary = read_summary(self._storage, path, self._queue_id)
        self._check_preparable(summary, voters)
        record = summary.commit_record
        if (record.id, record.nonce, record.coordinator) != (transaction_id, nonce, coordinator):
            raise CorruptionError(f"{path} holds another transaction than its name says", path=str(path))
        return summary

    def prepare_staged(self, summary: BatchSummary) -> BatchSummary:
        """Prepare a batch of :meth:`staged_summary`; return its summary, of its new place. Raises as :meth:`prepare`.

        Its file has one name at a time: a batch that was prepared or withdrawn is not prepared again.
        """
        return replace(summary, path=self._enter(summary.path, summary.commit_record))

    def _enter(self, source: Path, commit_record: CommitRecord) -> Path:
        """Give a batch that is on the disk the name that makes it prepared; return its path."""
        if commit_record.coordinator is not None:  # another log decides: earlier puts here are not lost without it
            self._write_side.flush()
        path = self._directory.batch_file(commit_record.id)
        with self._lock, storage_errors("preparing", path):
            self.prepared.removals.check()
            self._check_new(commit_record.id)
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

    def damage(self, summary: Waiting) -> list[Damage]:
        """Return the damage of a prepared batch. Read once: a batch that was prepared here was good."""
        if isinstance(summary, Entry) or summary.commit_record.nonce in self._sound:
            return []  # all of the prepared log was read at opening
        with storage_errors("verifying", summary.path):
            try:
                found = [each for each in verify_batch(self._storage, summary.path, self._queue_id) if each.offsets]
            except MISSING:  # decided just now
                return []
        if not found:
            self._sound.add(summary.commit_record.nonce)
        return found

    # -- Deciding ----------------------------------------------------------------------------------------------------

    def commit(self, summary: Waiting, *, is_new: bool = False) -> range:
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
        if isinstance(summary, Entry):
            return self._commit_entry(summary)
        if not is_new:
            self._refuse_damaged(summary)
        if summary.frames_bytes > self.copy_bytes_max:
            return self._adopt(summary)
        with storage_errors("reading a prepared batch", summary.path):
            content = list(messages(self._storage, summary.path, self._queue_id))
        reserve = None if is_new else self.prepared.log.reserve_of(None)
        try:
            offsets = self._write_side.decide(*_divided(content), summary.commit_record, reserve)
        except DiskFullError:
            return self._adopt(summary)
        self._sound.discard(summary.commit_record.nonce)
        try:
            self.prepared.drop_file(summary.path)
        except StorageError as error:  # it is committed: its record stays pending until this has gone
            self.prepared.leftovers.add(summary.path)
            log_later(logging.WARNING, "%s is committed and could not be removed: %s", summary.path, error)
        return offsets

    def _commit_entry(self, entry: Entry) -> range:
        log = self.prepared.log
        with storage_errors("reading the prepared log", entry.path):
            content = list(log.messages(entry))
        offsets = self._write_side.decide(*_divided(content), entry.commit_record, log.reserve_of(entry))
        try:
            self.prepared.drop(entry, OUTCOME_COMMITTED)
        except HoldfastError as error:  # it is committed: its record stays pending until what a move left has gone
            log_later(logging.WARNING, "%s is committed, and a copy could not be removed: %s", entry.id, error)
        return offsets

    def move(self, entry: Entry) -> BatchSummary:
        """Move an entry of the prepared log to a batch file, durably; no other thread decides it meanwhile.

        Raises
        ------
        CorruptionError
            The entry is damaged.
        DiskFullError, StorageError
            The entry stays where it is.
        CommitUnknownError
            The sync of the name failed.
        """
        log, leftovers, path = self.prepared.log, self.prepared.leftovers, self._directory.batch_file(entry.id)
        leftovers.add(path)  # first: an interruption leaves the entry, and perhaps the file
        try:
            with storage_errors("moving a prepared transaction", entry.path):
                summary = move_entry(self._storage, self._directory, self._queue_id, entry, log.messages(entry))
        except HoldfastError:
            leftovers.discard(path)
            raise
        try:
            self._storage.sync_directory(self._directory.prepared)
        except BaseException as error:
            self.prepared.removals.set(error)  # the file may be there again, so what is committed stays pending
            with suppress(OSError):
                self._storage.remove(summary.path)
            if not isinstance(error, OSError):
                raise
            raise commit_unknown("moving a prepared transaction", summary.path, error) from error
        self._sound.add(entry.nonce)
        log.end(entry.id, entry.nonce, OUTCOME_MOVED, entry.timestamp_ns)
        leftovers.discard(path)
        return summary

    def commit_staged(self, nonce: bytes, session: int, *, has_id: bool = True) -> tuple[range, bool] | None:
        """Put the batch that a session has staged into the log; result and durability as ``append_requested``.

        Its file is gone from here on. A batch that is too large to be copied is on the disk at once. ``has_id``: false
        for a message that has no deduplication id; it is not read before there is space.

        Raises
        ------
        CorruptionError
            The file is damaged, or is another request than the caller says; nothing was done.
        UsageError
            It is an old copy of a request that was answered.
        DiskFullError, StorageError, CommitUnknownError, PoisonedError
            As :meth:`commit`.
        """
        path = staged_path(self._directory, nonce)
        offsets = self._write_side.answer_to(nonce)
        if offsets is not None:
            self._drop_staged(path)
            return offsets, False
        with storage_errors("reading a staged batch", path):
            summary = read_summary(self._storage, path, self._queue_id)
            commit_record = summary.commit_record
            if (commit_record.nonce, commit_record.session) != (nonce, session) or commit_record.has_consequences:
                raise CorruptionError(f"{path} holds another request than its name says", path=str(path))
            is_one = summary.message_count == 1 and has_id  # it may have an id that was put before
            has_space = self._has_space(summary)
            if not has_space and not is_one:
                return None
            is_large, content = summary.frames_bytes > self.copy_bytes_max, []
            if not is_large or is_one:
                content = list(messages(self._storage, path, self._queue_id))
        dedup_id = dedup_id_of(content[0][1]) if len(content) == 1 else ""
        if is_large and not dedup_id:
            return self._adopt_staged(summary) if has_space else None
        done = self._write_side.append_requested(*_divided(content), commit_record, dedup_id)
        if done is not None:
            self._drop_staged(path)
        return done

    def wait_for_staged(self, nonce: bytes, ended: int, timeout: float | None) -> None:
        """Return once there is space for a batch that is staged, and ``ended`` messages are finished with it.

        Raises
        ------
        queue.Full
            There is none within ``timeout`` seconds; None: it waits for ever.
        CorruptionError, StorageError
            The file cannot be read.
        """
        path = staged_path(self._directory, nonce)
        with storage_errors("reading a staged batch", path):
            summary = read_summary(self._storage, path, self._queue_id)
        count = max(0, summary.message_count - ended)
        self._write_side.wait_for_space(count, summary.frames_bytes, timeout)

    def staged(self, nonce: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield payload and encoded headers of each message that is staged; raises as :meth:`commit_staged`."""
        path = staged_path(self._directory, nonce)
        with storage_errors("reading a staged batch", path):
            yield from messages(self._storage, path, self._queue_id)

    def _has_space(self, summary: BatchSummary) -> bool:
        try:
            self._write_side.wait_for_space(summary.message_count, summary.frames_bytes, 0)
        except Full:
            return False
        return True

    def _adopt_staged(self, summary: BatchSummary) -> tuple[range, bool]:
        self._refuse_damaged(summary)
        return self._adopt(summary), True

    def _drop_staged(self, path: Path) -> None:
        """Remove a file whose batch is in the log. If that fails, its maker or the next opening does."""
        with suppress(OSError):
            self._storage.remove(path)

    def _refuse_damaged(self, summary: BatchSummary) -> None:
        damage = self.damage(summary)
        if damage:
            raise CorruptionError(
                f"{summary.path} is damaged ({damage[0].reason}): it cannot be committed; abort it, and put again "
                "what it held",
                path=str(summary.path),
                position=damage[0].position,
            )

    def _adopt(self, summary: BatchSummary) -> range:
        with storage_errors("opening a prepared batch", summary.path):
            file = self._storage.open(summary.path)
        with file:
            offsets = self._write_side.adopt(file, summary)
        self._sound.discard(summary.commit_record.nonce)
        self.prepared.note_removed(summary.path)
        return offsets

    def abort(self, transaction_id: str, nonce: bytes, timestamp_ns: int) -> None:
        """Remember a prepared batch as aborted, durably, and remove it."""
        outcome_log = self.prepared.outcome_log
        outcome_log.note(transaction_id, nonce, OUTCOME_ABORTED, range(0), timestamp_ns)
        outcome_log.sync()
        self._sound.discard(nonce)
        self.prepared.drop_named(transaction_id, nonce, OUTCOME_ABORTED, timestamp_ns)
        try:
            self.prepared.sync()
        except HoldfastError as error:  # it is remembered as aborted, and what is left of it goes when it is met
            log_later(logging.WARNING, "%s is aborted, and may be there again: %s", transaction_id, error)

    def close(self) -> None:
        """Close the outcome log and the prepared log."""
        try:
            self.prepared.log.close()
        finally:
            self.prepared.outcome_log.close()


def _divided(content: Sequence[tuple[bytes, bytes]]) -> tuple[list[bytes], dict[int, bytes]]:
    """Return the payloads of messages, and the encoded headers of some by number."""
    headers = {number: stored for number, (_, stored) in enumerate(content) if stored}
    return [payload for payload, _ in content], headers
