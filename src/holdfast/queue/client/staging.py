"""Requests that are too large for a frame: a batch file of the client, which the request names by its nonce.

The client has the file locked until it has the answer, so no owner takes it for a leftover. Once the owner has read it,
or has made it part of the log, it has another name or none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from holdfast.errors import CorruptionError, Full, HoldfastError, RetryableError
from holdfast.persistence.filesystem.storage import storage_errors
from holdfast.persistence.format.commit_record import CommitRecord
from holdfast.persistence.segment.batch_file import BatchFileWriter
from holdfast.persistence.segment.staged_file import stage, staged_path
from holdfast.queue.client.link import Answer
from holdfast.queue.client.membership import Membership
from holdfast.queue.engine.queue_handle import QueueHandle
from holdfast.queue.protocol.messages import Commit, Put

STAGED_BYTES = 2**20
"""Payloads and headers of more than that are staged. A frame could hold four times as much; the owner's thread would
only read the socket meanwhile."""

_BYTES_PER_SECOND = 10 * 2**20
"""What an owner reads, checks and syncs on a slow disk."""


class Staging:
    """Stages the large requests of one handle. Threads may share it.

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

    def is_wanted(self, payloads: Sequence[bytes], headers: Mapping[int, bytes]) -> bool:
        """Whether these do not go into one frame; an owner in this process needs none."""
        if self._membership.is_owner:
            return False
        return sum(map(len, payloads)) + sum(map(len, headers.values())) > STAGED_BYTES

    def stage(self, nonce: bytes) -> BatchFileWriter:
        """Begin a batch file, locked until it is closed. Raises DiskFullError or StorageError."""
        handle = self._handle
        with storage_errors("making", handle.directory.prepared):
            handle.storage.make_directory(handle.directory.prepared)  # not durable: nothing in it is, before the answer
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
        """Have a staged request done. Its file is gone once this returns; if this raises, the caller discards it.

        The file gets the name that goes with the request.

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


def discard(writer: BatchFileWriter) -> None:
    """Close a staged file and remove it; if that fails, the next opening of the queue removes it."""
    with suppress(HoldfastError):
        writer.discard()
