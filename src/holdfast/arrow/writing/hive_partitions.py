"""Divides rows by the values of columns: a directory ``column=value`` for each.

They are spelled as Spark does it, which Hive, DuckDB, Polars and pyarrow read too: its source is
``ExternalCatalogUtils.getPartitionPathString``, with the value cast to a string.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import ConfigError

DATE = "date"
"""The day of a put, in UTC; made of the column ``timestamp`` if rows have none of this name."""

_SHOWN_BYTES = 50

_NULL = "__HIVE_DEFAULT_PARTITION__"

_ESCAPED = str.maketrans({c: f"%{ord(c):02X}" for c in [*map(chr, range(32)), *"\"#%'*/:=?\\{[]^\x7f"]})


def with_date(table: Any, partition_by: Sequence[str]) -> Any:
    """Return rows with the column ``date``, if they are divided by it and do not have it."""
    if DATE not in partition_by or DATE in table.column_names or "timestamp" not in table.column_names:
        return table
    return table.append_column(DATE, pc.cast(table["timestamp"], pa.date32()))


def divided(table: Any, partition_by: Sequence[str]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the names of the directories of a part, and its rows without those columns.

    Raises
    ------
    ConfigError
        A value is of bytes that are no text, which no name of a directory can be.
    """
    if not partition_by:
        yield (), table
        return
    columns = list(partition_by)
    numbered = table.append_column("__row", pa.array(range(table.num_rows), pa.int64()))
    groups = numbered.group_by(columns, use_threads=False).aggregate([("__row", "list")])
    for group in groups.to_pylist():
        names = tuple(f"{name.translate(_ESCAPED)}={_spelled(name, group[name])}" for name in columns)
        yield names, table.take(pa.array(group["__row_list"])).drop_columns(columns)


def _spelled(name: str, value: object) -> str:
    if isinstance(value, bool):
        text = "true" if value else "false"
    elif isinstance(value, bytes):
        try:
            text = value.decode()
        except UnicodeDecodeError:
            raise ConfigError(
                f"rows cannot be divided by {name!r}: its value {value[:_SHOWN_BYTES]!r} is no text in UTF-8"
            ) from None
    else:
        text = str(value)
    return _NULL if value is None or not text else text.translate(_ESCAPED)
