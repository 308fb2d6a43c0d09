"""Puts into a queue whose write side another process owns: asks it to commit, and waits for its answer.

A put that gives up has either taken its request back, and nothing was put, or the owner has taken it, and answers
(``requester.py``). docs/format.md, "Requests".
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from holdfast.clock import Clock
from holdfast.errors import CommitUnknownError, Full, RetryableError, ShutDown
from holdfast.persistence.exchange.mailbox import remove_quietly
from holdfast.persistence.exchange.requests import BATCH, PREPARE, STAGING, VERB
from holdfast.persistence.filesystem.layout import QueueDirectory
from holdfast.persistence.filesystem.storage import Storage, storage_errors
from holdfast.persistence.format.commit_record import CommitRecord
from holdfast.persistence.index.priorities import Priorities
from holdfast.persistence.segment.batch_file import BatchFileWriter
from holdfast.persistence.segment.batch_file_reader import BatchSummary, read_summary
from holdfast.queue.remote.requester import Helper, Requester

PREPARE_SECONDS = 60.0


class SubmitSide:
    """The write side for a handle that does not own it. Threads may share it.

    Parameters
    ----------
    storage, clock, directory, queue_id
        The queue.
    helper : Helper
        Serves while the write side has no owner.
    priorities : Priorities
        Whether messages may have some.
    """

    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        directory: QueueDirectory,
        queue_id: bytes,
        helper: Helper,
        priorities: Priorities,
    ) -> None:
        self._storage = storage
        self._clock = clock
        self._directory = directory
        self._queue_id = queue_id
        self._priorities = priorities
        self._requester = Requester(storage, clock, directory, directory.write_lock, helper)

    # -- Putting -----------------------------------------------------------------------------------------------------

    def put(self, payload: bytes, headers: bytes, timeout: float | None) -> int:
        """Have one message committed; return its offset."""
        return self.put_many((payload,), timeout, {0: headers} if headers else None).start

    def put_once(self, payload: bytes, headers: bytes, dedup_id: str, timeout: float | None) -> int:
        """As :meth:`put`: the owner finds the id in the headers, and answers with the remembered offset."""
        return self.put(payload, headers, timeout)

    def put_many(
        self, payloads: Sequence[bytes], timeout: float | None, headers: Mapping[int, bytes] | None = None
    ) -> range:
        """Have a batch committed; return its offsets."""
        self._requester.check()
        if headers:
            self._priorities.note_for(headers.values())  # a large batch becomes part of the log as it is
        writer = self.stage(secrets.token_bytes(16))
        try:
            writer.add_many(payloads, headers or {}, self._clock.time_ns())
            return self.submit(writer, timeout)
        except BaseException:
            self._discard(writer)
            raise

    def stage(self, nonce: bytes) -> BatchFileWriter:
        """Begin a batch file that no owner reads."""
        path = self._directory.requests / f"{self._requester.mailbox_name}-{nonce.hex()}.{STAGING}"
        return BatchFileWriter(self._storage, path, self._queue_id)

    def submit(self, writer: BatchFileWriter, timeout: float | None) -> range:
        """Have a staged batch committed; return its offsets.

        Raises
        ------
        queue.Full, RetryableError
            There was no space, or no answer, within ``timeout``: the request was taken back, nothing was put.
        CommitUnknownError
            The owner has taken the request, and does not report its outcome.
        HoldfastError
            The owner refused: as its own ``put``.
        """
        with self._requester.request(BATCH, timeout) as name:
            nonce, now = secrets.token_bytes(16), self._clock.time_ns()
            commit_record = CommitRecord(str(name), nonce, writer.message_count, now, waiting_file=name.waiting_file)
            writer.finish(commit_record)
            try:
                offsets = self._requester.ask(writer.path, name, timeout).offsets
            except (Full, RetryableError):  # its file is back: a transaction may try again
                writer.resume()
                raise
            writer.close()
            return offsets

    def _discard(self, writer: BatchFileWriter) -> None:
        writer.close()
        remove_quietly(self._storage, writer.path)

    # -- Transactions ------------------------------------------------------------------------------------------------

    def prepare(self, writer: BatchFileWriter, commit_record: CommitRecord) -> BatchSummary:
        """Make a batch durable, and have it prepared under its id. Raises as ``WaitingBatches.prepare``."""
        summary = writer.finish(commit_record)
        writer.sync()
        writer.close()
        path = self._directory.batch_file(commit_record.id)
        with self._requester.request(PREPARE, PREPARE_SECONDS) as name:
            try:
                self._requester.ask(writer.path, name, PREPARE_SECONDS)
            except CommitUnknownError:
                if not self._is_prepared(path, commit_record.nonce):
                    raise
        return replace(summary, path=path)

    def _is_prepared(self, path: Path, nonce: bytes) -> bool:
        """Whether a batch has come into ``prepared/`` without an answer: the owner died before it answered."""
        with storage_errors("looking for a prepared transaction", path):
            try:
                if read_summary(self._storage, path, self._queue_id).commit_record.nonce != nonce:
                    return False
            except FileNotFoundError:
                return False
            self._storage.sync_directory(path.parent)
            return True

    def decide(
        self, verb: str, transaction_id: str, *, force: bool, nonce: bytes | None, timeout: float | None = None
    ) -> range:
        """Have a verb on a prepared transaction done; return its offsets. Raises the owner's error."""
        fields: dict[str, object] = {"verb": verb, "id": transaction_id, "force": force}
        if nonce is not None:
            fields["nonce"] = nonce.hex()
        return self.ask(fields, timeout)

    def ask(self, fields: dict[str, object], timeout: float | None = None) -> range:
        """Have a verb done, which may be done twice; return the offsets. Raises the owner's error."""
        return self._requester.ask_verb(VERB, fields, timeout).offsets

    # -- Ending ------------------------------------------------------------------------------------------------------

    def shut_down(self) -> None:
        """Refuse further puts with queue.ShutDown."""
        self._requester.refuse(ShutDown)

    def flush(self) -> None:
        """Do nothing: an answered put is as durable as it will be."""

    def close(self) -> None:
        """Take back requests that no owner has taken, stop serving, and close the mailbox."""
        self._requester.close()

    def forget(self) -> None:
        """In a forked child: close the copies of the handles."""
        self._requester.forget()
