"""Batches as directories ``batch_id=N``: each is replaced as a whole, so a batch that is run again counts once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.arrow.reading.row_maker import QUEUE
from holdfast.errors import ConfigError
from holdfast.spark.json_columns import codec_by_headers, with_json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from holdfast.serializers.codec import Codec

FORMATS = ("parquet", "json", "csv")
MODES = ("overwrite", "error")

_REST = "_payload"
"""The payload of a message that does not fit the schema, as it is in the queue; null of all others."""

_OWN = ("offset", "timestamp", "headers", QUEUE)

_BODY = "__holdfast_body"

_DATE = "date"
_IS_THERE = "PATH_ALREADY_EXISTS"

_TIME_FORMAT = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}
_TEXT = {"json": _TIME_FORMAT, "csv": {**_TIME_FORMAT, "header": "true"}}
"""Options of the writers: Spark's own times end with milliseconds."""


class DirectoryWriter:
    """The function that ``drain`` calls to write each batch into its own directory.

    Parameters
    ----------
    out : str
        A path, or any place that Spark can write to; batches are below it.
    to : "parquet", "json" or "csv"
        The format.
    schema : StructType or None
        Of the payloads, whose fields become columns; the message's own are ``_offset``, ``_timestamp`` and
        ``_headers`` then, ``_queue`` in a drain of many, and ``_payload`` (binary) if a payload does not fit. None: the
        columns of the queue.
    codec : Codec or None
        Decodes the payloads; None: by their headers, without upcasts.
    partition_by : sequence of str
        Columns whose values become directories in that of the batch. ``date`` is the UTC day of the put, and ``queue``
        the queue in a drain of many, unless there is a column of that name.
    mode : "overwrite" or "error"
        What to do with the directory of an earlier attempt: replace it, or raise.

    Attributes
    ----------
    unfit_count : int
        Messages whose payloads did not fit the schema, of all batches that were written.
    """

    def __init__(
        self,
        out: str,
        to: str,
        schema: StructType | None = None,
        *,
        codec: Codec[Any] | None = None,
        partition_by: Sequence[str] = (),
        mode: str = "overwrite",
    ) -> None:
        if to not in FORMATS:
            raise ConfigError(f"a batch is written as {', '.join(FORMATS)}, not {to!r}")
        if mode not in MODES:
            raise ConfigError(f"mode is {' or '.join(map(repr, MODES))}, not {mode!r}")
        self._base = out.rstrip("/")
        self._format = to
        self._schema = schema
        self._codec = codec_by_headers() if codec is None else codec
        self._partition_by = list(partition_by)
        self._mode = mode
        self.unfit_count = 0

    def __call__(self, frame: DataFrame, batch_id: str) -> None:
        """Write a batch, replacing an earlier attempt.

        Raises
        ------
        ConfigError
            There is no such column to divide rows by; or the directory is there and ``mode`` is "error".
        """
        if self._schema is None:
            self._write(frame, batch_id)
            return
        from pyspark.sql import Observation
        from pyspark.sql.functions import col, count

        counted = Observation()
        rows = self._parsed(frame, self._schema).observe(counted, count(col(_REST)).alias("unfit"))
        self._write(rows, batch_id)
        self.unfit_count += counted.get["unfit"]

    def _write(self, rows: DataFrame, batch_id: str) -> None:
        from pyspark.errors import AnalysisException

        path = f"{self._base}/batch_id={batch_id}"
        rows = self._with_queue(self._with_date(rows))
        for name in self._partition_by:
            if name not in rows.columns:
                raise ConfigError(f"rows cannot be divided by {name!r}: they have {', '.join(rows.columns)}")
        if self._format == "csv":
            rows = _flat(rows)
        writer = rows.write.mode(self._mode).format(self._format).options(**_TEXT.get(self._format, {}))
        try:
            (writer.partitionBy(*self._partition_by) if self._partition_by else writer).save(path)
        except AnalysisException as error:
            if error.getCondition() != _IS_THERE:
                raise
            raise ConfigError(f"{path} is there already: remove it, or replace it with mode 'overwrite'") from error

    def _with_date(self, rows: DataFrame) -> DataFrame:
        from pyspark.sql.functions import expr

        if _DATE not in self._partition_by or _DATE in rows.columns:
            return rows
        time = "timestamp" if self._schema is None else "_timestamp"
        return rows.withColumn(_DATE, expr(f"date_from_unix_date(CAST(unix_micros({time}) DIV 86400000000 AS INT))"))

    def _with_queue(self, rows: DataFrame) -> DataFrame:
        from pyspark.sql.functions import col

        is_there = QUEUE in rows.columns or f"_{QUEUE}" not in rows.columns
        return rows if is_there or QUEUE not in self._partition_by else rows.withColumn(QUEUE, col(f"_{QUEUE}"))

    def _parsed(self, frame: DataFrame, schema: StructType) -> DataFrame:
        from pyspark.sql.functions import col

        rows = with_json(frame, schema, column=_BODY, corrupt_column=_REST, codec=self._codec)
        own = (col(name).alias(f"_{name}") for name in _OWN if name in frame.columns)
        return rows.select(f"{_BODY}.*", _REST, *own)


def _flat(rows: DataFrame) -> DataFrame:
    """Return rows as text can hold them: binary values in Base64, nested ones as JSON."""
    from pyspark.sql.functions import base64, col, to_json, translate
    from pyspark.sql.types import ArrayType, BinaryType, MapType, StructType

    def flat(name: str, kind: Any) -> Any:
        column = col(f"`{name}`")
        if isinstance(kind, BinaryType):
            return translate(base64(column), "\r\n", "").alias(name)  # Spark breaks it into lines
        return to_json(column).alias(name) if isinstance(kind, (ArrayType, MapType, StructType)) else column

    return rows.select(*(flat(field.name, field.dataType) for field in rows.schema.fields))


def read_schema(path: Path) -> StructType:
    """Return the schema in a file: as Spark's DDL (``id BIGINT, name STRING``), or as its JSON; raises ConfigError."""
    import json

    from pyspark.sql.types import StructType

    text = path.read_text(encoding="utf-8").strip()
    try:
        schema: StructType = StructType.fromJson(json.loads(text)) if text.startswith("{") else StructType.fromDDL(text)
    except Exception as error:  # any error of Spark's two parsers
        why = str(error).strip().splitlines()[:1]
        raise ConfigError(
            f"{path} is no schema ({''.join(why)}): write it as `id BIGINT, name STRING`, or as schema.json() of Spark"
        ) from None
    return schema
