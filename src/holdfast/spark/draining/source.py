"""The DataFrame of one drained batch. It always reads the messages of its plan, however often it is asked."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from holdfast.arrow.draining.batch_rows import read_parts
from holdfast.arrow.draining.loss_notes import LossNotes
from holdfast.arrow.draining.plan import DrainPlan
from holdfast.arrow.reading.columns import Field, schema_of
from holdfast.arrow.reading.file_range import FileRange
from holdfast.persistence.filesystem.storage import OsStorage
from holdfast.persistence.format.report import Damage
from holdfast.spark.reading.schema import SCHEMA, chosen_fields
from holdfast.spark.worker_memory import keep_modules

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger("holdfast")

_NAME = "holdfast_drain"
_PLAN = "plan"


class DrainDataSource(DataSource):
    """One drained batch as a table."""

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
        return DrainReader(DrainPlan.from_text(self.options[_PLAN]), chosen_fields(schema))


@dataclass(frozen=True)
class DrainPartition(InputPartition):
    """The range of one task."""

    parts: tuple[FileRange, ...]
    deliveries: dict[int, int]


class DrainReader(DataSourceReader):
    """Reads a plan; it holds nothing that changes, for Spark copies it from process to process."""

    def __init__(self, plan: DrainPlan, fields: list[Field]) -> None:
        self._plan = plan
        self._fields = fields

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
        return read_parts(self._plan, partition.parts, self._fields, partition.deliveries, self._lose)

    def _lose(self, damage: Damage) -> None:
        logger.warning("drain: %s", damage)
        LossNotes(OsStorage(), self._plan.notes).write(self._plan.batch_id, damage)


def register(spark: SparkSession) -> None:
    """Make a session know how to read a plan; once is enough."""
    spark.dataSource.register(DrainDataSource)


def frame_in_tasks(spark: SparkSession, plan: DrainPlan, schema: StructType) -> DataFrame:
    """Return the DataFrame that tasks read from the data files: for batches of any size. The session is registered."""
    frame: DataFrame = spark.read.format(_NAME).schema(schema).option(_PLAN, plan.to_text()).load()
    return frame


def frame_from_driver(
    spark: SparkSession, plan: DrainPlan, schema: StructType, on_loss: Callable[[Damage], None]
) -> DataFrame:
    """Return the DataFrame of a small batch, read here and now: that takes no task."""
    import pyarrow as pa

    fields = chosen_fields(schema)
    batches = [each for parts in plan.tasks for each in read_parts(plan, parts, fields, plan.deliveries, on_loss)]
    table = pa.Table.from_batches(batches, schema_of(fields))
    frame: DataFrame = spark.createDataFrame(table, schema)
    return frame
