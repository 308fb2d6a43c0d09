"""Reads a queue as Spark does, without Spark's JVM: everything goes through a pickle, as from process to process.

pyspark and pyarrow are imported when they are used: where they are missing, the tests that need them are skipped.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any


def _sent(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def planned(path: Path, columns: list[str] | None = None, **options: Any) -> tuple[Any, list[Any]]:
    """Return the reader that Spark would send to its tasks, and what it would give to each."""
    from pyspark.sql.types import StructType

    from holdfast.spark.data_source import HoldfastDataSource

    texts = {name.lower(): str(value) for name, value in options.items()}
    source = _sent(HoldfastDataSource({"path": str(path), **texts}))
    schema = source.schema()
    if columns is not None:
        schema = StructType([schema[column] for column in columns])
    reader = _sent(source.reader(schema))
    return reader, _sent(list(reader.partitions()))


def batches(path: Path, columns: list[str] | None = None, **options: Any) -> list[Any]:
    """Return the record batches that Spark would get."""
    reader, partitions = planned(path, columns, **options)
    return [batch for partition in partitions for batch in _sent(reader).read(partition)]


def rows(path: Path, columns: list[str] | None = None, **options: Any) -> list[dict[str, Any]]:
    """Return the rows that Spark would get."""
    return [row for batch in batches(path, columns, **options) for row in batch.to_pylist()]


def payloads(path: Path, **options: Any) -> dict[int, bytes]:
    """Return payloads by offset; raises where an offset comes twice."""
    found = [(row["offset"], row["payload"]) for row in rows(path, ["offset", "payload"], **options)]
    assert len(dict(found)) == len(found)
    return dict(found)
