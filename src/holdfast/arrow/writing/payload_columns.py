"""Batches whose payloads are columns: the fields of their bodies, and ``_payload`` of those that do not fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.arrow.decoding.decoding import BODY, UNDECODABLE
from holdfast.arrow.reading.columns import FIELDS
from holdfast.arrow.reading.row_maker import QUEUE
from holdfast.arrow.writing.hive_partitions import DATE
from holdfast.errors import ConfigError

_REST = "_payload"
"""The payload of a message that does not fit the schema, as it is in the queue; null of all others."""

_OWN = ("offset", "timestamp", "headers")
"""Columns of a message that are beside its fields, with a ``_`` in front; in a drain of many queues, its queue too."""


class PayloadColumns:
    """The function of a drain that writes payloads as columns: those that the Spark engine of the command writes.

    Parameters
    ----------
    write : callable
        Writes a batch: takes a ``pyarrow.RecordBatchReader`` and its id, as ``DirectoryWriter``.
    schema : pyarrow.Schema
        The fields of payloads.
    partition_by : sequence of str
        The columns by which ``write`` divides rows: among them, ``date`` is the day of the put, and ``queue`` the queue
        of a drain of many, unless it is a field.
    has_queue : bool
        Whether it is a drain of many queues.

    Attributes
    ----------
    columns : tuple of str
        The columns that the drain has to read.
    unfit_count : int
        Messages whose payloads did not fit the schema, of all batches that were written.

    Raises
    ------
    ConfigError
        A field has the name of a column that is beside them.
    """

    def __init__(
        self,
        write: Callable[[Any, str], object],
        schema: Any,
        partition_by: Sequence[str] = (),
        *,
        has_queue: bool = False,
    ) -> None:
        self._own = (*_OWN, QUEUE) if has_queue else _OWN
        types = {**dict(FIELDS), QUEUE: pa.string()}
        own = {_REST: pa.binary(), **{f"_{name}": types[name] for name in self._own}}
        for name in own:
            if name in schema.names:
                raise ConfigError(f"the schema has a field {name!r}, which is a column of every message: rename it")
        made = {DATE: ("timestamp", pa.date32()), **({QUEUE: (QUEUE, pa.string())} if has_queue else {})}
        self._divides_by = {
            name: made for name, made in made.items() if name in partition_by and name not in schema.names
        }
        more = {name: kind for name, (_, kind) in self._divides_by.items()}
        self._schema = pa.schema([*schema, *(own | more).items()])
        self._write = write
        self.columns = (BODY, UNDECODABLE, *self._own)
        self.unfit_count = 0

    def __call__(self, batches: Any, batch_id: str) -> None:
        """Write a batch. Raises as ``write``."""
        unfit_counts: list[int] = []
        rows = pa.RecordBatchReader.from_batches(self._schema, self._rows(batches, unfit_counts))
        self._write(rows, batch_id)
        self.unfit_count += sum(unfit_counts)

    def _rows(self, batches: Any, unfit_counts: list[int]) -> Iterator[Any]:
        for batch in batches:
            rest = batch.column(UNDECODABLE)
            unfit_counts.append(len(rest) - rest.null_count)
            columns = [*batch.column(BODY).flatten(), pc.struct_field(rest, "payload")]
            columns += [batch.column(name) for name in self._own]
            columns += [pc.cast(batch.column(name), kind) for name, kind in self._divides_by.values()]
            yield pa.RecordBatch.from_arrays(columns, schema=self._schema)
