"""``spark.readStream.format("holdfast")``: the log of a queue as a stream. docs/spark-stream.md.

Spark makes such a reader in several processes, and asks one of them for the place of the stream, and another one for
its messages. So every answer comes from the offsets that Spark hands over and from the files; everything else that a
reader remembers only saves time. Only :meth:`QueueStreamReader.commit` changes anything.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
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

from holdfast.arrow.reading.file_range import Runs, clipped
from holdfast.arrow.reading.partitions import pack
from holdfast.arrow.reading.selection import Selection
from holdfast.errors import ConfigError, DiskFullError, RetryableError, StorageError
from holdfast.persistence.filesystem.storage import OsStorage, storage_errors
from holdfast.spark.reading.options import ReadOptions
from holdfast.spark.reading.queue_reader import QueuePartition, QueueReader
from holdfast.spark.remote.driver import planning_driver
from holdfast.spark.remote.grant import Grant
from holdfast.spark.remote.starting import announce
from holdfast.spark.streaming.group import begin_group, finish_below, never_there, unfinished_from
from holdfast.spark.streaming.log import StreamLog
from holdfast.spark.streaming.minimum import Minimum
from holdfast.spark.streaming.offset import StreamOffset
from holdfast.spark.streaming.options import StreamOptions
from holdfast.spark.streaming.places import NO_LIMIT, Places

logger = logging.getLogger("holdfast")

_ADVICE = "start the stream again, which names the messages that are gone; the option group keeps what it has not read"

Fields = dict[str, Any]
"""A place in the stream, as Spark knows it."""


class MessagesGoneError(StorageError):
    """Messages that a stream has not read are not in the log any more. Attributes: ``path``, ``offsets``."""

    code = "messages_gone"


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One stream of a queue.

    Parameters
    ----------
    options : StreamOptions
        What to read, and how.
    fields : list of (str, pyarrow.DataType)
        Names and types of the columns.
    """

    def __init__(self, options: StreamOptions, fields: list[tuple[str, Any]]) -> None:
        self._options = options
        rows = ReadOptions(Selection(options.path, filter=options.filter), fail_on_data_loss=options.fail_on_data_loss)
        self._rows = QueueReader(rows, fields, advice=_ADVICE)
        self._places = Places()
        self._minimum = Minimum(options.min_messages, options.max_delay)
        self._initial: Fields | None = None
        self._available_end: int | None = None
        self._group_id = ""
        self._finished_below = 0

    # -- Where the stream is -----------------------------------------------------------------------------------------

    def initialOffset(self) -> Fields:  # noqa: N802  # Spark's own name, as those below
        """Return the start of a stream without a checkpoint; its group is made, so that nothing is lost from there.

        Spark asks again and again until there is a first batch, and the answer stays the same.
        """
        if self._initial is None:
            self._initial = self._begin()
        return self._initial

    def _begin(self) -> Fields:
        log, options = self._look(), self._options
        if options.timestamp_start_ns:
            offset = log.first_since(options.timestamp_start_ns)
        elif options.offset_start is None:
            offset = log.end if options.group is None else unfinished_from(log, options.group)
        elif options.offset_start > log.end:
            raise ConfigError(f"startingOffset is {options.offset_start}, and {options.path} ends at {log.end}")
        else:
            offset = log.first_from(options.offset_start)
        group_id = ""
        if options.group is not None:
            group = begin_group(log, options.group, offset)
            offset, group_id = max(offset, group.start_offset), group.group_id.hex()
        return StreamOffset(log.queue_id.hex(), group_id, offset).to_fields()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return a bound of one batch; if there are more, :meth:`latestOffset` keeps them all."""
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        if self._options.max_messages is not None:
            return ReadMaxRows(self._options.max_messages)
        if self._options.min_messages > 1:
            return ReadMinRows(self._options.min_messages)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note the available messages: the query ends with it."""
        self._available_end = self._look().end

    def latestOffset(self, start: Fields, limit: ReadLimit) -> Fields:  # noqa: N802
        """Return the end of the batch that begins at ``start``; that itself if there is nothing more."""
        log, place = self._look(), StreamOffset.parse(start)
        self._check_queue(log, place)
        place = self._kept(log, place)
        if place.offset > log.end:
            self._lose(log, place, ((log.end, place.offset),))
            return place.rewound(log.end).to_fields()
        end = log.end if self._available_end is None else min(log.end, self._available_end)
        if end <= place.offset or not self._is_worth_it(place.offset, end, limit):
            return start
        with storage_errors("planning a batch", log.directory.root):
            reached = self._limited(log, place.offset, end, limit)
        if reached == log.end:
            self._places.note_end(log)
        return place.next(reached, self._options.retain_batches).to_fields()

    def reportLatestOffset(self) -> Fields:  # noqa: N802
        """Return the end of the log, for Spark's reports of progress."""
        log = self._look()
        return StreamOffset(log.queue_id.hex(), self._group_id, log.end).to_fields()

    def _is_worth_it(self, start: int, end: int, limit: ReadLimit) -> bool:
        wants_all = self._available_end is not None or isinstance(limit, ReadAllAvailable)
        return wants_all or self._minimum.is_reached(start, end)

    def _limited(self, log: StreamLog, start: int, end: int, limit: ReadLimit) -> int:
        if isinstance(limit, ReadAllAvailable):  # under any options: the trigger wants all of it
            return end
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.max_messages
        size = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self._options.max_bytes
        return self._places.limited_end(log, start, end, rows or NO_LIMIT, size or NO_LIMIT)

    # -- What a batch is ---------------------------------------------------------------------------------------------

    def partitions(self, start: Fields, end: Fields) -> Sequence[QueuePartition]:
        """Plan a batch: the same messages whenever the offsets are the same."""
        log, first, last = self._look(), StreamOffset.parse(start), StreamOffset.parse(end)
        self._check_queue(log, first)
        self._check_queue(log, last)
        if last.offset <= first.offset:
            return []
        with storage_errors("planning a batch", log.directory.root):
            parts, gaps = log.between(first.offset, last.offset)
            self._lose(log, first, gaps)
            if parts:
                position = self._places.position_of(log, parts[0].name, parts[0].start)
                parts[0] = replace(parts[0], position=position)
            bounds = self._options.partition_bytes, self._options.partition_count_min
            tasks = pack(log.storage, log.directory.root, parts, *bounds)
        root, queue_id = log.directory.root, log.queue_id
        place = announce(Grant(root, queue_id), planning_driver(), self._options.serve_address, is_kept=True)
        return [QueuePartition(root, queue_id, tuple(task), place=place) for task in tasks]

    def read(self, partition: QueuePartition) -> Iterator[Any]:
        """Yield the rows of a task as record batches."""
        return self._rows.read(partition)

    # -- What was committed ------------------------------------------------------------------------------------------

    def commit(self, end: Fields) -> None:
        """Finish messages that Spark does not need any more; after a failure this is done with the next batch."""
        place, options = StreamOffset.parse(end), self._options
        offset = place.finished_below(options.retain_batches)
        if options.group is None or offset is None or offset <= self._finished_below:
            return
        log = self._look()
        self._check_queue(log, place)
        try:
            finish_below(log, options.group, offset)
        except (RetryableError, DiskFullError) as error:
            logger.warning("messages below %d stay until a later batch is committed: %s", offset, error)
        else:
            self._finished_below = offset

    def _kept(self, log: StreamLog, place: StreamOffset) -> StreamOffset:
        """Return a place with the group that keeps the messages behind it.

        That is checked once: the group may have been deleted and created again, or the stream had none before.
        """
        group = self._options.group
        if group is not None and not self._group_id:
            group_id = begin_group(log, group, min([place.offset, *place.before])).group_id.hex()
            if group_id != place.group_id:  # the group ignores messages that are gone by now, but this stream does not
                self._lose(log, place, self._look().between(place.offset, log.end)[1])
            self._group_id = group_id
        return replace(place, group_id=self._group_id)

    # -- All of them -------------------------------------------------------------------------------------------------

    def _look(self) -> StreamLog:
        with storage_errors("looking at a queue", self._options.path):
            return StreamLog.look(OsStorage(), self._options.path)

    def _check_queue(self, log: StreamLog, place: StreamOffset) -> None:
        if place.queue_id != log.queue_id.hex():
            raise ConfigError(
                f"the checkpoint is of queue {place.queue_id}, and {log.directory.root} is queue {log.queue_id.hex()}: "
                "give the stream a new checkpoint"
            )

    def _lose(self, log: StreamLog, place: StreamOffset, gaps: Runs) -> None:
        """Report which messages are gone, as an error or as a warning."""
        lost = gaps
        if gaps and self._options.group is not None:
            for first, end in never_there(log, self._options.group, place.group_id):
                lost = (*clipped(lost, 0, first), *clipped(lost, end, NO_LIMIT))
        if not lost:
            return
        offsets = ", ".join(f"{first}..{end - 1}" for first, end in lost)
        message = (
            f"messages {offsets} of {log.directory.root} are gone: they were finished by every group before this "
            "stream read them, or lost with the end of the log"
        )
        if self._options.fail_on_data_loss:
            raise MessagesGoneError(
                f"{message}; read the rest with failOnDataLoss=false, and keep what is not read with the option group",
                path=str(log.directory.root),
                offsets=[range(*run) for run in lost],
            )
        logger.warning("%s", message)
