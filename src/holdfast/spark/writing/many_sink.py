"""The sink into many queues: a column chooses the queue of each row, and all queues commit a write as one.

Tasks stage a part in each queue that they have rows for, or have the range server of the write do that. One document
beside the queues decides (``queue/queues_joint_commits.py``). docs/spark-sink.md, "Many queues".
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StringType, StructType

from holdfast.errors import ConfigError, HoldfastError, ShutDown, TransactionStateError
from holdfast.persistence.filesystem.layout import list_batch_files, queue_directory
from holdfast.persistence.filesystem.storage import MISSING, OsStorage, storage_errors
from holdfast.persistence.outcomes.shared_joint_file import named_part
from holdfast.queue.options.put_options import as_batch
from holdfast.queue.persistent_queue import PersistentQueue
from holdfast.queue.queues_joint_commits import QueuesJointCommits
from holdfast.spark.remote.driver import planning_driver
from holdfast.spark.remote.grant import Grant
from holdfast.spark.remote.starting import announce
from holdfast.spark.remote.unseen import parts_elsewhere
from holdfast.spark.writing.many_parts import ManyParts
from holdfast.spark.writing.message_rows import MessageRows
from holdfast.spark.writing.options import WriteOptions
from holdfast.spark.writing.sink import QueueSink, Sink, StagedParts
from holdfast.spark.writing.staging import ID_PREFIX, id_prefix

if TYPE_CHECKING:
    from holdfast.clock import Clock
    from holdfast.spark.remote.parts import RemoteParts

logger = logging.getLogger("holdfast")

_COLUMN = "queue"


def sink_for(options: WriteOptions, schema: StructType, *, overwrite: bool) -> QueueSink | ManyQueuesSink:
    """Return the sink of a write: into many queues if a column chooses. Raises as the sinks."""
    column = options.queue_column or (_COLUMN if options.serializer is None else f"_{_COLUMN}")
    if options.queue_column is None and column not in schema.names:
        return QueueSink(options, schema, overwrite=overwrite)
    return ManyQueuesSink(options, schema, column, overwrite=overwrite)


class ManyQueuesSink(Sink):
    """Stages, commits and aborts in many queues.

    Parameters
    ----------
    options : WriteOptions
        Where to write, and how; the path is the directory of the queues.
    schema : StructType
        Of the DataFrame.
    column : str
        Has the name of the queue.
    overwrite : bool
        Whether Spark wants to replace existing data.

    Raises
    ------
    ConfigError
        A column, a mode or a directory that cannot work.
    """

    def __init__(self, options: WriteOptions, schema: StructType, column: str, *, overwrite: bool) -> None:
        super().__init__(options, overwrite=overwrite)
        if column not in schema.names:
            raise ConfigError(f"there is no column `{column}` that chooses the queue: correct queueColumn")
        if not isinstance(schema[column].dataType, StringType):
            kind = schema[column].dataType.simpleString()
            raise ConfigError(f"the column `{column}` is {kind}, and the name of a queue is a string")
        self._column = column
        self._rows = MessageRows(StructType([field for field in schema.fields if field.name != column]), options)
        self._check_directory()
        self._document_id = QueuesJointCommits(options.path).create()
        write_id = uuid.uuid4().hex
        grant = Grant(options.path, self._document_id, write_id=write_id, column=column, create=options.create)
        self._place = announce(grant, planning_driver(), options.serve_address, is_kept=True)

    def _check_directory(self) -> None:
        storage, path = OsStorage(), self._options.path
        with storage_errors("looking for queues", path):
            try:
                names = storage.list(path)
            except MISSING:
                raise ConfigError(f"there is no directory {path} of queues: correct the path, or make it") from None
        if queue_directory(path).identity.name in names:
            raise ConfigError(
                f"{path} is a queue, and the column `{self._column}` chooses a queue of a directory: drop the column, "
                "or name the directory"
            )

    def stage(
        self, batches: Iterator[pa.RecordBatch], application: str, version: int, *, is_stream: bool = False
    ) -> StagedParts:
        """Stage the rows of a task; those of an earlier commit are skipped.

        Raises as ``QueueSink.stage``; ConfigError for a value that names no queue.
        """
        with closing(self._parts()) as parts:
            if self._is_committed(parts.latest(application), application, version, is_stream=is_stream):
                return StagedParts(application, version, ())
            try:
                names = parts.stage_into(self._encoded(batches, parts.clock), application, version)
            except TransactionStateError:
                if not self._is_committed(parts.latest(application), application, version, is_stream=is_stream):
                    raise
                names = ()  # decided meanwhile, by another run of this write
            return StagedParts(application, version, names)

    def _parts(self) -> ManyParts | RemoteParts:
        """Return what stages the rows of a task: this machine, if it can, or else the range server of the write."""
        options = self._options
        try:
            return ManyParts(options.path, self._document_id, self._column, create=options.create)
        except HoldfastError as error:
            if self._place is None:
                raise
            return parts_elsewhere(self._place, options.path, error)

    def _encoded(
        self, batches: Iterator[pa.RecordBatch], clock: Clock
    ) -> Iterator[tuple[str, Sequence[bytes], Mapping[int, bytes]]]:
        for batch in batches:
            for name, rows in self._by_queue(batch):
                for messages in self._rows.messages(rows):
                    payloads, headers = as_batch(messages, clock)
                    yield name, payloads, headers or {}

    def _by_queue(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield the rows of each queue, in their order, without the column."""
        names = batch.column(self._column)
        if names.null_count:
            raise ConfigError(
                f"the column `{self._column}` is null in {names.null_count} of these rows, and each row is for a queue"
            )
        rest = batch.select([name for name in batch.schema.names if name != self._column])
        for name in pc.unique(names).to_pylist():
            yield name, rest.filter(pc.equal(names, name))

    def commit_all(
        self,
        messages: Sequence[StagedParts | None],
        application: str,
        version: int,
        *,
        is_remembered: bool = True,
        is_stream: bool = False,
    ) -> None:
        """Commit the parts that the messages name, as one and once. Raises as ``QueuesJointCommits.commit``."""
        ids = [each for message in messages if message is not None for each in message.ids]
        commits = QueuesJointCommits(self._options.path)
        if self._is_committed(commits.latest(application), application, version, is_stream=is_stream):
            path = self._options.path
            logger.warning("version %d of %s is in %s already: not written again", version, application, path)
        prefix = id_prefix(application)
        commits.commit(application, version, ids, is_remembered=is_remembered, id_prefix=prefix)
        for name in dict.fromkeys([*(named_part(each)[0] for each in ids), *self._with_old_parts()]):
            self._collect(name)

    def _with_old_parts(self) -> list[str]:
        """Return the queues in which a part has waited for too long: maybe no later write names them."""
        storage, path, oldest = OsStorage(), self._options.path, time.time() - self._options.staged_retention_seconds
        found = []
        try:
            for name in sorted(storage.list(path)):
                directory = queue_directory(path / name)
                with suppress(*MISSING):  # it is no queue, or a part is decided meanwhile
                    parts = [each for each in list_batch_files(storage, directory) if each.startswith(ID_PREFIX)]
                    if any(directory.batch_file(each).stat().st_mtime <= oldest for each in parts):
                        found.append(name)
        except OSError as error:  # as a queue that cannot be opened
            logger.warning("what dead writes have staged in %s was not looked for: %s", path, error)
        return found

    def _collect(self, name: str) -> None:
        """Abort what dead writes have staged in a queue long ago."""
        try:
            with PersistentQueue(self._options.path / name, mode="shared") as queue:
                queue.joint_commits.collect(self._options.staged_retention_seconds, id_prefix=ID_PREFIX)
        except (HoldfastError, ShutDown) as error:  # committed all the same, and the next commit tries again
            logger.warning("what dead writes have staged in queue %s was not collected: %s", name, error)

    def check_new(self, application: str, version: int) -> None:
        """Raise ConfigError if a batch that was planned just now is committed already."""
        latest = QueuesJointCommits(self._options.path).latest(application)
        if latest is not None and latest >= version:
            raise self._old_checkpoint(application, version, latest)

    def abort_all(self, application: str, version: int) -> None:
        """Abort parts that were staged and not committed. Spark calls this behind a commit that raised, too."""
        prefix = id_prefix(application)
        QueuesJointCommits(self._options.path).abort(application, version, id_prefix=prefix)
