"""The messages of one task, staged as parts of a joint commit: durable, undecided, and bounded in memory.

A task runs this if its machine can write into the queue's directory. A range server runs it for the tasks that cannot.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from holdfast.arrow.reading.task_walk import require_log_here, require_queue_here
from holdfast.clock import Clock, SystemClock
from holdfast.errors import HoldfastError
from holdfast.persistence.filesystem.access import check_root
from holdfast.persistence.filesystem.layout import DataFileName
from holdfast.persistence.filesystem.storage import OsStorage, Storage, storage_errors
from holdfast.persistence.format.commit_record import PartOf
from holdfast.persistence.segment.batch_file import BatchFileWriter
from holdfast.queue.prepared.joint_resolver import check_part_of
from holdfast.queue.producer.nonces import next_nonce
from holdfast.spark.writing.part_files import PartFiles

logger = logging.getLogger("holdfast")

PART_BYTES = 64 * 2**20
"""As a data file: each part becomes one, without being copied."""

ID_PREFIX = "spark-"
"""What the ids of all parts begin with."""

_NAME_CHARACTERS = 40
"""Of the application, in the id of a part: with version and 32 random digits that is at most 100."""


def id_prefix(application: str) -> str:
    """Return what the ids of the parts of an application begin with; those of others may, too."""
    return f"{ID_PREFIX}{application[:_NAME_CHARACTERS]}-"


class Staging:
    """Stages messages in order. An unfinished part is discarded.

    Parameters
    ----------
    files : PartFiles
        Writes the parts.
    application, version
        The joint commit that will decide.
    part_of : PartOf or None
        The same, if it is over several queues.
    part_bytes : int
        Payload bytes at which a part is prepared and the next one begun.
    """

    def __init__(
        self,
        files: PartFiles,
        application: str,
        version: int,
        part_of: PartOf | None = None,
        *,
        part_bytes: int = PART_BYTES,
    ) -> None:
        self._files = files
        self._part_of = part_of or check_part_of(application, version)
        self._part_bytes = part_bytes
        self._writer: BatchFileWriter | None = None
        self._nonce = b""
        self._size_bytes = 0
        self._ids: list[str] = []

    def add(self, payloads: Sequence[bytes], headers: Mapping[int, bytes]) -> None:
        """Add messages, as :meth:`PartFiles.add`. Raises as that and :meth:`PartFiles.prepare`."""
        if self._writer is None:
            self._nonce = next_nonce()
            self._writer = self._files.begin(self._nonce)
        self._size_bytes += self._files.add(self._writer, payloads, headers)
        if self._size_bytes >= self._part_bytes:
            self.prepare()

    def finish(self) -> tuple[str, ...]:
        """Prepare the last part; return the ids of all, in order. Raises as :meth:`PartFiles.prepare`."""
        self.prepare()
        return tuple(self._ids)

    def prepare(self) -> None:
        """Prepare the part that was begun, if there is one. Raises as :meth:`PartFiles.prepare`."""
        if self._writer is None:
            return
        application, version = self._part_of.application, self._part_of.version
        name = f"{id_prefix(application)}{version}-{uuid.uuid4().hex}"
        self._ids.append(name)  # before: an interrupted part may be prepared
        self._files.prepare(self._writer, self._nonce, name, self._part_of)
        self._writer, self._size_bytes = None, 0

    def give_up(self) -> None:
        """Remove everything that was staged: the ids are known only here, so it cannot have been committed."""
        ids, self._ids = self._ids, []
        writer, self._writer = self._writer, None
        if writer is not None:
            with suppress(HoldfastError):
                writer.discard()
        for each in ids:
            try:
                self._files.drop(each)
            except HoldfastError as error:  # the joint commit, or its abort, discards it
                logger.info("%s was not let go by its task: %s", each, error)


class LocalParts:
    """Stages the parts of a task in the directory of the queue. For one thread.

    Parameters
    ----------
    root, queue_id
        The queue that was planned for: none is made if this machine does not see it.
    storage : Storage or None
        Where it is; None: on the disks of this machine.
    log_end : DataFileName or None
        The last data file when the write was planned: an older copy of the queue does not know it. None: it had none.

    Attributes
    ----------
    clock : Clock
        What delays count from.

    Raises
    ------
    QueueNotFoundError, ConfigError, StorageError
        This machine does not see that queue, or this process may not write there as the queue's owner does.
    """

    def __init__(
        self, root: Path, queue_id: bytes, storage: Storage | None = None, log_end: DataFileName | None = None
    ) -> None:
        storage = storage or OsStorage()
        self.clock: Clock = SystemClock()
        if log_end is None:
            directory = require_queue_here(storage, root, queue_id)
        else:
            directory = require_log_here(storage, root, queue_id, log_end)
        with storage_errors("opening the queue to write into it", root):
            check_root(storage, root, writable=True)  # the owner could not read another user's files
            storage.open(directory.identity).close()  # a mount that is read-only refuses
        self._files = PartFiles(root, storage)

    def latest(self, application: str) -> int | None:
        """Return the version that an application has committed last."""
        return self._files.latest(application)

    def begin(self, application: str, version: int, part_of: PartOf | None = None) -> Staging:
        """Begin staging: parameters as of :class:`Staging`."""
        return Staging(self._files, application, version, part_of)

    def stage(
        self, batches: Iterable[tuple[Sequence[bytes], Mapping[int, bytes]]], application: str, version: int
    ) -> tuple[str, ...]:
        """Stage batches of payloads with encoded headers; return the ids of the parts, in order.

        Raises as :meth:`PartFiles.add` and :meth:`PartFiles.prepare`, and what the iterator raises. After any exception
        nothing stays staged.
        """
        staging = self.begin(application, version)
        try:
            for payloads, headers in batches:
                staging.add(payloads, headers)
            return staging.finish()
        except BaseException:
            staging.give_up()
            raise

    def close(self) -> None:
        """Close the files that were looked at."""
        self._files.close()
