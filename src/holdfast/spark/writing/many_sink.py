"""The sink into many queues: a column chooses the queue of each row, and all queues commit a write as one.

Tasks stage a part in each queue that they have rows for. One document beside the queues decides
(``queue/queues_joint_commits.py``). docs/spark-sink.md, "Many queues".
"""

from __future__ import annotations

import logging
import platform
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StringType, StructType

from holdfast.clock import SystemClock
from holdfast.errors import ConfigError, HoldfastError, QueueNotFoundError, ShutDown, TransactionStateError
from holdfast.persistence.filesystem.layout import open_directory, queue_directory
from holdfast.persistence.filesystem.storage import MISSING, OsStorage, storage_errors
from holdfast.persistence.outcomes.shared_joint_file import named_part, part_name
from holdfast.queue.options.put_options import as_batch
from holdfast.queue.persistent_queue import PersistentQueue
from holdfast.queue.queues_joint_commits import QueuesJointCommits
from holdfast.service.queue_names import check_queue_name
from holdfast.spark.writing.message_rows import MessageRows
from holdfast.spark.writing.options import WriteOptions
from holdfast.spark.writing.sink import QueueSink, Sink, StagedParts
from holdfast.spark.writing.staging import ID_PREFIX, LocalParts, Staging, id_prefix

if TYPE_CHECKING:
    from holdfast.persistence.format.commit_record import PartOf

logger = logging.getLogger("holdfast")

_COLUMN = "queue"
_BEGUN_MAX = 64
"""Parts that a task has begun at once: each has an open file."""


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
        commits = QueuesJointCommits(self._options.path)
        try:
            part_of = commits.part_of(application, version)
        except ConfigError:
            part_of = None
        if part_of is None or part_of.document_id != self._document_id:
            raise ConfigError(
                f"{self._options.path} on {platform.node()} is not the directory that was planned: mount it on each "
                "machine that runs tasks; a range server stages for one queue only"
            )
        if self._is_committed(commits.latest(application), application, version, is_stream=is_stream):
            return StagedParts(application, version, ())
        with closing(_Parts(self._options, self._column, part_of)) as parts:
            try:
                for batch in batches:
                    for name, rows in self._by_queue(batch):
                        for messages in self._rows.messages(rows):
                            parts.add(name, messages)
                return StagedParts(application, version, parts.finish())
            except BaseException as error:
                parts.give_up()
                latest = commits.latest(application) if isinstance(error, TransactionStateError) else None
                if self._is_committed(latest, application, version, is_stream=is_stream):
                    return StagedParts(application, version, ())  # decided meanwhile, by another run of this write
                raise

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
        for name in dict.fromkeys(named_part(each)[0] for each in ids):
            self._collect(name)

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

    def release(self) -> None:
        """Do nothing: tasks see the directory."""

    def abort_all(self, application: str, version: int) -> None:
        """Abort parts that were staged and not committed. Spark calls this behind a commit that raised, too."""
        prefix = id_prefix(application)
        QueuesJointCommits(self._options.path).abort(application, version, id_prefix=prefix)


class _Parts:
    """The parts of one task in many queues. For one thread."""

    def __init__(self, options: WriteOptions, column: str, part_of: PartOf) -> None:
        self._options = options
        self._column = column
        self._part_of = part_of
        self._clock = SystemClock()
        self._opened = ExitStack()
        self._staging: dict[str, Staging] = {}
        self._begun: dict[str, None] = {}

    def add(self, name: str, messages: Sequence[Any]) -> None:
        """Add messages of one queue. Raises as :meth:`Staging.add`; ConfigError for a value that names no queue."""
        staging = self._staging.get(name) or self._open(name)
        self._begun.pop(name, None)
        while len(self._begun) >= _BEGUN_MAX:  # the one that has waited longest; more of it is another part
            oldest = next(iter(self._begun))
            self._staging[oldest].prepare()
            del self._begun[oldest]
        self._begun[name] = None
        payloads, headers = as_batch(messages, self._clock)
        staging.add(payloads, headers or {})

    def _open(self, name: str) -> Staging:
        check_queue_name(name)
        path, create = self._options.path / name, self._options.create
        try:
            _, queue_id, _ = open_directory(OsStorage(), path, create=create, writable=create)
        except QueueNotFoundError as error:
            raise QueueNotFoundError(
                f"the column `{self._column}` is {name!r}, and {self._options.path} has no queue of that name: correct "
                "the value, or say option('create', 'true') to make one",
                path=str(path),
            ) from error
        parts = self._opened.enter_context(closing(LocalParts(path, queue_id)))
        staging = parts.begin(self._part_of.application, self._part_of.version, self._part_of)
        self._staging[name] = staging
        return staging

    def finish(self) -> tuple[str, ...]:
        """Prepare the last parts; return the names of all, in the order of each queue."""
        return tuple(part_name(name, each) for name, staging in self._staging.items() for each in staging.finish())

    def give_up(self) -> None:
        """Remove everything that was staged."""
        for staging in self._staging.values():
            staging.give_up()

    def close(self) -> None:
        """Close the files that were looked at."""
        self._opened.close()
