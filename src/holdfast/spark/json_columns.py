"""Columns of payloads: JSON is parsed by Spark itself in the JVM; Python decodes only other content types.

Spark's ``from_json`` takes too much for a message: bytes that are no UTF-8 become U+FFFD, of an array the first object
counts, and text that does not fit becomes a struct of nulls. So what fits is checked here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.errors import ConfigError, SerializationError
from holdfast.serializers.codec import Codec
from holdfast.serializers.content_types.json_serializer import JsonSerializer
from holdfast.serializers.headers import CONTENT_ENCODING, CONTENT_TYPE
from holdfast.serializers.registry import Registry

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

CORRUPT_COLUMN = "_corrupt_record"
"""As Spark calls it."""

_PARSED = "__holdfast_parsed"
_REST = "__holdfast_rest"
_WHITE_SPACE = " \t\r\n"
"""Of JSON; Spark alone would trim spaces only."""

_VERSION_MAX = 10**9 - 1


def codec_by_headers() -> Codec[Any]:
    """Return a codec that decodes by the headers of a message, of any schema and version."""
    return Codec(Registry(), version=_VERSION_MAX)


def with_json(
    rows: DataFrame,
    schema: StructType | str,
    *,
    column: str = "body",
    corrupt_column: str = CORRUPT_COLUMN,
    codec: Codec[Any] | None = None,
) -> DataFrame:
    """Return rows of a queue with two more columns: their payloads parsed, and those that cannot be.

    Parameters
    ----------
    rows : pyspark.sql.DataFrame
        With the column ``payload``, and ``headers`` unless every payload is plain JSON.
    schema : StructType or str
        Of the payloads, JSON objects: Spark's own, or as in ``"id bigint, amount double"``.
    column : str
        A struct, null if the payload does not fit; ``select("body.*")`` makes columns of its fields.
    corrupt_column : str
        Binary: the payload if it does not fit, else null.
    codec : Codec or None
        Decodes payloads by their headers: content type, compression, and its upcasts. It runs in Python; plain JSON
        skips it if the codec declares no type. None: a payload that is compressed or no JSON does not fit.

    Returns
    -------
    pyspark.sql.DataFrame
        A payload fits if it is one JSON object of this schema: not empty, in UTF-8, each field missing or of its type.

    Raises
    ------
    ConfigError
        The schema is not that of an object.
    """
    from pyspark.sql import functions
    from pyspark.sql.types import StringType, StructField, StructType

    struct = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    if not isinstance(struct, StructType):
        raise ConfigError(f"the schema is that of a JSON object, as 'id BIGINT, amount DOUBLE', not {schema!r}")
    whole = StructType([*struct.fields, StructField(_REST, StringType())])
    text = _text(rows, codec)
    is_object = functions.ltrim(text, functions.lit(_WHITE_SPACE)).startswith("{")
    value = functions.from_json(functions.when(is_object, text), whole, {"columnNameOfCorruptRecord": _REST})
    parsed = functions.col(_PARSED)
    fits = parsed.isNotNull() & parsed.getField(_REST).isNull()
    return (
        rows.withColumn(_PARSED, value)
        .withColumn(column, functions.when(fits, parsed.dropFields(_REST)))
        .withColumn(corrupt_column, functions.when(~fits, functions.col("payload")))
        .drop(_PARSED)
    )


def _text(rows: DataFrame, codec: Codec[Any] | None) -> Column:
    """Return payloads as JSON; null if there is none."""
    from pyspark.sql import functions

    payload = functions.col("payload")
    plain = functions.try_validate_utf8(payload.cast("string"))
    if "headers" not in rows.columns:
        return plain
    headers = functions.col("headers")
    is_plain = _is_json(headers)
    if codec is None:
        return functions.when(is_plain, plain)
    decode = functions.udf(_Decoder(codec), "string", useArrow=False)  # with Arrow it would need pandas
    if not codec.takes_anything:
        return decode(payload, headers)
    others = decode(functions.when(~is_plain, payload), functions.when(~is_plain, headers))
    return functions.when(is_plain, plain).otherwise(others)


def _is_json(headers: Column) -> Column:
    from pyspark.sql import functions

    def header(name: str) -> Column:
        return functions.coalesce(functions.try_element_at(headers, functions.lit(name)), functions.lit(""))

    media_type = functions.lower(
        functions.trim(functions.split_part(header(CONTENT_TYPE), functions.lit(";"), functions.lit(1)))
    )
    return media_type.isin("", JsonSerializer.content_type) & (header(CONTENT_ENCODING) == "")


class _Decoder:
    """Makes JSON of payloads, in a task."""

    def __init__(self, codec: Codec[Any]) -> None:
        self._codec = codec
        self._encode = JsonSerializer().encode

    def __call__(self, payload: bytes | None, headers: dict[str, str] | None) -> str | None:
        """Return JSON; None if the payload cannot be decoded."""
        if payload is None:
            return None
        try:
            return self._encode(self._codec.decode(bytes(payload), headers or {})).decode()
        except SerializationError as error:
            if isinstance(error.__cause__, ConfigError):  # a package is missing here: no fault of the payload
                raise error.__cause__ from None
            return None
        except (TypeError, ValueError, RecursionError):  # an object that JSON does not have
            return None
