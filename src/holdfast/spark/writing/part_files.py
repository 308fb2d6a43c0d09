"""The parts of a joint commit as files of a queue that tasks write: without its owner, a lock of its own, or a socket.

A part is a prepared transaction as soon as its file has its name in ``prepared/``, and the owner finds it there when it
commits. docs/format.md, "Batch files".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from holdfast.clock import SystemClock
from holdfast.errors import NO_ROOM, Full
from holdfast.persistence.filesystem.storage import MISSING, OsStorage, Storage, storage_errors
from holdfast.persistence.format.commit_record import CommitRecord, PartOf
from holdfast.persistence.groups.group_files import DEFAULT_GROUP
from holdfast.persistence.segment.batch_file import BatchFileWriter
from holdfast.persistence.segment.staged_file import make_prepared, stage
from holdfast.queue.engine.consumer_lag import ConsumerLag
from holdfast.queue.engine.queue_handle import QueueHandle
from holdfast.queue.options.arguments import too_large
from holdfast.queue.options.queue_options import Options
from holdfast.queue.prepared.parts import check_may_prepare
from holdfast.queue.producer.capacity import Capacity


class PartFiles:
    """Writes parts for one queue. For one thread.

    Parameters
    ----------
    path : Path
        The queue, which exists; this only looks at it, but for the parts.
    storage : Storage or None
        Where it is; None: on the disks of this machine.

    Raises
    ------
    HoldfastError
        As ``PersistentQueue`` with mode "read_only".
    """

    def __init__(self, path: Path, storage: Storage | None = None) -> None:
        self._handle = QueueHandle(storage or OsStorage(), SystemClock(), path, Options("read_only", DEFAULT_GROUP))
        self._storage = self._handle.storage
        self._directory = self._handle.directory
        self._lag = ConsumerLag(self._directory, self._handle.files)
        values = self._handle.settings.values
        self._capacity = Capacity(values["maxsize"], values["max_bytes"], self._lag_depth, self._disk_bytes_with)

    def latest(self, application: str) -> int | None:
        """Return the version that an application has committed last. As ``JointCommits.latest``."""
        commit = self._handle.joint_file().find(application)
        return None if commit is None else commit.version

    def begin(self, nonce: bytes) -> BatchFileWriter:
        """Begin a part; until it is prepared, the next owner that opens the queue removes it if its task is dead.

        Raises
        ------
        DiskFullError, StorageError
            The disk refuses; there is no part.
        """
        with storage_errors("making", self._directory.prepared):
            make_prepared(self._storage, self._directory)
        return stage(self._storage, self._directory, nonce, self._handle.queue_id)

    def add(self, writer: BatchFileWriter, payloads: Sequence[bytes], headers: Mapping[int, bytes]) -> int:
        """Add messages, some with encoded headers; return the bytes of the payloads. Raises as ``put_many``."""
        bytes_max = self._handle.settings.values["record_bytes_max"]
        largest = max(payloads, key=len, default=b"")
        if len(largest) > bytes_max:
            raise too_large(largest, bytes_max)
        if headers:
            self._handle.priorities.note_for(headers.values())  # the file may become part of the log as it is
        writer.add_many(payloads, headers, self._handle.clock.time_ns())
        return sum(map(len, payloads))

    def prepare(self, writer: BatchFileWriter, nonce: bytes, transaction_id: str, part_of: PartOf) -> None:
        """Make a part durable, and give it the name that makes it prepared; it is closed then.

        Raises
        ------
        TransactionStateError
            That version was committed before.
        queue.Full
            A bounded queue has no space for it now.
        DiskFullError, StorageError
            The disk refuses. After any error the caller discards it.
        """
        count = writer.message_count
        check_may_prepare(self._handle, transaction_id, part_of)
        self._capacity.check_fits(count)
        if not self._capacity.has_space(count, writer.end):
            raise Full(NO_ROOM)
        path = self._directory.batch_file(transaction_id)
        now = self._handle.clock.time_ns()
        writer.finish(CommitRecord(transaction_id, nonce, count, now, part_of=part_of).waiting_in(path))
        writer.sync()
        writer.move(path)
        with storage_errors("preparing", path):
            self._storage.sync_directory(path.parent)
        writer.close()

    def _lag_depth(self) -> int:
        return self._lag.depth(self._handle.next_offset(), self._handle.files.first_offset, {})

    def _disk_bytes_with(self, size: int) -> int:
        with storage_errors("listing data files", self._handle.files.directory):
            self._handle.files.refresh()
        return self._handle.files.total_bytes + size

    def drop(self, transaction_id: str) -> None:
        """Remove a part that no commit can name: its task tells no one of it. Raises StorageError."""
        path = self._directory.batch_file(transaction_id)
        with storage_errors("removing", path):
            with suppress(*MISSING):
                self._storage.remove(path)
            self._storage.sync_directory(path.parent)

    def close(self) -> None:
        """Close the files that were looked at."""
        self._handle.close()
