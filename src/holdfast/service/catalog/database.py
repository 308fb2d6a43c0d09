"""``catalog.db`` itself: writes rows into it, and replaces a file that cannot be used.

The caller holds ``catalog.db.lock``, so of our processes one writes at a time. Other programs may read, and may even
write: a database that is not as expected is rewritten.

There is no connection between two calls. So a deleted file is simply made again.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast import forks
from holdfast.persistence.filesystem.storage import Storage
from holdfast.service.catalog.facts import Row, Rows
from holdfast.service.catalog.schema import (
    APPLICATION_ID,
    SCHEMA_VERSION,
    TABLES,
    VIEWS,
    TableSpec,
    create_schema,
    drop_everything,
)

if TYPE_CHECKING:
    from sqlite_utils import Database

logger = logging.getLogger("holdfast")

BUSY_SECONDS = 1.0
"""How long to wait for another program that has the database locked; a fork waits as long at the most."""

_BESIDE = ("-journal", "-wal", "-shm")
"""What SQLite puts beside a database. Left beside another one it would spoil that."""

# A forked child must not inherit a connection: closing its copy would undo a transaction of the parent's.
_connecting = forks.gate()


class CatalogUnavailableError(Exception):
    """The catalogue cannot be written just now: read-only, full disk, locked by another program."""


class _Unusable(Exception):  # noqa: N818  # never leaves this module
    """The file is not a catalogue, or is damaged. ``is_file``: the file has to make way."""

    def __init__(self, reason: str, *, is_file: bool) -> None:
        super().__init__(reason)
        self.is_file = is_file


class CatalogDatabase:
    """Writes ``catalog.db``.

    Parameters
    ----------
    storage, path
        Where it is, or shall be.
    """

    def __init__(self, storage: Storage, path: Path) -> None:
        self._storage = storage
        self._path = path
        self._is_checked = False

    def exists(self) -> bool:
        """Whether there is a file."""
        return os.path.lexists(self._path)

    def update(self, changed: Mapping[str, Rows], names: set[str]) -> bool:
        """Bring the rows of the changed queues up to date, in one transaction.

        Parameters
        ----------
        changed : mapping of str to Rows
            All rows of these queues.
        names : set of str
            All queues there are; other rows are removed.

        Returns
        -------
        bool
            False if more is missing than that: write all of it with :meth:`write_anew`.

        Raises
        ------
        CatalogUnavailableError
            Nothing was written.
        """
        try:
            with self._open() as db:
                self._check(db)
                present = {str(name) for (name,) in db.conn.execute("select name from queues")}
                if names - present - set(changed):
                    return False
                for name in present - names:
                    for table in TABLES:
                        _bring_up_to_date(db, table, name, [])
                for name, rows in changed.items():
                    for table in TABLES:
                        _bring_up_to_date(db, table, name, rows.get(table, []))
            return True
        except _Unusable as error:
            self._say(error)
            if error.is_file:
                self._rename_damaged()
            return False

    def write_anew(self, queues: Mapping[str, Rows]) -> None:
        """Drop everything, and write all rows of all queues in one transaction. Raises CatalogUnavailableError."""
        for is_last in (False, True):
            try:
                with self._open() as db:
                    if not self._is_ours(db):
                        raise _Unusable("it is the database of another program", is_file=True)
                    drop_everything(db)
                    create_schema(db)
                    for table in TABLES:
                        db.table(table).insert_all(row for rows in queues.values() for row in rows.get(table, []))
                return
            except _Unusable as error:
                if is_last:
                    raise CatalogUnavailableError(f"{self._path} cannot be written anew: {error}") from error
                self._say(error)
                self._rename_damaged()

    # -- Checking the file --------------------------------------------------------------------------------------------

    @contextmanager
    def _open(self) -> Iterator[Database]:
        """Open the database, in one transaction that ends with the block."""
        import sqlite3

        from sqlite_utils import Database

        with _connecting:
            try:
                self._storage.open(self._path, create=True).close()  # mode 0600, and follows no link
                connection = sqlite3.connect(self._path, timeout=BUSY_SECONDS, check_same_thread=False)
            except (OSError, sqlite3.Error) as error:
                raise CatalogUnavailableError(f"{self._path} cannot be opened: {error}") from error
            try:
                connection.execute("pragma synchronous = normal")
                connection.execute("pragma journal_mode = delete")  # one file, which opens everywhere
                connection.execute("begin immediate")
                yield Database(connection, execute_plugins=False)
                connection.commit()
            except sqlite3.Error as error:
                raise self._meaning(error) from error
            finally:
                connection.close()  # undoes uncommitted changes

    def _meaning(self, error: Exception) -> Exception:
        """Return what an error of SQLite is to us: the file's fault, the tables' fault, or that it cannot be now."""
        import sqlite3

        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF  # the higher bits only add detail
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return _Unusable(str(error), is_file=True)
        if code in (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH):
            return _Unusable(str(error), is_file=False)
        return CatalogUnavailableError(f"{self._path} cannot be written: {error}")

    def _check(self, db: Database) -> None:
        """Refuse a database that is not a catalogue of this version; damage is checked once."""
        if not self._is_ours(db):
            raise _Unusable("it is the database of another program", is_file=True)
        if not self._is_checked:
            ((found,), *_) = db.conn.execute("pragma integrity_check(1)").fetchall()
            if found != "ok":
                raise _Unusable(str(found), is_file=True)
            self._is_checked = True
        version = _pragma(db, "user_version")
        if not db.table_names():
            raise _Unusable("it is empty", is_file=False)
        if version != SCHEMA_VERSION:
            raise _Unusable(f"its tables are of version {version}, these are {SCHEMA_VERSION}", is_file=False)
        missing = {*TABLES, *VIEWS}.difference(db.table_names(), db.view_names())
        if missing:
            raise _Unusable(f"it has no {min(missing)}", is_file=False)

    def _is_ours(self, db: Database) -> bool:
        return _pragma(db, "application_id") == APPLICATION_ID or not db.table_names()

    def _say(self, error: _Unusable) -> None:
        logger.warning("%s cannot be used (%s); it is made again from the queues", self._path, error)

    def _rename_damaged(self) -> None:
        """Give the file another name, and remove what belongs to it: it may be a user's file."""
        self._is_checked = False
        try:
            for suffix in _BESIDE:
                with suppress(FileNotFoundError):
                    self._storage.remove(self._path.with_name(self._path.name + suffix))
            with suppress(FileNotFoundError):
                self._storage.rename(self._path, self._path.with_name(self._path.name + ".damaged"))
        except OSError as error:
            raise CatalogUnavailableError(f"{self._path} cannot be renamed: {error}") from error


def _pragma(db: Database, name: str) -> int:
    return int(db.conn.execute(f"pragma {name}").fetchone()[0])


def _bring_up_to_date(db: Database, table: str, queue: str, rows: list[Row]) -> None:
    """Make the rows of one queue in one table those given, and write only what differs."""
    spec = TABLES[table]
    wanted = {_key(spec, row): row for row in rows}
    present = {_key(spec, row): row for row in db.table(table).rows_where(f"{spec.key[0]} = ?", [queue])}
    where = " and ".join(f"{column} = ?" for column in spec.key)
    db.conn.executemany(f"delete from {table} where {where}", present.keys() - wanted.keys())  # noqa: S608  # ours
    changed = [row for key, row in wanted.items() if present.get(key) != row]
    if changed:
        db.table(table).upsert_all(changed, pk=spec.key if len(spec.key) > 1 else spec.key[0])


def _key(spec: TableSpec, row: Row) -> tuple[object, ...]:
    return tuple(row[column] for column in spec.key)
