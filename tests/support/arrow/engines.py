"""The engines of a drain, called alike: a function gets each batch as an Arrow table. Neither needs Java."""

from __future__ import annotations

from typing import Any

import pytest

from support.spark.drains import TablesForSpark


class ArrowTables:
    """The engine without Spark."""

    def drainer(self, queue: Any, fn: Any, **options: Any) -> Any:
        """Return a drainer."""
        from holdfast.arrow import ArrowDrainer

        return ArrowDrainer(queue, _given_tables(fn), **options)

    def drain(self, queue: Any, fn: Any, **options: Any) -> Any:
        """Drain; return the report."""
        from holdfast.arrow import drain

        return drain(queue, _given_tables(fn), **options)


class SparkTables:
    """The engine of Spark, with small batches, which the driver reads itself."""

    def drainer(self, queue: Any, fn: Any, **options: Any) -> Any:
        """Return a drainer."""
        from holdfast.spark import SparkDrainer

        spark: Any = TablesForSpark()
        return SparkDrainer(queue, spark, fn, **options)

    def drain(self, queue: Any, fn: Any, **options: Any) -> Any:
        """Drain; return the report."""
        from holdfast.spark import drain

        spark: Any = TablesForSpark()
        return drain(queue, spark, fn, **options)


def _given_tables(fn: Any) -> Any:
    return lambda reader, batch_id: fn(reader.read_all(), batch_id)


ENGINES = [
    pytest.param(ArrowTables(), id="arrow", marks=pytest.mark.extra("arrow")),
    pytest.param(SparkTables(), id="spark", marks=pytest.mark.extra("spark")),
]
"""To parametrize a test with."""
