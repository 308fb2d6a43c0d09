"""What a program pays before its first message: a process that has just begun imports a library, and puts once.

``python -m benchmarks.processes.first_use LIBRARY import|put FOLDER`` prints the CPU time of the process in
milliseconds, its peak of memory in MB and how many modules it has loaded. Only the library is imported in it, besides
what this module needs.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path


def use_holdfast(folder: Path, *, is_put: bool) -> None:
    """Put with the default policy: the message is on the disk when ``put`` returns."""
    import holdfast

    if is_put:
        with holdfast.PersistentQueue(folder / "queue", mode="exclusive") as queue:
            queue.put(b"first")


def use_sqlite3(folder: Path, *, is_put: bool) -> None:
    """Insert into a table by hand."""
    import sqlite3

    if is_put:
        connection = sqlite3.connect(folder / "queue.db", isolation_level=None)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("CREATE TABLE queue (id INTEGER PRIMARY KEY, payload BLOB NOT NULL)")
        connection.execute("INSERT INTO queue (payload) VALUES (?)", (b"first",))
        connection.close()


def use_persist_queue(folder: Path, *, is_put: bool) -> None:
    """Put into its queue on SQLite, which commits each put."""
    import persistqueue

    if is_put:
        queue = persistqueue.SQLiteQueue(str(folder), auto_commit=True)
        queue.put(b"first")
        queue.close()


def use_huey(folder: Path, *, is_put: bool) -> None:
    """Enqueue one task into SQLite, with a sync."""
    import huey

    if is_put:
        tasks = huey.SqliteHuey(filename=str(folder / "huey.db"), fsync=True)
        tasks.task()(str)("first")
        tasks.storage.close()


USES = {
    "holdfast": use_holdfast,
    "sqlite3": use_sqlite3,
    "persist-queue": use_persist_queue,
    "huey": use_huey,
}


def peak_mb() -> float:
    """Return the most memory this process has had resident; 0 if the system does not say it by process."""
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
    except OSError:
        return 0.0
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def main(library: str, what: str, folder: str) -> None:
    """Use one library, and print what it took."""
    USES[library](Path(folder), is_put=what == "put")
    print(f"{time.process_time() * 1e3:.1f} {peak_mb():.1f} {len(sys.modules)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
