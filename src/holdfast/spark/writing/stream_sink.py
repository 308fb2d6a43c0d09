"""The sink of a stream: one joint commit for each of its batches. docs/spark-sink.md, "Streams"."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter

from holdfast.errors import ConfigError
from holdfast.persistence.filesystem.storage import OsStorage, Storage, storage_errors
from holdfast.spark.checkpoint import is_noted, note_plan, sync_plan
from holdfast.spark.writing.sink import Sink, StagedParts

if TYPE_CHECKING:
    import pyarrow as pa

_QUERY = "sql.streaming.queryId"
_BATCH = "streaming.sql.batchId"


class QueueStreamWriter(DataSourceStreamArrowWriter):
    """The writer of ``df.writeStream.format("holdfast").start(path)``.

    Spark makes another one to commit: a commit gets everything with the messages of the tasks. The number of a batch
    alone identifies nothing, because each query counts its own.

    Parameters
    ----------
    sink : Sink
        The sink.
    checkpoint : Path or None
        Where Spark notes the range of a batch, if this machine sees it.
    """

    def __init__(self, sink: Sink, checkpoint: Path | None) -> None:
        self._sink = sink
        self._checkpoint = checkpoint

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedParts:
        """Stage the rows of one task."""
        context = TaskContext.get()
        query = context.getLocalProperty(_QUERY) if context is not None else None
        batch = context.getLocalProperty(_BATCH) if context is not None else None
        if not query or not batch:
            raise ConfigError(
                "this Spark does not say which batch of which query a task works for: write in foreachBatch, with "
                "option('txnid', ...) and option('txnversion', batch_id)"
            )
        return self._sink.stage(iterator, query, int(batch), is_stream=True)

    def commit(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803  # Spark's own name
        """Commit the staged parts of a batch, once it is certain that Spark knows which batch that was."""
        queries = _queries(messages)
        if self._checkpoint is not None and (self._checkpoint / "metadata").exists():
            with storage_errors("syncing a checkpoint", self._checkpoint):
                self._secure(OsStorage(), self._checkpoint, queries, batchId)
        for application in queries:
            self._sink.commit_all(messages, application, batchId, is_stream=True)
        self._sink.release()

    def _secure(self, storage: Storage, checkpoint: Path, queries: set[str], batch: int) -> None:
        """Make a plan durable, and refuse one that is new under a number that the queue has: its rows are others."""
        sync_plan(storage, checkpoint, batch)
        if queries and not is_noted(storage, checkpoint, batch):
            for application in queries:
                self._sink.check_new(application, batch)
            note_plan(storage, checkpoint, batch)

    def abort(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803  # Spark's own name
        """Abort the parts staged for a batch."""
        try:
            for application in _queries(messages):
                self._sink.abort_all(application, batchId)
        finally:
            self._sink.release()


def _queries(messages: Sequence[StagedParts | None]) -> set[str]:
    """Return the query that the tasks worked for; nothing if no task reports any."""
    return {message.application for message in messages if message is not None}
