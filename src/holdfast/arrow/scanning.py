"""A queue as a stream of record batches, for every library that reads Arrow. docs/arrow.md."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.arrow.reading.selection import NO_END, Selection, nanoseconds_of
from holdfast.errors import ConfigError
from holdfast.persistence.filesystem.storage import OsStorage
from holdfast.queue.options.filter_expression import check_filter
from holdfast.serializers.extras import import_extra

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

    from holdfast.arrow.decoding.decoding import Decoding
    from holdfast.arrow.reading.columns import Field
    from holdfast.arrow.reading.row_maker import RowMaker
    from holdfast.arrow.reading.row_reader import RowReader
    from holdfast.arrow.reading.snapshot import Snapshot

Bound = int | dt.datetime | str | None
"""An offset, a time, or the word for all."""

_ADVICE = "scan again, or read what is still there with fail_on_data_loss=False"


def scan(
    path: str | os.PathLike[str],
    *,
    queues: str | None = None,
    columns: Sequence[str] | None = None,
    start: Bound = None,
    stop: Bound = None,
    filter: pc.Expression | str | None = None,  # as in pyarrow.dataset and pyarrow.parquet
    group: str | None = None,
    decode: pa.Schema | Decoding | None = None,
    fail_on_data_loss: bool = True,
) -> pa.RecordBatchReader:
    """Return the messages of a queue, or of many, as a stream of record batches.

    A scan takes nothing, changes nothing and needs no lock. The messages are chosen when it is called: those in the
    data files, up to the high watermark at that moment. They are read as the stream is, about 4 MiB at a time.

    Parameters
    ----------
    path : str or path-like
        The queue; with ``queues`` the directory of a service.
    queues : str or None
        Names of queues, or patterns such as ``"orders-*"``, which commas separate. There is a column ``queue`` then.
    columns : sequence of str or None
        The columns, in this order; None: all. docs/arrow.md lists them.
    start, stop : int, datetime.datetime, str or None
        The first offset, and the one behind the last; or the same by the time of a put, UTC without a zone. None is
        "earliest" and "latest".
    filter : pyarrow.compute.Expression, str or None
        Of the rows in this range, only those for which it is true. It may name any column. A str is an expression in
        the Common Expression Language: docs/filters.md.
    group : str or None
        Only messages that this consumer group has not finished; None: everything in the data files.
    decode : pyarrow.Schema, Decoding or None
        The fields of payloads, which are decoded to a column ``body``; those that do not fit are in ``undecodable``.
    fail_on_data_loss : bool
        Whether damage and removed data files are errors; else they are logged, and the rest is read.

    Returns
    -------
    pyarrow.RecordBatchReader
        Reads once. Its errors are those below too.

    Raises
    ------
    ConfigError
        pyarrow is missing, or the extra ``filter`` for one in a str; or an argument cannot be: an unknown column, a
        filter that is no condition on the columns, a codec that cannot be imported.
    QueueNotFoundError, GroupNotFoundError
        There is none of that name.
    DecodeError
        A payload does not fit, and the column ``undecodable`` was not chosen.
    CorruptionError, RetryableError, StorageError
        Messages cannot be read, their data file was removed after the call, or the disk refuses.
    """
    import_extra("pyarrow", "arrow", "Arrow")
    import pyarrow as pa

    from holdfast.arrow.reading.columns import named_fields, schema_of
    from holdfast.arrow.reading.row_reader import RowReader

    whole = _row_maker(queues, decode)
    chosen = named_fields(columns, whole.fields)
    expression = check_filter(filter) if isinstance(filter, str) else None
    condition = None if isinstance(filter, str) else filter
    rows = _narrowed(whole, chosen, condition)
    selection = replace(_selection(path, start, stop, group), filter=expression)
    reader = RowReader(selection, rows, fail_on_data_loss, "fail_on_data_loss=False", _ADVICE)
    found = _projected(_planned(reader, queues), [name for name, _ in chosen], condition)
    return pa.RecordBatchReader.from_batches(schema_of(chosen), found)


def _row_maker(queues: str | None, decode: pa.Schema | Decoding | None) -> RowMaker:
    """Return what makes every column that there is."""
    from holdfast.arrow.reading.columns import FIELDS
    from holdfast.arrow.reading.row_maker import RowMaker, decoder_of, more_fields

    decoder = decoder_of(decode)
    return RowMaker((*FIELDS, *more_fields(has_queue=queues is not None, decoder=decoder)), decoder)


def _narrowed(rows: RowMaker, chosen: Sequence[Field], condition: pc.Expression | None) -> RowMaker:
    """Return what makes the columns that are chosen, and those that a condition names."""
    needed = {*(name for name, _ in chosen), *(() if condition is None else _columns_of(condition, rows.fields))}
    return replace(rows, fields=tuple(each for each in rows.fields if each[0] in needed))


def _planned(reader: RowReader, queues: str | None) -> Iterator[Any]:
    """Plan a read; return its rows."""
    from holdfast.arrow.reading.many_queues import take_snapshots

    snapshots = take_snapshots(OsStorage(), reader.selection, queues)
    for damage in (damage for snapshot in snapshots for damage in snapshot.missing):
        reader.lose(damage)
    return _rows(reader, snapshots)


def _rows(reader: RowReader, snapshots: Sequence[Snapshot]) -> Iterator[Any]:
    """Yield the rows of one queue after the other."""
    for each in snapshots:
        yield from reader.read(each.root, each.queue_id, each.parts, each.deliveries)


def _projected(batches: Iterator[Any], names: list[str], condition: pc.Expression | None) -> Iterator[Any]:
    """Yield the chosen rows and columns; no empty batch."""
    import pyarrow as pa

    for batch in batches:
        if condition is None:
            yield batch.select(names)
            continue
        rows = pa.Table.from_batches([batch]).filter(condition).select(names)  # batches: not before pyarrow 17
        yield from (each for each in rows.to_batches() if each.num_rows)


def _columns_of(condition: pc.Expression, fields: Sequence[Field]) -> list[str]:
    """Return the columns that a condition names: those without which it is none."""
    import pyarrow as pa

    from holdfast.arrow.reading.columns import schema_of

    try:
        schema_of(fields).empty_table().filter(condition)
    except (pa.ArrowException, TypeError) as error:
        why = str(error).splitlines()[0]
        raise ConfigError(f"the filter is no condition on the columns of a queue: {why}") from error

    def is_needed(name: str) -> bool:
        try:
            schema_of([each for each in fields if each[0] != name]).empty_table().filter(condition)
        except pa.ArrowException:
            return True
        return False

    return [name for name, _ in fields if is_needed(name)]


def _selection(path: str | os.PathLike[str], start: Bound, stop: Bound, group: str | None) -> Selection:
    offset_start, timestamp_start_ns = _bound("start", start, "earliest", 0)
    offset_end, timestamp_end_ns = _bound("stop", stop, "latest", NO_END)
    root = Path(os.path.abspath(path))
    return Selection(root, offset_start, offset_end, timestamp_start_ns, timestamp_end_ns, group)


def _bound(name: str, value: Bound, word: str, default: int) -> tuple[int, int]:
    """Return a bound as an offset, and as nanoseconds since the epoch."""
    if value is None or value == word:
        return default, default
    if isinstance(value, dt.datetime):
        return default, nanoseconds_of(value)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value, default
    raise ConfigError(f"{name} is an offset from 0, a datetime or {word!r}, not {value!r}")
