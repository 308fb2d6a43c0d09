"""Drains for tests: a stand-in for Spark that hands out tables, and a drain that continues elsewhere on its way."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

from holdfast import PersistentQueue

WITH_SPARK = ("--engine", "spark", "--format")
"""Options of `holdfast drain`, before the format."""

MOMENTS = ("before the write", "after the write", "after the commit")


class TablesForSpark:
    """Takes the place of a session where batches are small: the DataFrame is the Arrow table itself. Needs no Java."""

    sparkContext = SimpleNamespace(defaultParallelism=2)  # noqa: N815  # Spark's own name

    @staticmethod
    def createDataFrame(table: Any, _: Any) -> Any:  # noqa: N802  # Spark's own name
        """Return the table."""
        return table

    def __call__(self, run: Callable[[], object]) -> Callable[[], object]:
        """Return what runs in another thread, as ``inheritable_thread_target`` of pyspark would with a session."""
        return run


class TasksForSpark:
    """Takes the place of a session whose tasks run here: each partition travels by itself, and so does the reader.

    Parameters
    ----------
    around_tasks : callable
        Makes a context in which the tasks run, once what they read is planned.
    has_context : bool
        Whether there is a ``sparkContext``: Spark Connect has none.
    """

    def __init__(
        self, around_tasks: Callable[[], AbstractContextManager[object]] = nullcontext, *, has_context: bool = True
    ) -> None:
        if has_context:
            self.sparkContext = SimpleNamespace(defaultParallelism=2)  # Spark's own name
        self._around_tasks = around_tasks
        self.dataSource = SimpleNamespace(register=self._register)
        self.read = self

    def _register(self, source: Any) -> None:
        self._source = source

    def __call__(self, run: Callable[[], object]) -> Callable[[], object]:
        """Return what runs in another thread, as ``inheritable_thread_target`` of pyspark would with a session."""
        return run

    def format(self, _: str) -> Self:
        """As Spark's."""
        self._options: dict[str, str] = {}
        return self

    def schema(self, schema: Any) -> Self:
        """As Spark's."""
        self._schema = schema
        return self

    def option(self, name: str, value: str) -> Self:
        """As Spark's."""
        self._options[name] = value
        return self

    def load(self) -> Callable[[], list[dict[str, Any]]]:
        """Return what reads the rows."""
        source, schema = self._source(self._options), self._schema

        def rows() -> list[dict[str, Any]]:
            reader = pickle.loads(pickle.dumps(source.reader(schema)))
            partitions = pickle.loads(pickle.dumps(reader.partitions()))
            with self._around_tasks():
                return [row for each in partitions for batch in reader.read(each) for row in batch.to_pylist()]

        return rows


def fill(path: Path, numbers: Iterable[int], *, size: int = 200) -> None:
    """Put messages that say their number."""
    with PersistentQueue(path, mode="shared", data_file_bytes=2**18) as queue:
        numbers = list(numbers)
        for at in range(0, len(numbers), 1000):
            queue.put_many([b'{"id": %d, "rest": "%s"}' % (each, b"x" * size) for each in numbers[at : at + 1000]])


def write_parquet(out: Path, frame: Any, batch_id: str) -> None:
    """Write a batch into a directory of its own."""
    frame.write.mode("overwrite").parquet(f"{out}/batch_id={batch_id}")


def numbers(spark: Any, out: Path) -> list[int]:
    """Return the numbers of all messages that were written."""
    from pyspark.sql.functions import col, get_json_object

    rows = spark.read.parquet(str(out)).select(get_json_object(col("payload").cast("string"), "$.id").cast("int"))
    return sorted(row[0] for row in rows.collect())


def drain_until(spark: Any, place: Path, moment: str, go_on: Callable[[], None]) -> None:
    """Drain ``place/q`` in batches of 4,000 messages, and go on elsewhere at a moment of the second one."""
    from holdfast.spark import drain

    batches: list[str] = []

    def arrive(now: str) -> None:
        if now == moment and len(batches) > 1:
            go_on()

    def write(frame: Any, batch_id: str) -> None:
        batches.append(batch_id)
        arrive("before the write")
        write_parquet(place / "out", frame, batch_id)
        arrive("after the write")

    drain(place / "q", spark, write, max_messages=4000, group="night", on_progress=lambda _: arrive("after the commit"))
