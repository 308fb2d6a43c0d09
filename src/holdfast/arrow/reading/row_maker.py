"""Makes the record batches that a read asks for: the columns of messages, the name of their queue, and their bodies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from holdfast.arrow.decoding.decoding import BODY, UNDECODABLE, Decoding
from holdfast.arrow.reading.columns import Deliveries, Field, named_fields, record_batch, schema_of
from holdfast.arrow.reading.frame_walk import Walked
from holdfast.errors import ConfigError, DecodeError

if TYPE_CHECKING:  # a read that decodes nothing needs no serializers
    from holdfast.arrow.decoding.decoder import BodyDecoder

QUEUE = "queue"
"""The column of a read of many queues."""

UNDECODABLE_TYPE = pa.struct([("payload", pa.binary()), ("reason", pa.string())])
"""The column of what does not fit: the payload, byte for byte, and why."""

_MADE_HERE = frozenset({QUEUE, BODY, UNDECODABLE})


@dataclass(frozen=True, slots=True)
class RowMaker:
    """Makes rows. Can be pickled.

    Attributes
    ----------
    fields : tuple of (str, pyarrow.DataType)
        Names and types of the columns.
    decoder : BodyDecoder or None
        Makes the columns ``body`` and ``undecodable``, if these are among the columns.
    """

    fields: tuple[Field, ...]
    decoder: BodyDecoder | None = None

    def batch(self, walked: Walked, deliveries: Deliveries, queue: str) -> Any:
        """Return messages of a queue as a ``pyarrow.RecordBatch``.

        Raises
        ------
        DecodeError
            A message cannot be decoded, and there is no column ``undecodable``.
        UnsupportedVersionError
            As :func:`record_batch`.
        """
        names = [name for name, _ in self.fields]
        if _MADE_HERE.isdisjoint(names):
            return record_batch(self.fields, walked, deliveries)
        plain = [field for field in self.fields if field[0] not in _MADE_HERE]
        needed = plain if self.decoder is None or "payload" in names else [*plain, *named_fields(["payload"])]
        batch = record_batch(needed, walked, deliveries)
        made = dict(zip(batch.schema.names, batch.columns, strict=True))
        if QUEUE in names:
            made[QUEUE] = pa.repeat(queue, len(walked))
        if self.decoder is not None:
            headers = walked.headers.get
            encoded = [headers(place, b"") for place in range(len(walked))]
            made[BODY], reasons = self.decoder.decode(made["payload"].to_pylist(), encoded)
            if reasons and UNDECODABLE not in names:
                raise _error(reasons, walked, queue)
            made[UNDECODABLE] = _undecodable(made["payload"], reasons)
        return pa.RecordBatch.from_arrays([made[name] for name in names], schema=schema_of(self.fields))


def _undecodable(payloads: Any, reasons: dict[int, str]) -> Any:
    if not reasons:
        return pa.nulls(len(payloads), UNDECODABLE_TYPE)
    rows: list[dict[str, Any] | None] = [None] * len(payloads)
    for place, reason in reasons.items():
        rows[place] = {"payload": payloads[place].as_py(), "reason": reason}
    return pa.array(rows, UNDECODABLE_TYPE)


def _error(reasons: dict[int, str], walked: Walked, queue: str) -> DecodeError:
    place = min(reasons)
    return DecodeError(
        f"message {walked.offsets[place]} of {queue} cannot be decoded: {reasons[place]}. With a column "
        f"{UNDECODABLE!r} such messages are rows, with payload and reason"
    )


def more_fields(*, has_queue: bool, decoder: BodyDecoder | None) -> tuple[Field, ...]:
    """Return the columns that a read has besides those of every queue."""
    fields: tuple[Field, ...] = ((QUEUE, pa.string()),) if has_queue else ()
    return fields if decoder is None else (*fields, (BODY, decoder.kind), (UNDECODABLE, UNDECODABLE_TYPE))


def decoder_of(decode: Decoding | Any) -> BodyDecoder | None:
    """Return the decoder of an argument: a Decoding, a schema alone, or None.

    Raises
    ------
    ConfigError
        As :class:`BodyDecoder`, or the schema is none of pyarrow's.
    """
    if decode is None:
        return None
    decoding = decode if isinstance(decode, Decoding) else Decoding(decode)
    schema = decoding.schema
    if isinstance(schema, pa.Schema):
        schema = pa.struct(list(schema))
    if not isinstance(schema, pa.DataType):
        raise ConfigError(f"decode is a pyarrow.Schema, or a Decoding with one; not {schema!r}")
    from holdfast.arrow.decoding.decoder import BodyDecoder

    return BodyDecoder(schema, decoding)
