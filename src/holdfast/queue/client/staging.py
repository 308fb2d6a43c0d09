"""Requests that are too large for a frame, and parts that others decide: their puts are in a file of the client.

The request names that batch file by its nonce. The client has it locked until it has the answer, so no owner takes it
for a leftover. Once the owner has read it, or has made it part of the log, it has another name or none.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from holdfast.errors import NO_ROOM, CorruptionError, Full, HoldfastError, RetryableError
from holdfast.persistence.filesystem.storage import storage_errors
from holdfast.persistence.format.commit_record import CommitRecord
from holdfast.persistence.segment.batch_file import BatchFileWriter
from holdfast.persistence.segment.batch_file_reader import BatchSummary
from holdfast.persistence.segment.staged_file import make_prepared, stage, staged_path
from holdfast.queue.client.link import Answer
from holdfast.queue.client.membership import Membership, ask_verb
from holdfast.queue.engine.queue_handle import QueueHandle
from holdfast.queue.protocol.frames import LENGTH_BYTES
from holdfast.queue.protocol.messages import Commit, Prepare, Put, Receipt
from holdfast.queue.protocol.prepared_verbs import AnyPreparedVerb, Begin, End, Follow, HasSpace, as_request

STAGED_BYTES = 2**20
"""Payloads and headers of more than that are staged. A frame could hold four times as much; the owner's thread would
only read the socket meanwhile."""

_BYTES_PER_SECOND = 10 * 2**20
"""What an owner reads, checks and syncs on a slow disk."""

_PAUSE_SECONDS_MAX = 0.05
"""Between two questions whether there is space."""


class Staging:
    """Stages the large requests of one handle, and has transactions prepared. Threads may share it.

    Parameters
    ----------
    handle : QueueHandle
        The queue.
    membership : Membership
        The way to the owner.
    """

    def __init__(self, handle: QueueHandle, membership: Membership) -> None:
        self._handle = handle
        self._membership = membership
        self._is_made = False

    def is_wanted(self, payloads: Sequence[bytes], headers: Mapping[int, bytes]) -> bool:
        """Whether these do not go into one frame; an owner in this process needs none."""
        return not self._membership.is_owner and not self.fits_frame(payloads, headers)

    def fits_frame(self, payloads: Sequence[bytes], headers: Mapping[int, bytes]) -> bool:
        """Whether these go into one frame."""
        size = sum(map(len, payloads)) + sum(map(len, headers.values())) + LENGTH_BYTES * len(payloads)
        return size <= STAGED_BYTES

    def stage(self, nonce: bytes) -> BatchFileWriter:
        """Begin a batch file, locked until it is closed. Raises DiskFullError or StorageError."""
        handle = self._handle
        with storage_errors("making", handle.directory.prepared):
            if self._is_made:
                handle.storage.make_directory(handle.directory.prepared)
            else:  # by whichever process: what is prepared in it must outlive a loss of power
                make_prepared(handle.storage, handle.directory)
                self._is_made = True
        return stage(handle.storage, handle.directory, nonce, handle.queue_id)

    def staged(self, nonce: bytes, payloads: Sequence[bytes], headers: Mapping[int, bytes]) -> BatchFileWriter:
        """Return a batch file with these messages. Raises as :meth:`stage`, and RecordTooLargeError."""
        self._handle.priorities.note_for(headers.values())  # the file may become part of the log as it is
        writer = self.stage(nonce)
        try:
            writer.add_many(payloads, headers, self._handle.clock.time_ns())
        except BaseException:
            discard(writer)
            raise
        return writer

    def ask(self, writer: BatchFileWriter, request: Put | Commit, transaction_id: str, timeout: float | None) -> Answer:
        """Have a staged request done. Its file is gone once this returns.

        The file gets the name that goes with the request. If this raises, its caller discards it if nothing was done,
        and only closes it if an owner may be about to make it part of the log.

        Raises
        ------
        queue.Full, RetryableError
            Nothing was done; the file takes more, and may be asked for again.
        HoldfastError
            As ``Membership.ask``.
        """
        seconds = None if timeout is None else timeout + writer.end / _BYTES_PER_SECOND
        writer.move(staged_path(self._handle.directory, request.nonce))
        while True:
            session, now = self._membership.session, self._handle.clock.time_ns()
            writer.finish(CommitRecord(transaction_id, request.nonce, writer.message_count, now, session=session))
            try:
                answer = self._membership.ask(request, (), seconds)
            except (Full, RetryableError):
                writer.resume()
                raise
            except CorruptionError:
                if session == self._membership.session:
                    raise
                writer.resume()  # another session has begun since it was written, and nothing was done
                continue
            discard(writer)
            return answer

    # -- Preparing ---------------------------------------------------------------------------------------------------

    def wait_for_space(self, count: int, size: int, timeout: float | None) -> None:
        """Return once a bounded queue has space for a batch; raises queue.Full after ``timeout`` seconds.

        Space is free for all: another put may take it. A prepared transaction needs none to commit.
        """
        deadline, pause = None if timeout is None else time.monotonic() + timeout, 0.001
        while True:
            if ask(self._membership, HasSpace(count, size))["has_space"]:
                return
            left = pause if deadline is None else deadline - time.monotonic()
            if left <= 0:
                raise Full(NO_ROOM)
            time.sleep(min(pause, left))
            pause = min(2 * pause, _PAUSE_SECONDS_MAX)

    def prepare(
        self,
        commit_record: CommitRecord,
        payloads: Sequence[bytes],
        headers: Mapping[int, bytes],
        group: str,
        receipts: Sequence[Receipt],
        *,
        is_staged: bool = False,
    ) -> None:
        """Have a transaction prepared whose puts go into one frame, or that has none.

        Raises
        ------
        TransactionStateError
            The id is in doubt already; nothing was done.
        DiskFullError, StorageError, StaleReceiptError, RetryableError
            It is not prepared.
        CommitUnknownError
            It may be prepared, and no owner tells.
        """
        nonce, decider = commit_record.nonce, commit_record.coordinator
        coordinator = None if decider is None else (decider.path, decider.queue_id, decider.group)
        prepare = Prepare(nonce, commit_record.id, dict(headers), group, list(receipts), is_staged, coordinator)
        self._membership.ask(prepare, payloads, None)

    def prepare_staged(
        self, writer: BatchFileWriter, commit_record: CommitRecord, group: str, receipts: Sequence[Receipt]
    ) -> BatchSummary:
        """Have a transaction prepared; return the summary of its puts, which are in ``prepared/`` from here on.

        Its file is closed once this returns. If this raises, it takes more.

        Raises as :meth:`prepare`, and TransactionStateError if its joint commit was decided.
        """
        path = self._handle.directory.batch_file(commit_record.id)
        try:
            writer.move(staged_path(self._handle.directory, commit_record.nonce))
            summary = writer.finish(commit_record.waiting_in(path))
            writer.sync()
            self.prepare(commit_record, (), {}, group, receipts, is_staged=True)
        except BaseException:
            writer.resume()
            raise
        writer.close()
        return replace(summary, path=path)

    # -- Over several queues -----------------------------------------------------------------------------------------

    def begin(self, nonce: bytes) -> None:
        """Begin a commit over several queues that this queue's log decides. Raises as ``Membership.ask``."""
        ask(self._membership, Begin(nonce))

    def end(self, nonce: bytes, *, is_followed: bool) -> None:
        """End it. An owner that does not hear of it ends it with the session, and a successor knows nothing begun."""
        with suppress(HoldfastError):
            ask(self._membership, End(nonce, is_followed), seconds=0.0)

    def follow(self, transaction_id: str, nonce: bytes, *, is_committed: bool) -> range:
        """Have a prepared part follow the log of another queue. Raises as ``Membership.ask``."""
        done = ask(self._membership, Follow(transaction_id, nonce, is_committed))
        return range(done["first"], done["first"] + done["count"])


def discard(writer: BatchFileWriter) -> None:
    """Close a staged file and remove it; if that fails, the next opening of the queue removes it."""
    with suppress(HoldfastError):
        writer.discard()


def ask(membership: Membership, verb: AnyPreparedVerb, seconds: float | None = None) -> dict[str, Any]:
    """Have a verb done; return its result. Raises as ``Membership.ask``."""
    return ask_verb(membership, as_request(verb), seconds)
