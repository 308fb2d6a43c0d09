"""The DataFrame of one drained batch. It always reads the messages of its plan, however often it is asked."""

from __future__ import annotations

import base64
import hmac
import logging
import pickle
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from holdfast.arrow.draining.batch_rows import read_parts
from holdfast.arrow.draining.loss_notes import LossNotes
from holdfast.arrow.draining.plan import DrainPlan
from holdfast.arrow.reading.columns import schema_of
from holdfast.arrow.reading.file_range import FileRange
from holdfast.arrow.reading.row_maker import RowMaker
from holdfast.arrow.reading.task_walk import QueueFiles
from holdfast.errors import ConfigError, HoldfastError
from holdfast.persistence.filesystem.storage import OsStorage
from holdfast.persistence.format.report import Damage
from holdfast.spark.reading.schema import SCHEMA
from holdfast.spark.remote.place import Place
from holdfast.spark.remote.unseen import note_loss, remote_files
from holdfast.spark.worker_memory import keep_modules

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger("holdfast")

_NAME = "holdfast_drain"
_PLAN = "plan"
_ROWS = "rows"
_PLACE, _SEAL = "place_token", "seal_token"
"""Spark shows no option whose name has this word."""

_KEY = secrets.token_bytes(32)
"""Plans are unpickled, and each program that may send SQL to the session may give options to any format."""


class DrainDataSource(DataSource):
    """One drained batch as a table. Without the key of the process that drains it reads nothing."""

    _key = b""

    @classmethod
    def name(cls) -> str:
        return _NAME

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        keep_modules()

    def schema(self) -> StructType:
        return SCHEMA

    def reader(self, schema: StructType) -> DrainReader:
        keep_modules()
        plan, rows = self.options.get(_PLAN, ""), self.options.get(_ROWS, "")
        given = self.options.get(_SEAL, "").encode()
        if not (self._key and hmac.compare_digest(given, _seal(self._key, plan, rows).encode())):
            raise ConfigError("the format holdfast_drain reads the batches of a drain: call holdfast.spark.drain")
        place = Place.from_text(self.options[_PLACE]) if _PLACE in self.options else None
        made = pickle.loads(base64.b85decode(rows))  # noqa: S301  # this program's own, as the plan
        return DrainReader(DrainPlan.from_text(plan), made, place)


@dataclass(frozen=True)
class DrainPartition(InputPartition):
    """The range of one task."""

    parts: tuple[FileRange, ...]
    deliveries: dict[int, int]


class DrainReader(DataSourceReader):
    """Reads a plan; it holds nothing that changes, for Spark copies it from process to process."""

    def __init__(self, plan: DrainPlan, rows: RowMaker, place: Place | None) -> None:
        self._plan = plan
        self._rows = rows
        self._place = place

    def partitions(self) -> Sequence[DrainPartition]:
        """Return the tasks of the plan."""
        known = self._plan.deliveries
        return [
            DrainPartition(parts, {each: n for each, n in known.items() if parts[0].start <= each < parts[-1].end})
            for parts in self._plan.tasks
            if parts
        ] or [DrainPartition((), {})]  # Spark wants one at least

    def read(self, partition: DrainPartition) -> Iterator[Any]:
        """Yield the rows of a task as record batches; damaged messages are skipped and reported."""
        keep_modules()
        for part in partition.parts:
            source = _Source(self._plan, self._place)
            others = None if self._place is None else source.elsewhere
            yield from read_parts(self._plan, (part,), self._rows, partition.deliveries, source.lose, others)


class _Source:
    """Where a part is read, which is where its losses are noted: an older copy of the queue is asked for neither."""

    def __init__(self, plan: DrainPlan, place: Place | None) -> None:
        self._plan = plan
        self._place = place
        self._is_elsewhere = False

    def elsewhere(self, reason: HoldfastError) -> QueueFiles:
        """Read from the range server. Raises HoldfastError."""
        assert self._place is not None
        self._is_elsewhere = True
        return remote_files(self._place, self._plan.root, reason)

    def lose(self, damage: Damage) -> None:
        """Log damage and note it, durably. Raises HoldfastError."""
        logger.warning("drain: %s", damage)
        if self._is_elsewhere and self._place is not None:
            note_loss(self._place, damage)
        else:
            LossNotes(OsStorage(), self._plan.notes).write(self._plan.batch_id, damage)


def register(spark: SparkSession) -> None:
    """Make a session know how to read the plans of this process; once is enough."""
    key = _KEY

    class KeyedDataSource(DrainDataSource):  # made here, so that it travels by its contents and takes the key along
        _key = key

    spark.dataSource.register(KeyedDataSource)


def frame_in_tasks(
    spark: SparkSession, plan: DrainPlan, schema: StructType, rows: RowMaker, place: Place | None
) -> DataFrame:
    """Return the DataFrame that tasks read from the data files: for batches of any size. The session is registered."""
    columns = base64.b85encode(pickle.dumps(rows)).decode()
    text = plan.to_text()
    reader = spark.read.format(_NAME).schema(schema).option(_PLAN, text).option(_ROWS, columns)
    reader = reader.option(_SEAL, _seal(_KEY, text, columns))
    if place is not None:
        reader = reader.option(_PLACE, place.to_text())
    frame: DataFrame = reader.load()
    return frame


def _seal(key: bytes, plan: str, rows: str) -> str:
    """Return what only this process can make for a plan."""
    return hmac.digest(key, f"{plan} {rows}".encode(), "sha256").hex()


def frame_from_driver(
    spark: SparkSession, plan: DrainPlan, schema: StructType, rows: RowMaker, on_loss: Callable[[Damage], None]
) -> DataFrame:
    """Return the DataFrame of a small batch, read here and now: that takes no task."""
    import pyarrow as pa

    batches = [each for parts in plan.tasks for each in read_parts(plan, parts, rows, plan.deliveries, on_loss)]
    table = pa.Table.from_batches(batches, schema_of(rows.fields))
    frame: DataFrame = spark.createDataFrame(table, schema)
    return frame
