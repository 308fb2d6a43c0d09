"""What a search has covered, so that a long one can be broken off and taken up again: a small SQLite database.

Distinct states are counted by 63 bits of their digests: among 20,000,000 of them the chance that two are taken for one
is one in forty thousand.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterator
from pathlib import Path

from proof.crash_states.explorer import Tally

TABLES = """
CREATE TABLE IF NOT EXISTS state (digest INTEGER PRIMARY KEY);
CREATE TABLE IF NOT EXISTS task (name TEXT PRIMARY KEY, workloads INTEGER, crashes INTEGER, recoveries INTEGER,
                                 works INTEGER, seconds REAL);
CREATE TABLE IF NOT EXISTS code (checksum INTEGER PRIMARY KEY);
"""


class Ledger:
    """Tasks that are done, and the states they have seen.

    Parameters
    ----------
    path : Path or None
        Of the database; None: in memory.
    """

    def __init__(self, path: Path | None) -> None:
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        self._connection = sqlite3.connect(path or ":memory:")
        self._connection.executescript(TABLES)
        self.state_count = self._one("SELECT count(*) FROM state")

    def close(self) -> None:
        """Close the database."""
        self._connection.close()

    def belongs_to(self, checksum: int) -> bool:
        """Whether all of it was found with the code of this checksum; an empty ledger is given it."""
        known = [row[0] for row in self._connection.execute("SELECT checksum FROM code")]
        if not known:
            with self._connection:
                self._connection.execute("INSERT INTO code VALUES (?)", (checksum,))
        return known in ([], [checksum])

    def is_done(self, task: str) -> bool:
        """Whether a task was done before."""
        return bool(self._one("SELECT count(*) FROM task WHERE name = ?", task))

    def note(self, task: str, tally: Tally, seconds: float) -> None:
        """Note that a task is done, and what it has seen, in one step."""
        with self._connection:
            before = self._connection.total_changes
            rows = ((digest,) for digest in tally.digests)
            self._connection.executemany("INSERT OR IGNORE INTO state VALUES (?)", rows)
            self.state_count += self._connection.total_changes - before
            counts = (tally.workloads, tally.crashes, tally.recoveries_crashed, tally.works, seconds)
            self._connection.execute("INSERT INTO task VALUES (?, ?, ?, ?, ?, ?)", (task, *counts))

    def sums(self) -> dict[str, float]:
        """Return how many tasks, workloads, crashes, crashes of recoveries and works there were, and their seconds."""
        names = ("workloads", "crashes", "recoveries", "works", "seconds")
        columns = ", ".join(f"coalesce(sum({name}), 0)" for name in names)
        row = self._connection.execute(f"SELECT count(*), {columns} FROM task").fetchone()  # constants
        return dict(zip(("tasks", *names), row, strict=True))

    def _one(self, query: str, *values: object) -> int:
        (found,) = self._connection.execute(query, values).fetchone()
        return int(found)


def checksum_of(*directories: Path) -> int:
    """Return a number that changes with the code in some directories."""
    checksum = 0
    for path in _sources(directories):
        checksum = zlib.crc32(path.read_bytes(), checksum)
    return checksum


def _sources(directories: tuple[Path, ...]) -> Iterator[Path]:
    for directory in directories:
        yield from sorted(directory.rglob("*.py"))
