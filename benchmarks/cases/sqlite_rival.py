"""The queue that everybody could make in an afternoon: one SQLite table, as durable as ``every_commit()``."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from benchmarks.measuring.contestant import Body, Contestant
from benchmarks.measuring.load import Load

LABEL = "sqlite3, WAL, synchronous=FULL"


def _connect(folder: Path) -> sqlite3.Connection:
    """Open the table of a round, and make it where it is missing."""
    connection = sqlite3.connect(folder / "rival.sqlite", isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("CREATE TABLE IF NOT EXISTS queue (id INTEGER PRIMARY KEY, payload BLOB NOT NULL)")
    return connection


def put(load: Load) -> Contestant:
    """Insert one by one, each a transaction."""

    @contextmanager
    def stage(folder: Path) -> Iterator[Body]:
        with closing(_connect(folder)) as connection:

            def body() -> None:
                for _ in range(load.count):
                    connection.execute("INSERT INTO queue (payload) VALUES (?)", (load.payload,))

            yield body
            assert connection.execute("SELECT count(*) FROM queue").fetchone() == (load.count,)

    return Contestant(LABEL, stage)


def get(load: Load) -> Contestant:
    """Take the oldest and delete it, one by one, each a transaction."""

    @contextmanager
    def stage(folder: Path) -> Iterator[Body]:
        with closing(_connect(folder)) as connection:
            connection.execute("BEGIN")
            rows = [(load.payload,)] * load.count
            connection.executemany("INSERT INTO queue (payload) VALUES (?)", rows)
            connection.execute("COMMIT")

            def body() -> None:
                for _ in range(load.count):
                    connection.execute("BEGIN IMMEDIATE")
                    oldest = connection.execute("SELECT id, payload FROM queue ORDER BY id LIMIT 1").fetchone()
                    connection.execute("DELETE FROM queue WHERE id = ?", oldest[:1])
                    connection.execute("COMMIT")

            yield body
            assert connection.execute("SELECT count(*) FROM queue").fetchone() == (0,)

    return Contestant(LABEL, stage)
