"""Counts the rows of a table against what went into the queue: each once, and as it was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from pyspark.sql import DataFrame
from rich.table import Table

from examples.spark.events import Stream
from examples.spark.tables import new_table

FIGURES = ("put", "rows", "ids", "lost", "doubled", "altered", "batches")


@dataclass
class Count:
    """What became of the messages of one queue.

    Attributes
    ----------
    name : str
        Of the queue.
    put_count, row_count, distinct_count, batch_count : int
        Objects that were put, rows of the table, different ids among them, and directories of batches.
    lost, doubled, altered : list
        Ids that are missing, that are there more than once, and whose row is not what was put.
    """

    name: str
    put_count: int
    row_count: int
    distinct_count: int
    batch_count: int
    lost: list[Any] = field(default_factory=list)
    doubled: list[Any] = field(default_factory=list)
    altered: list[Any] = field(default_factory=list)

    @classmethod
    def of(cls, stream: Stream, events: Sequence[Any], table: DataFrame) -> Count:
        """Read a table and compare."""
        put = {event.id: event for event in events}
        columns = stream.type.__struct_fields__
        rows = table.select(*columns).toArrow().to_pylist()
        times = Counter(row["id"] for row in rows)
        return cls(
            stream.name,
            len(events),
            len(rows),
            len(times),
            table.select("batch_id").distinct().count(),
            [each for each in put if each not in times],
            [each for each, count in times.items() if count > 1],
            [row["id"] for row in rows if row["id"] not in put or row != msgspec.structs.asdict(put[row["id"]])],
        )

    @property
    def violations(self) -> str:
        """What is wrong, in one clause each; empty where every row is there once."""
        found = {"lost": self.lost, "doubled": self.doubled, "altered": self.altered}
        return ", ".join(
            f"{self.name}: {len(ids)} {what} ({', '.join(map(str, ids[:5]))}{', …' if len(ids) > 5 else ''})"
            for what, ids in found.items()
            if ids
        )

    @staticmethod
    def table(counts: Sequence[Count]) -> Table:
        """Return the counts as a table."""
        table = new_table("Each row once", "queue", *FIGURES)
        for each in counts:
            figures = (each.put_count, each.row_count, each.distinct_count)
            wrong = (len(each.lost), len(each.doubled), len(each.altered))
            table.add_row(each.name, *(f"{figure:,}" for figure in (*figures, *wrong, each.batch_count)))
        return table
