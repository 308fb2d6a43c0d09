"""The files of one batch that is being written: one for each partition, in a directory of their own."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from holdfast.arrow.writing.formats import FORMATS, FormatWriter, plain
from holdfast.arrow.writing.hive_partitions import divided, with_date
from holdfast.arrow.writing.storage_file import StorageFile
from holdfast.errors import ConfigError
from holdfast.persistence.filesystem.storage import Storage

GROUP_BYTES = 64 * 2**20
"""Rows are collected up to this: a row group of Parquet, and what is in memory at once."""

PARTITIONS_MAX = 500
"""Each has an open file, and a process may open about a thousand."""

SUCCESS = "_SUCCESS"
"""An empty file that says that a directory is complete, as Spark's own does."""


class BatchFiles:
    """The files of one batch.

    Parameters
    ----------
    storage, directory
        Where to; the directory is made.
    format_name : str
        A key of ``FORMATS``.
    partition_by : tuple of str
        Columns whose values become directories.
    """

    def __init__(self, storage: Storage, directory: Path, format_name: str, partition_by: tuple[str, ...]) -> None:
        self._storage = storage
        self._directory = directory
        self._format = format_name
        self._partition_by = partition_by
        self._open: dict[tuple[str, ...], tuple[FormatWriter, StorageFile]] = {}
        self._directories: dict[Path, None] = {}
        self._make(directory)

    def write_all(self, batches: Any) -> None:
        """Write the rows of a ``pyarrow.RecordBatchReader``; ConfigError if files would not have them all."""
        self._check(with_date(batches.schema.empty_table(), self._partition_by).column_names)
        collected: list[Any] = []
        size = 0
        for batch in batches:
            collected.append(batch)
            size += batch.nbytes
            if size >= GROUP_BYTES:
                self._write(pa.Table.from_batches(collected))
                collected, size = [], 0
        if collected or not (self._open or self._partition_by):  # without rows there is a file that has the columns
            self._write(pa.Table.from_batches(collected, batches.schema))

    def _check(self, names: list[str]) -> None:
        """Raise ConfigError if rows with these columns cannot be in files that are divided so."""
        for name in self._partition_by:
            if name not in names:
                raise ConfigError(f"rows cannot be divided by {name!r}: they have {', '.join(names)}")
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigError(f"rows have a column {twice[0]!r} twice, and a file may lose one: rename it")
        if not set(names) - set(self._partition_by):
            raise ConfigError(
                "files need a column besides those that divide the rows: without one they have no rows; add one, or "
                "divide by fewer"
            )

    def _write(self, table: Any) -> None:
        table = plain(with_date(table, self._partition_by))
        for names, rows in divided(table, self._partition_by):
            self._writer(names, rows.schema).write(rows)

    def _writer(self, names: tuple[str, ...], schema: Any) -> FormatWriter:
        if names not in self._open:
            if len(self._open) == PARTITIONS_MAX:
                raise ConfigError(
                    f"a batch has more than {PARTITIONS_MAX} values of {', '.join(self._partition_by)}: divide it by a "
                    "column with fewer, or take smaller batches"
                )
            directory = self._directory
            for name in names:
                directory /= name
                self._make(directory)
            file = StorageFile(self._storage, directory / f"part-0.{self._format}")
            try:
                self._open[names] = FORMATS[self._format](file, schema), file
            except BaseException:
                file.close()
                raise
        return self._open[names][0]

    def _make(self, directory: Path) -> None:
        if directory not in self._directories:
            self._storage.make_directory(directory)
            self._directories[directory] = None

    def finish(self) -> None:
        """Make everything durable, but the name of the directory itself."""
        for writer, file in self._open.values():
            writer.close()
            file.sync()
        StorageFile(self._storage, self._directory / SUCCESS).close()
        for directory in reversed(self._directories):
            self._storage.sync_directory(directory)

    def close(self) -> None:
        """Close the files."""
        for writer, file in self._open.values():
            with suppress(Exception):  # of files that could not be written
                writer.close()
            file.close()
