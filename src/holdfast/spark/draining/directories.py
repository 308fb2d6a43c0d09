"""Batches as directories ``batch_id=N``: each is replaced as a whole, so a batch that is run again counts once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

FORMATS = ("parquet", "json")

_REST = "_payload"
"""The payload of a message that is not JSON, or not of the schema; null of all others."""


def directory_writer(out: str, to: str, schema: StructType | None = None) -> Callable[[DataFrame, str], None]:
    """Return what ``drain`` calls to write each batch into a directory of its own below ``out``.

    Parameters
    ----------
    out : str
        A path, or whatever Spark can write to.
    to : "parquet" or "json"
        The format.
    schema : StructType or None
        Of JSON payloads, whose fields become columns; the message's own are ``_offset``, ``_timestamp`` and
        ``_headers`` then, and ``_payload`` where a payload does not fit. None: the columns of the queue.
    """
    if to not in FORMATS:
        raise ConfigError(f"a batch is written as {' or '.join(FORMATS)}, not {to!r}")
    base = out.rstrip("/")

    def write(frame: DataFrame, batch_id: str) -> None:
        rows = frame if schema is None else _parsed(frame, schema)
        rows.write.mode("overwrite").format(to).save(f"{base}/batch_id={batch_id}")

    return write


def read_schema(path: Path) -> StructType:
    """Return the schema in a file: as Spark's DDL (``id BIGINT, name STRING``), or as its JSON; raises ConfigError."""
    import json

    from pyspark.sql.types import StructType

    text = path.read_text(encoding="utf-8").strip()
    try:
        schema: StructType = StructType.fromJson(json.loads(text)) if text.startswith("{") else StructType.fromDDL(text)
    except Exception as error:  # whatever Spark's two parsers raise
        why = str(error).strip().splitlines()[:1]
        raise ConfigError(
            f"{path} is no schema ({''.join(why)}): write it as `id BIGINT, name STRING`, or as schema.json() of Spark"
        ) from None
    return schema


def _parsed(frame: DataFrame, schema: StructType) -> DataFrame:
    from pyspark.sql.functions import col, from_json
    from pyspark.sql.types import StringType, StructField, StructType

    whole = StructType([*schema.fields, StructField(_REST, StringType())])
    value = from_json(col("payload").cast("string"), whole, {"columnNameOfCorruptRecord": _REST})
    parsed: DataFrame = frame.select(
        value.alias("value"), *(col(name).alias(f"_{name}") for name in ("offset", "timestamp", "headers"))
    ).select("value.*", "_offset", "_timestamp", "_headers")
    return parsed
