"""What a search has covered, so that a long one can be broken off and taken up again: a small SQLite database.

Distinct states are counted by 63 bits of their digests: among 20,000,000 of them the chance that two are taken for one
is one in forty thousand.
"""

from __future__ import annotations

import ast
import sqlite3
import sys
from hashlib import blake2b
from pathlib import Path

import holdfast
from proof.crash_states.counting import Tally, as_number

TABLES = """
CREATE TABLE IF NOT EXISTS state (digest INTEGER PRIMARY KEY);
CREATE TABLE IF NOT EXISTS view (digest INTEGER PRIMARY KEY);
CREATE TABLE IF NOT EXISTS fate (text TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS task (name TEXT PRIMARY KEY, workloads INTEGER, crashes INTEGER, recoveries INTEGER,
                                 works INTEGER, seconds REAL);
CREATE TABLE IF NOT EXISTS code (digest INTEGER PRIMARY KEY);
"""

JUDGED = ("persistence", "queue")
"""The packages whose code is tried; beside them the modules on the ground, which every package stands on."""

JUDGES = ("proof.crash_states.", "support.")
"""What the explorer, its oracle and its model are made of: of these the modules that they have imported."""


class Ledger:
    """Tasks that are done, and what they have seen.

    Parameters
    ----------
    path : Path or None
        Of the database; None: in memory.

    Attributes
    ----------
    state_count, view_count, fate_count : int
        Distinct states, recovered views, and pairs of operation and fate.
    """

    def __init__(self, path: Path | None) -> None:
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        self._connection = sqlite3.connect(path or ":memory:")
        self._connection.executescript(TABLES)
        self.state_count = self._one("SELECT count(*) FROM state")
        self.view_count = self._one("SELECT count(*) FROM view")
        self.fate_count = self._one("SELECT count(*) FROM fate")

    def close(self) -> None:
        """Close the database."""
        self._connection.close()

    def belongs_to(self, digest: int) -> bool:
        """Whether all of it was found with the code of this digest; an empty ledger is given it."""
        known = [row[0] for row in self._connection.execute("SELECT digest FROM code")]
        if not known:
            with self._connection:
                self._connection.execute("INSERT INTO code VALUES (?)", (digest,))
        return known in ([], [digest])

    def is_done(self, task: str) -> bool:
        """Whether a task was done before."""
        return bool(self._one("SELECT count(*) FROM task WHERE name = ?", task))

    def note(self, task: str, tally: Tally, seconds: float) -> bool:
        """Note that a task is done, and what it has seen, in one step; return whether a view or a fate is new."""
        with self._connection:
            self.state_count += self._add("state", tally.digests)
            new_views, new_fates = self._add("view", tally.views), self._add("fate", tally.fates)
            counts = (tally.workloads, tally.crashes, tally.recoveries_crashed, tally.works, seconds)
            self._connection.execute("INSERT INTO task VALUES (?, ?, ?, ?, ?, ?)", (task, *counts))
        self.view_count += new_views
        self.fate_count += new_fates
        return new_views + new_fates > 0

    def _add(self, table: str, values: set[int] | set[str]) -> int:
        """Return how many of these are new."""
        before = self._connection.total_changes
        self._connection.executemany(f"INSERT OR IGNORE INTO {table} VALUES (?)", ((value,) for value in values))
        return self._connection.total_changes - before

    def sums(self) -> dict[str, float]:
        """Return how many tasks, workloads, crashes, crashes of recoveries and works there were, and their seconds."""
        names = ("workloads", "crashes", "recoveries", "works", "seconds")
        columns = ", ".join(f"coalesce(sum({name}), 0)" for name in names)
        row = self._connection.execute(f"SELECT count(*), {columns} FROM task").fetchone()  # constants
        return dict(zip(("tasks", *names), row, strict=True))

    def _one(self, query: str, *values: object) -> int:
        (found,) = self._connection.execute(query, values).fetchone()
        return int(found)


def digest_of_what_matters() -> int:
    """Return a number that changes with the code that is tried, and with the explorer, its oracle and its model.

    It stays the same whatever becomes of other tests, of docs, of comments and of docstrings.
    """
    root = Path(holdfast.__file__).parent
    paths = [*root.glob("*.py"), *(path for name in JUDGED for path in (root / name).rglob("*.py"))]
    paths += [Path(str(sys.modules[name].__file__)) for name in list(sys.modules) if name.startswith(JUDGES)]
    return digest_of(sorted(paths))


def digest_of(paths: list[Path]) -> int:
    """Return a number that changes with the code in some files, and with nothing else that is in them."""
    digest = blake2b(digest_size=8)
    for path in paths:
        tree = ast.parse(path.read_bytes())
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
                del node.body[0]
        digest.update(f"{path.name}\n{ast.dump(tree)}\n".encode())
    return as_number(digest.digest())
