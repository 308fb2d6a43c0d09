"""The sink: the classes that Spark calls to write a DataFrame into a queue. docs/spark-sink.md, docs/adr/0042.

Tasks stage their rows as prepared transactions, in files and without the owner of the queue; on machines that do not
see it they have the range server of the write do that. The driver opens the queue in the mode "shared", and commits
those that Spark names as one. An application and a version identify a write (``queue.joint_commits``); it is committed
once, even if tasks run again: the option ``txnid`` and its ``txnversion``, and of a stream the id of its query and the
number of its batch.

Spark commits and aborts in a process of their own, and tasks run in others; so all attributes are plain values.
"""

from __future__ import annotations

import logging
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from holdfast.arrow.reading.snapshot import read_mark
from holdfast.arrow.reading.task_walk import require_queue_here
from holdfast.clock import Clock
from holdfast.errors import (
    ConfigError,
    HoldfastError,
    QueueNotFoundError,
    ShutDown,
    StorageError,
    TransactionStateError,
)
from holdfast.persistence.filesystem.layout import DataFileName, open_directory, queue_directory
from holdfast.persistence.filesystem.storage import OsStorage
from holdfast.queue.options.put_options import as_batch
from holdfast.queue.persistent_queue import PersistentQueue
from holdfast.spark.remote.driver import planning_driver
from holdfast.spark.remote.grant import Grant
from holdfast.spark.remote.starting import announce
from holdfast.spark.remote.unseen import parts_elsewhere, release
from holdfast.spark.writing.message_rows import MessageRows
from holdfast.spark.writing.options import WriteOptions
from holdfast.spark.writing.part_files import PartFiles
from holdfast.spark.writing.staging import ID_PREFIX, LocalParts

if TYPE_CHECKING:
    import pyarrow as pa

    from holdfast.spark.remote.parts import RemoteParts
    from holdfast.spark.remote.place import Place

logger = logging.getLogger("holdfast")


@dataclass(frozen=True)
class StagedParts(WriterCommitMessage):
    """The staged parts of one task.

    Attributes
    ----------
    application, version
        The joint commit.
    ids : tuple of str
        The parts, in order; none if there was nothing to stage.
    """

    application: str
    version: int
    ids: tuple[str, ...]


class Sink(ABC):
    """The part of a sink that does not depend on the number of its queues.

    Parameters
    ----------
    options : WriteOptions
        Where to write, and how.
    overwrite : bool
        Whether Spark wants to replace existing data.
    """

    def __init__(self, options: WriteOptions, *, overwrite: bool) -> None:
        if overwrite:
            raise ConfigError("a queue is appended to: say mode('append'), or outputMode('append') for a stream")
        self._options = options
        self._place: Place | None = None

    def _is_committed(self, latest: int | None, application: str, version: int, *, is_stream: bool) -> bool:
        """Whether to skip a write; of a stream that can only be its last batch."""
        if is_stream and latest is not None and latest > version:
            raise self._old_checkpoint(application, version, latest)
        return latest is not None and latest >= version

    def _old_checkpoint(self, application: str, version: int, latest: int) -> ConfigError:
        return ConfigError(
            f"query {application} has planned its batch {version} just now, and {self._options.path} has its batch "
            f"{latest} already: the checkpoint is older than the queue, as one that was restored from a backup; give "
            "the stream the one that it had last, or a new one"
        )

    @abstractmethod
    def stage(
        self, batches: Iterator[pa.RecordBatch], application: str, version: int, *, is_stream: bool = False
    ) -> StagedParts:
        """Stage the rows of a task; those of an earlier commit are skipped."""

    @abstractmethod
    def commit_all(
        self,
        messages: Sequence[StagedParts | None],
        application: str,
        version: int,
        *,
        is_remembered: bool = True,
        is_stream: bool = False,
    ) -> None:
        """Commit the parts that the messages name, as one and once; abort other parts that were staged for it."""

    @abstractmethod
    def check_new(self, application: str, version: int) -> None:
        """Raise ConfigError if a batch that was planned just now is committed already."""

    @abstractmethod
    def abort_all(self, application: str, version: int) -> None:
        """Abort parts that were staged and not committed. Spark calls this behind a commit that raised, too."""

    def release(self) -> None:
        """End what the tasks of this write may ask for: it is committed or aborted."""
        if self._place is not None:
            release(self._place)


class QueueSink(Sink):
    """Stages, commits and aborts in one queue; the common part of a batch and a stream.

    Parameters
    ----------
    options : WriteOptions
        Where to write, and how.
    schema : StructType
        Of the DataFrame.
    overwrite : bool
        Whether Spark wants to replace existing data.

    Raises
    ------
    ConfigError
        A column or a mode that cannot work.
    QueueNotFoundError
        There is no queue, and none is to be made.
    """

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        super().__init__(options, overwrite=overwrite)
        self._rows = MessageRows(schema, options)
        self._queue_id = _queue_id(options)
        grant = Grant(options.path, self._queue_id, write_id=uuid.uuid4().hex)
        self._place = announce(grant, planning_driver(), options.serve_address, is_kept=True)
        self._log_end = None if self._place is None else _log_end(options.path, self._queue_id)

    def stage(
        self, batches: Iterator[pa.RecordBatch], application: str, version: int, *, is_stream: bool = False
    ) -> StagedParts:
        """Stage the rows of a task; those of an earlier commit are skipped.

        Of a stream these are those of its last batch, which is run again after a crash.

        Raises
        ------
        ConfigError
            A later batch of the stream is committed.
        queue.Full
            A bounded queue is full.
        ConfigError, UsageError, EncodeError, RecordTooLargeError
            A row cannot be a message.
        DiskFullError, StorageError
            It cannot be staged. After any exception, nothing of this task stays staged.
        RangeServerError
            This machine cannot write into the queue, and the range server of the write cannot be asked.
        """
        with closing(self._parts()) as parts:
            if self._is_committed(parts.latest(application), application, version, is_stream=is_stream):
                return StagedParts(application, version, ())
            try:
                ids = parts.stage(self._encoded(batches, parts.clock), application, version)
            except TransactionStateError:
                if not self._is_committed(parts.latest(application), application, version, is_stream=is_stream):
                    raise
                ids = ()  # decided meanwhile, by another run of this write
            return StagedParts(application, version, ids)

    def _parts(self) -> LocalParts | RemoteParts:
        """Return what stages the rows of a task: this machine, if it can, or else the range server of the write."""
        try:
            return LocalParts(self._options.path, self._queue_id, log_end=self._log_end)
        except HoldfastError as error:
            if self._place is None:
                raise
            return parts_elsewhere(self._place, self._options.path, error)

    def _encoded(
        self, batches: Iterator[pa.RecordBatch], clock: Clock
    ) -> Iterator[tuple[Sequence[bytes], Mapping[int, bytes]]]:
        for batch in batches:
            for messages in self._rows.messages(batch):
                payloads, headers = as_batch(messages, clock)
                yield payloads, headers or {}

    def commit_all(
        self,
        messages: Sequence[StagedParts | None],
        application: str,
        version: int,
        *,
        is_remembered: bool = True,
        is_stream: bool = False,
    ) -> None:
        """Commit the parts that the messages name, as one and once; abort other parts that were staged for it.

        Raises as ``JointCommits.commit``; ConfigError if a later batch of the stream is committed.
        """
        ids = [each for message in messages if message is not None for each in message.ids]
        with self._opened() as queue:
            latest = queue.joint_commits.latest(application)
            if self._is_committed(latest, application, version, is_stream=is_stream):
                logger.warning("version %d of %s is in %s already: not written again", version, application, queue.path)
            queue.joint_commits.commit(application, version, ids, is_remembered=is_remembered)
            try:
                queue.joint_commits.collect(self._options.staged_retention_seconds, id_prefix=ID_PREFIX)
            except (HoldfastError, ShutDown) as error:  # committed all the same, and the next commit tries again
                logger.warning("what dead writes have staged in %s was not collected: %s", queue.path, error)

    def check_new(self, application: str, version: int) -> None:
        """Raise ConfigError if a batch that was planned just now is committed already."""
        with closing(PartFiles(self._required_path())) as files:
            latest = files.latest(application)
        if latest is not None and latest >= version:
            raise self._old_checkpoint(application, version, latest)

    def abort_all(self, application: str, version: int) -> None:
        """Abort parts that were staged and not committed. Spark calls this behind a commit that raised, too."""
        with self._opened() as queue:
            queue.joint_commits.abort(application, version)

    @contextmanager
    def _opened(self) -> Iterator[PersistentQueue]:
        """Open the queue, as the driver does."""
        with PersistentQueue(self._required_path(), mode="shared") as queue:
            yield queue

    def _required_path(self) -> Path:
        """Return the path of the queue that was planned for: none is made if this machine does not see it."""
        require_queue_here(OsStorage(), self._options.path, self._queue_id)
        return self._options.path


class QueueWriter(DataSourceArrowWriter):
    """One write of a DataFrame: ``df.write.format("holdfast").mode("append").save(path)``.

    Parameters
    ----------
    sink : Sink
        The sink.
    options : WriteOptions
        Which write it is; without a ``txnid``, one like no other.
    """

    def __init__(self, sink: Sink, options: WriteOptions) -> None:
        self._sink = sink
        self._is_named = options.txnid is not None
        self._application = options.txnid or f"spark-{uuid.uuid4().hex}"
        self._version = options.txnversion

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedParts:
        """Stage the rows of one task."""
        return self._sink.stage(iterator, self._application, self._version)

    def commit(self, messages: Sequence[Any]) -> None:
        """Commit the parts that the tasks have staged."""
        self._sink.commit_all(messages, self._application, self._version, is_remembered=self._is_named)
        self._sink.release()

    def abort(self, messages: Sequence[Any]) -> None:
        """Abort the staged parts."""
        try:
            self._sink.abort_all(self._application, self._version)
        finally:
            self._sink.release()


def _log_end(path: Path, queue_id: bytes) -> DataFileName | None:
    """Return the last data file of a queue; None if it has none, or does not say."""
    with suppress(StorageError):  # then the commit tells an older copy from the queue
        mark = read_mark(OsStorage(), queue_directory(path), queue_id)
        return None if mark is None else DataFileName(mark.sequence, mark.first_offset)
    return None


def _queue_id(options: WriteOptions) -> bytes:
    """Return the id of the queue, which is created if that is requested."""
    try:
        _, queue_id, _ = open_directory(OsStorage(), options.path, create=options.create, writable=options.create)
    except QueueNotFoundError as error:
        raise QueueNotFoundError(
            f"no queue at {options.path}: correct the path, or say option('create', 'true') to make one",
            path=str(options.path),
        ) from error
    return queue_id
