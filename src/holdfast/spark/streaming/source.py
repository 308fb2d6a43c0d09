"""``spark.readStream.format("holdfast")``: the log of a queue as a stream. docs/spark-stream.md.

Spark makes such a reader in several processes, and asks one of them for the place of the stream, and another one for
its messages; so a reader holds nothing that a batch depends on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from holdfast.arrow.reading.file_range import FileRange
from holdfast.arrow.reading.partitions import pack
from holdfast.arrow.reading.row_maker import RowMaker
from holdfast.arrow.reading.selection import Selection
from holdfast.persistence.filesystem.storage import OsStorage, storage_errors
from holdfast.spark.reading.options import ReadOptions
from holdfast.spark.reading.queue_reader import QueuePartition, QueueRanges, QueueReader, partitions_of
from holdfast.spark.remote.driver import planning_driver
from holdfast.spark.remote.grant import Grant
from holdfast.spark.remote.starting import announce
from holdfast.spark.streaming.log import StreamLog
from holdfast.spark.streaming.minimum import Minimum
from holdfast.spark.streaming.offset import StreamOffset
from holdfast.spark.streaming.options import StreamOptions
from holdfast.spark.streaming.places import NO_LIMIT
from holdfast.spark.streaming.queue_stream import QueueStream

_ADVICE = "start the stream again, which names the messages that are gone; the option group keeps what it has not read"

Fields = dict[str, Any]
"""A place in the stream, as Spark knows it."""


class BatchReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The part of a stream that does not depend on the number of its queues: its limits, tasks and rows.

    Parameters
    ----------
    options : StreamOptions
        What to read, and how.
    rows : RowMaker
        Makes the columns.
    """

    def __init__(self, options: StreamOptions, rows: RowMaker) -> None:
        self._options = options
        selection = Selection(options.path, filter=options.filter)
        read = ReadOptions(selection, fail_on_data_loss=options.fail_on_data_loss)
        self._rows = QueueReader(read, rows, advice=_ADVICE)
        self._minimum = Minimum(options.min_messages, options.max_delay)
        self._is_available_now = False

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's own name, as those below
        """Return a bound of one batch; if there are more, ``latestOffset`` keeps them all."""
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        if self._options.max_messages is not None:
            return ReadMaxRows(self._options.max_messages)
        if self._options.min_messages > 1:
            return ReadMinRows(self._options.min_messages)
        return ReadAllAvailable()

    def _is_worth_it(self, start: int, count: int, limit: ReadLimit) -> bool:
        """Whether so many messages from a place on, one at least, are a batch by now."""
        wants_all = self._is_available_now or isinstance(limit, ReadAllAvailable)
        return wants_all or self._minimum.is_reached(start, start + count)

    def _limits(self, limit: ReadLimit) -> tuple[int, int]:
        """Return the most messages and bytes of a batch."""
        if isinstance(limit, ReadAllAvailable):  # under any options: the trigger wants all of it
            return NO_LIMIT, NO_LIMIT
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.max_messages
        size = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self._options.max_bytes
        return rows or NO_LIMIT, size or NO_LIMIT

    def _tasks(self, planned: Sequence[tuple[StreamLog, list[FileRange]]]) -> Sequence[QueuePartition]:
        """Return the tasks of a batch, with where they read if they do not see a queue."""
        planned = [(log, parts) for log, parts in planned if parts]
        options, driver = self._options, planning_driver()
        with storage_errors("planning a batch", options.path):
            read = [(log.directory.root, parts) for log, parts in planned]
            tasks = pack(OsStorage(), read, options.partition_bytes, options.partition_count_min)
        queues = []
        for log, _ in planned:
            root, queue_id = log.directory.root, log.queue_id
            place = announce(Grant(root, queue_id), driver, options.serve_address, is_kept=True)
            queues.append(QueueRanges(root, queue_id, (), place=place))
        return partitions_of(queues, tasks)

    def read(self, partition: QueuePartition) -> Iterator[Any]:
        """Yield the rows of a task as record batches."""
        return self._rows.read(partition)


class QueueStreamReader(BatchReader):
    """One stream of a queue: parameters as :class:`BatchReader`."""

    def __init__(self, options: StreamOptions, rows: RowMaker) -> None:
        super().__init__(options, rows)
        self._stream = QueueStream(options)
        self._initial: Fields | None = None

    def initialOffset(self) -> Fields:  # noqa: N802
        """Return the start of a stream without a checkpoint.

        Spark asks again and again until there is a first batch, and the answer stays the same.
        """
        if self._initial is None:
            self._initial = self._stream.begin().to_fields()
        return self._initial

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note the available messages: the query ends with it."""
        self._is_available_now = True
        self._stream.prepare_for_available_now()

    def latestOffset(self, start: Fields, limit: ReadLimit) -> Fields:  # noqa: N802
        """Return the end of the batch that begins at ``start``; that itself if there is nothing more."""
        ahead = self._stream.ahead(StreamOffset.parse(start))
        if ahead.is_rewound:
            return ahead.place.to_fields()
        if not ahead.count or not self._is_worth_it(ahead.place.offset, ahead.count, limit):
            return start
        return self._stream.next(ahead, *self._limits(limit)).to_fields()

    def reportLatestOffset(self) -> Fields:  # noqa: N802
        """Return the end of the log, for Spark's reports of progress."""
        return self._stream.latest().to_fields()

    def partitions(self, start: Fields, end: Fields) -> Sequence[QueuePartition]:
        """Plan a batch: the same messages whenever the offsets are the same."""
        return self._tasks([self._stream.plan(StreamOffset.parse(start), StreamOffset.parse(end))])

    def commit(self, end: Fields) -> None:
        """Finish messages that Spark does not need any more; after a failure this is done with the next batch."""
        self._stream.commit(StreamOffset.parse(end))
