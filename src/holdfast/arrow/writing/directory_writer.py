"""Batches as directories ``batch_id=N``: each is replaced as a whole, so a batch that is run again counts once."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from holdfast.errors import ConfigError
from holdfast.persistence.filesystem.directories import make_parents, sync_name
from holdfast.persistence.filesystem.layout import check_name
from holdfast.persistence.filesystem.storage import OsStorage, Storage, storage_errors
from holdfast.serializers.extras import import_extra

if TYPE_CHECKING:
    import pyarrow as pa

    from holdfast.arrow.writing.batch_files import BatchFiles

FORMATS = ("parquet", "json", "csv")
MODES = ("overwrite", "error")


class DirectoryWriter:
    """The function that ``drain`` calls to write each batch into its own directory.

    A batch is written beside its place, synced, and renamed. So ``batch_id=N`` is complete whenever it is there, and
    an earlier attempt is replaced as a whole.

    Parameters
    ----------
    out : str or path-like
        A directory of this machine; it is made if it is missing. Batches are below it.
    format : "parquet", "json" or "csv"
        The format of files; "json" is a line for each row. Binary values are Base64 in "json" and "csv".
    partition_by : sequence of str
        Columns whose values become directories, as in ``date=2026-01-31/``. ``date`` is the UTC day of the column
        ``timestamp``, unless there is a column of that name.
    mode : "overwrite" or "error"
        What to do with the directory of an earlier attempt: replace it, or raise.
    storage : Storage or None
        Other files than those of the operating system, for tests.
    """

    def __init__(
        self,
        out: str | os.PathLike[str],
        format: Literal["parquet", "json", "csv"] = "parquet",  # as in Spark and pyarrow.dataset
        *,
        partition_by: Sequence[str] = (),
        mode: Literal["overwrite", "error"] = "overwrite",
        storage: Storage | None = None,
    ) -> None:
        import_extra("pyarrow", "arrow", "Arrow")
        if format not in FORMATS:
            raise ConfigError(f"a batch is written as {', '.join(FORMATS)}, not {format!r}")
        if mode not in MODES:
            raise ConfigError(f"mode is {' or '.join(map(repr, MODES))}, not {mode!r}")
        if isinstance(partition_by, str):
            raise ConfigError(f"partition_by is a list of columns, not {partition_by!r}")
        if len(set(partition_by)) < len(partition_by):
            raise ConfigError(f"partition_by has a column twice: {', '.join(partition_by)}")
        if "://" in os.fspath(out):
            raise ConfigError(f"{out} is no directory of this machine; the drain of Spark writes to other places")
        self._base = Path(os.path.abspath(out))
        self._format = format
        self._partition_by = tuple(partition_by)
        self._mode = mode
        self._storage = OsStorage() if storage is None else storage

    def __call__(self, batches: pa.RecordBatchReader, batch_id: str) -> None:
        """Write a batch; when this returns, it is durable under its name.

        Parameters
        ----------
        batches : pyarrow.RecordBatchReader
            The rows: those that a drain gives, or what was made of them.
        batch_id : str
            The name of the batch.

        Raises
        ------
        ConfigError
            There is no such column to divide rows by, or a batch has too many values of it; or the directory is there
            and ``mode`` is "error". Or files would not have all of the rows: docs/arrow.md, "Files".
        DiskFullError, StorageError
            The disk refuses. The earlier directory is there, or none.
        """
        from holdfast.arrow.writing.batch_files import BatchFiles

        name = f"batch_id={check_name(batch_id, 'batch')}"
        place, new = self._base / name, self._base / f".{name}.new"
        with storage_errors("writing a batch", place):
            make_parents(self._storage, new)
            if self._mode == "error" and _exists(self._storage, place):
                raise ConfigError(f"{place} is there already: remove it, or replace it with mode 'overwrite'")
            _remove_tree(self._storage, new)
            try:
                files = BatchFiles(self._storage, new, self._format, self._partition_by)
                self._write(files, batches)
            except BaseException:
                with suppress(OSError):
                    _remove_tree(self._storage, new)
                raise
            replaced = _replaced(self._storage, place)
            if _exists(self._storage, place):
                replaced.append(_free_name(place, replaced))
                self._storage.rename(place, replaced[-1])
            self._storage.rename(new, place)
            sync_name(self._storage, place)
            for each in replaced:  # not before: a loss of power may give one of them its place back
                _remove_tree(self._storage, each)

    def _write(self, files: BatchFiles, batches: Any) -> None:
        try:
            files.write_all(batches)
            files.finish()
        finally:
            files.close()


def _exists(storage: Storage, path: Path) -> bool:
    return path.name in storage.list(path.parent)


def _replaced(storage: Storage, place: Path) -> list[Path]:
    """Return the directories that attempts at a batch have moved out of its place, and not removed."""
    names = re.compile(rf"\.{re.escape(place.name)}\.old[0-9]*")
    return [place.with_name(name) for name in storage.list(place.parent) if names.fullmatch(name)]


def _free_name(place: Path, replaced: Sequence[Path]) -> Path:
    """Return the name that the directory of a batch gets while another one takes its place."""
    names = (place.with_name(f".{place.name}.old{number or ''}") for number in range(len(replaced) + 1))
    return next(name for name in names if name not in replaced)


def _remove_tree(storage: Storage, path: Path) -> None:
    """Remove a directory with all that is in it, if there is one; links are removed, and not followed."""
    try:
        storage.directory_status(path)
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        storage.remove(path)  # a file, or a link
        return
    for name in storage.list(path):
        _remove_tree(storage, path / name)
    storage.remove_directory(path)
