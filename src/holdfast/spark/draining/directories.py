"""Batches as directories ``batch_id=N``: each is replaced as a whole, so a batch that is run again counts once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import ConfigError
from holdfast.spark.json_columns import codec_by_headers, with_json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from holdfast.serializers.codec import Codec

FORMATS = ("parquet", "json")

_REST = "_payload"
"""The payload of a message that does not fit the schema, as it is in the queue; null of all others."""

_BODY = "__holdfast_body"


class DirectoryWriter:
    """The function that ``drain`` calls to write each batch into its own directory.

    Parameters
    ----------
    out : str
        A path, or any place that Spark can write to; batches are below it.
    to : "parquet" or "json"
        The format.
    schema : StructType or None
        Of the payloads, whose fields become columns; the message's own are ``_offset``, ``_timestamp`` and
        ``_headers`` then, and ``_payload`` (binary) if a payload does not fit. None: the columns of the queue.
    codec : Codec or None
        Decodes the payloads; None: by their headers, without upcasts.

    Attributes
    ----------
    unfit_count : int
        Messages whose payloads did not fit the schema, of all batches that were written.
    """

    def __init__(self, out: str, to: str, schema: StructType | None = None, *, codec: Codec[Any] | None = None) -> None:
        if to not in FORMATS:
            raise ConfigError(f"a batch is written as {' or '.join(FORMATS)}, not {to!r}")
        self._base = out.rstrip("/")
        self._format = to
        self._schema = schema
        self._codec = codec_by_headers() if codec is None else codec
        self.unfit_count = 0

    def __call__(self, frame: DataFrame, batch_id: str) -> None:
        """Write a batch, replacing an earlier attempt."""
        path = f"{self._base}/batch_id={batch_id}"
        if self._schema is None:
            frame.write.mode("overwrite").format(self._format).save(path)
            return
        from pyspark.sql import Observation
        from pyspark.sql.functions import col, count

        counted = Observation()
        rows = self._parsed(frame, self._schema).observe(counted, count(col(_REST)).alias("unfit"))
        rows.write.mode("overwrite").format(self._format).save(path)
        self.unfit_count += counted.get["unfit"]

    def _parsed(self, frame: DataFrame, schema: StructType) -> DataFrame:
        from pyspark.sql.functions import col

        rows = with_json(frame, schema, column=_BODY, corrupt_column=_REST, codec=self._codec)
        own = (col(name).alias(f"_{name}") for name in ("offset", "timestamp", "headers"))
        return rows.select(f"{_BODY}.*", _REST, *own)


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
