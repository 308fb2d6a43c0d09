"""Divides rows by the values of columns, as Hive, Spark and DuckDB spell it: a directory ``column=value`` for each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

DATE = "date"
"""The day of a put, in UTC; made of the column ``timestamp`` if rows have none of this name."""

_NULL = "__HIVE_DEFAULT_PARTITION__"


def with_date(table: Any, partition_by: Sequence[str]) -> Any:
    """Return rows with the column ``date``, if they are divided by it and do not have it."""
    if DATE not in partition_by or DATE in table.column_names or "timestamp" not in table.column_names:
        return table
    return table.append_column(DATE, pc.cast(table["timestamp"], pa.date32()))


def divided(table: Any, partition_by: Sequence[str]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the names of the directories of a part, and its rows without those columns."""
    if not partition_by:
        yield (), table
        return
    columns = list(partition_by)
    numbered = table.append_column("__row", pa.array(range(table.num_rows), pa.int64()))
    groups = numbered.group_by(columns, use_threads=False).aggregate([("__row", "list")])
    for group in groups.to_pylist():
        names = tuple(f"{quote(name, safe='')}={_spelled(group[name])}" for name in columns)
        yield names, table.take(pa.array(group["__row_list"])).drop_columns(columns)


def _spelled(value: object) -> str:
    return _NULL if value is None or value == "" else quote(str(value), safe=" :")
