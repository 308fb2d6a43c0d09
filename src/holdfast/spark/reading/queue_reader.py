"""One read of a queue, or of many: planned once, and read by tasks.

Spark hands these objects from process to process. So none of them holds a file, a lock or a state that changes:
:meth:`QueueReader.partitions` plans a read, once, and the tasks get it as :class:`QueuePartition`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from holdfast.arrow.reading.file_range import FileRange
from holdfast.arrow.reading.many_queues import take_snapshots
from holdfast.arrow.reading.partitions import QueueParts, pack
from holdfast.arrow.reading.row_maker import RowMaker
from holdfast.arrow.reading.row_reader import RowReader
from holdfast.arrow.reading.snapshot import Snapshot
from holdfast.persistence.filesystem.storage import OsStorage, storage_errors
from holdfast.spark.reading.options import ReadOptions
from holdfast.spark.remote.driver import Driver, planning_driver
from holdfast.spark.remote.grant import Grant
from holdfast.spark.remote.place import Place
from holdfast.spark.remote.starting import announce
from holdfast.spark.remote.unseen import elsewhere
from holdfast.spark.worker_memory import keep_modules

_ADVICE = "create the DataFrame again, or read what is still there with failOnDataLoss=false"


@dataclass(frozen=True)
class QueueRanges:
    """What a task reads of one queue.

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


@dataclass(frozen=True)
class QueuePartition(InputPartition):
    """The ranges of one task, of one queue or of several."""

    queues: tuple[QueueRanges, ...]


class QueueReader(DataSourceReader):
    """One read of a queue, or of many.

    Parameters
    ----------
    options : ReadOptions
        What to read.
    rows : RowMaker
        Makes the columns.
    advice : str
        What to do if a data file was consumed after it was planned.
    """

    def __init__(self, options: ReadOptions, rows: RowMaker, *, advice: str = _ADVICE) -> None:
        self._options = options
        self._rows = RowReader(options.selection, rows, options.fail_on_data_loss, "failOnDataLoss=false", advice)

    def partitions(self) -> Sequence[QueuePartition]:
        """Plan: read the state of each queue once, and pin the ranges."""
        storage, options = OsStorage(), self._options
        snapshots = take_snapshots(storage, options.selection, options.queues)
        for damage in (damage for snapshot in snapshots for damage in snapshot.missing):
            self._rows.lose(damage)
        with storage_errors("planning a read", options.selection.path):
            read = [(snapshot.root, snapshot.parts) for snapshot in snapshots]
            tasks = pack(storage, read, options.partition_bytes, options.partition_count_min)
        driver = planning_driver()
        whole = [
            QueueRanges(each.root, each.queue_id, (), each.deliveries, self._place(each, driver)) for each in snapshots
        ]
        return partitions_of(whole, tasks) or [QueuePartition(())]  # Spark wants one partition at least

    def _place(self, snapshot: Snapshot, driver: Driver | None) -> Place | None:
        if not snapshot.parts:
            return None
        return announce(Grant(snapshot.root, snapshot.queue_id), driver, self._options.serve_address)

    def read(self, partition: QueuePartition) -> Iterator[Any]:
        """Yield the rows of a task as record batches."""
        keep_modules()
        for each in partition.queues:
            others = elsewhere(each.place, each.root)
            yield from self._rows.read(each.root, each.queue_id, each.parts, each.deliveries, others)


def partitions_of(queues: Sequence[QueueRanges], tasks: Sequence[QueueParts]) -> list[QueuePartition]:
    """Return tasks with all that they need of each queue; those of a queue are in the order of its log."""
    known = [sorted(each.deliveries or ()) for each in queues]

    def part_of(number: int, parts: list[FileRange]) -> QueueRanges:
        queue, offsets = queues[number], known[number]
        own = offsets[bisect_left(offsets, parts[0].start) : bisect_left(offsets, parts[-1].end)]
        deliveries = queue.deliveries
        share = None if deliveries is None else {offset: deliveries[offset] for offset in own}
        return replace(queue, parts=tuple(parts), deliveries=share)

    return [QueuePartition(tuple(part_of(*each) for each in task)) for task in tasks]
