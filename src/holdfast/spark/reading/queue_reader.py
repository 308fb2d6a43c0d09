"""One read of a queue: planned once, and read by tasks.

Spark hands these objects from process to process. So none of them holds a file, a lock or a state that changes:
:meth:`QueueReader.partitions` plans a read, once, and the tasks get it as :class:`QueuePartition`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from holdfast.arrow.reading.columns import Field
from holdfast.arrow.reading.file_range import FileRange
from holdfast.arrow.reading.partitions import pack
from holdfast.arrow.reading.row_reader import RowReader
from holdfast.arrow.reading.snapshot import take_snapshot
from holdfast.persistence.filesystem.storage import OsStorage, storage_errors
from holdfast.spark.reading.options import ReadOptions
from holdfast.spark.remote.driver import planning_driver
from holdfast.spark.remote.grant import Grant
from holdfast.spark.remote.place import Place
from holdfast.spark.remote.starting import announce
from holdfast.spark.remote.unseen import elsewhere
from holdfast.spark.worker_memory import keep_modules

_ADVICE = "create the DataFrame again, or read what is still there with failOnDataLoss=false"


@dataclass(frozen=True)
class QueuePartition(InputPartition):
    """The range of one task.

    Attributes
    ----------
    root, queue_id
        The queue.
    parts : tuple of FileRange
        Messages of its data files, in the order of the log.
    deliveries : dict of int to int, or None
        Delivery counts of the delivered ones, if a group was named.
    place : Place or None
        Where to read if the task's machine does not see the queue.
    """

    root: Path
    queue_id: bytes
    parts: tuple[FileRange, ...]
    deliveries: dict[int, int] | None = None
    place: Place | None = None


class QueueReader(DataSourceReader):
    """One read of a queue.

    Parameters
    ----------
    options : ReadOptions
        What to read.
    fields : list of (str, pyarrow.DataType)
        Names and types of the columns.
    advice : str
        What to do if a data file was consumed after it was planned.
    """

    def __init__(self, options: ReadOptions, fields: list[Field], *, advice: str = _ADVICE) -> None:
        self._options = options
        self._rows = RowReader(
            options.selection, tuple(fields), options.fail_on_data_loss, "failOnDataLoss=false", advice
        )

    def partitions(self) -> Sequence[QueuePartition]:
        """Plan: read the state of the queue once, and pin the range."""
        storage, options = OsStorage(), self._options
        snapshot = take_snapshot(storage, options.selection)
        for damage in snapshot.missing:
            self._rows.lose(damage)
        with storage_errors("planning a read", snapshot.root):
            tasks = pack(storage, snapshot.root, snapshot.parts, options.partition_bytes, options.partition_count_min)
        place = announce(Grant(snapshot.root, snapshot.queue_id), planning_driver(), options.serve_address)
        return [
            QueuePartition(snapshot.root, snapshot.queue_id, tuple(parts), known, place)
            for parts, known in zip(tasks, _shares(snapshot.deliveries, tasks), strict=True)
        ] or [QueuePartition(snapshot.root, snapshot.queue_id, ())]  # Spark wants one partition at least

    def read(self, partition: QueuePartition) -> Iterator[Any]:
        """Yield the rows of a task as record batches."""
        keep_modules()
        root, others = partition.root, elsewhere(partition.place, partition.root)
        return self._rows.read(root, partition.queue_id, partition.parts, partition.deliveries, others)


def _shares(deliveries: dict[int, int] | None, tasks: list[list[FileRange]]) -> Iterator[dict[int, int] | None]:
    """Yield for each task what of the delivery counts is its own; tasks are in the order of the log."""
    offsets = sorted(deliveries or ())
    for parts in tasks:
        own = offsets[bisect_left(offsets, parts[0].start) : bisect_left(offsets, parts[-1].end)]
        yield None if deliveries is None else {offset: deliveries[offset] for offset in own}
