"""Columns of JSON payloads: parsed by Spark itself in the JVM, none of it row by row in Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


def with_json(rows: DataFrame, schema: StructType | str, *, column: str = "body") -> DataFrame:
    """Return rows of a queue with their payloads parsed in one more column.

    Parameters
    ----------
    rows : pyspark.sql.DataFrame
        With the column ``payload``.
    schema : StructType or str
        Of the payloads: Spark's own, or as in ``"id bigint, amount double"``.
    column : str
        The new column, a struct; ``select("body.*")`` makes columns of its fields.

    Returns
    -------
    pyspark.sql.DataFrame
        A payload that is not JSON of this schema has null there, as with Spark's ``from_json``.
    """
    from pyspark.sql import functions

    text = functions.col("payload").cast("string")
    return rows.withColumn(column, functions.from_json(text, schema))
