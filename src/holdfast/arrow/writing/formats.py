"""The formats of written files: Parquet, JSON lines, CSV.

JSON lines and CSV have no binary values: these are written in Base64. A column of maps or other nested values is JSON
in a CSV file. Maps are objects, whose keys are strings. JSON lines leave nulls out, as Spark does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from holdfast.arrow.writing.map_objects import objects_of
from holdfast.arrow.writing.storage_file import StorageFile
from holdfast.errors import ConfigError

_COMPRESSION = "snappy"
"""As Spark's own."""


class FormatWriter(Protocol):
    """Writes one file."""

    def write(self, table: Any) -> None:
        """Append the rows of a ``pyarrow.Table``."""

    def close(self) -> None:
        """Write what belongs to the end; the file itself stays open."""


class ParquetFile:
    """One row group for each table."""

    def __init__(self, file: StorageFile, schema: Any) -> None:
        self._writer = pq.ParquetWriter(file, schema, compression=_COMPRESSION)

    def write(self, table: Any) -> None:
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))

    def close(self) -> None:
        self._writer.close()


class JsonFile:
    """One object for each line."""

    def __init__(self, file: StorageFile, schema: Any) -> None:
        self._file = file
        self._objects = {field.name: made for field in schema if (made := objects_of(field.type)) is not None}
        self._encoder = msgspec.json.Encoder()

    def write(self, table: Any) -> None:
        for batch in table.to_batches():
            lines = bytearray()
            for row in batch.to_pylist():
                for name, made in self._objects.items():
                    row[name] = made(row[name])
                lines += self._encoder.encode({name: value for name, value in row.items() if value is not None})
                lines += b"\n"
            self._file.write(bytes(lines))

    def close(self) -> None:
        """Nothing is left to write."""


class CsvFile:
    """A line of names, then a line for each row."""

    def __init__(self, file: StorageFile, schema: Any) -> None:
        self._schema = pa.schema([pa.field(each.name, _csv_type(each.type)) for each in schema])
        self._writer = pyarrow.csv.CSVWriter(file, self._schema)
        self._encoder = msgspec.json.Encoder()

    def write(self, table: Any) -> None:
        columns = [
            column if column.type == field.type else self._texts(column, field.type)
            for column, field in zip(map(_values, table.columns), self._schema, strict=True)
        ]
        if len(columns) == 1 and columns[0].null_count:
            name = self._schema.names[0]
            raise ConfigError(
                f"the column {name!r} has a null, and is the only one of a CSV file: its line would be empty, which "
                "readers skip; add a column, or take another format"
            )
        self._writer.write_table(pa.Table.from_arrays(columns, schema=self._schema))

    def _texts(self, column: Any, kind: Any) -> Any:
        values = column.to_pylist()
        if (made := objects_of(column.type)) is not None:
            values = [made(each) for each in values]
        return pa.array(map(self._text, values), kind)

    def _text(self, value: Any) -> str | None:
        if value is None:
            return None
        if isinstance(value, bytes):
            return str(msgspec.to_builtins(value))
        return self._encoder.encode(value).decode()

    def close(self) -> None:
        self._writer.close()


def _csv_type(kind: Any) -> Any:
    if pa.types.is_dictionary(kind):
        return _csv_type(kind.value_type)
    return pa.string() if pa.types.is_nested(kind) or any(is_of(kind) for is_of in _BINARY) else kind


_BINARY = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)


def _values(column: Any) -> Any:
    """Return a column of a dictionary as one of its values: CSV has no dictionaries."""
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def plain(table: Any) -> Any:
    """Return rows without columns that pyarrow cannot write or divide: views, and runs of one value."""
    for place, column in enumerate(table.columns):
        values = _plain(column)
        if values is not column:
            table = table.set_column(place, table.schema.field(place).with_type(values.type), values)
    return table


def _plain(column: Any) -> Any:
    if pa.types.is_run_end_encoded(column.type):
        return _plain(pc.run_end_decode(column))
    if pa.types.is_string_view(column.type):
        return column.cast(pa.string())
    return column.cast(pa.binary()) if pa.types.is_binary_view(column.type) else column


FORMATS: dict[str, Callable[[StorageFile, Any], FormatWriter]] = {
    "parquet": ParquetFile,
    "json": JsonFile,
    "csv": CsvFile,
}
"""What makes a writer of a file and a schema, by the name of the format, which is the ending of file names too."""
