"""What stands in a catalogue, read as any SQLite tool would."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from holdfast import Empty, PersistentQueue
from holdfast.service.catalog.catalog import Catalog
from holdfast.service.catalog.facts import QueueFacts
from holdfast.service.catalog.schema import TABLES

FILE_BYTES = 16 * 2**10
Rows = list[dict[str, Any]]


def open_queue(directory: Path, name: str = "orders", **options: Any) -> PersistentQueue:
    """Open a queue of small data files: ten messages of :func:`fill` go into one."""
    return PersistentQueue(directory / name, **{"mode": "exclusive", "data_file_bytes": FILE_BYTES, **options})


def fill(queue: PersistentQueue, count: int, **headers: str) -> None:
    """Put messages that are a tenth of a data file each."""
    for _ in range(count):
        queue.put(bytes(1050), headers=headers)


def drain(queue: PersistentQueue) -> int:
    """Take and acknowledge all there is; return how many these were."""
    count = 0
    while True:
        try:
            count += len(queue.get_many(100, timeout=0))
        except Empty:
            return count


def fail(queue: PersistentQueue, *, rejected: str = "no such customer") -> int:
    """Take a message and reject it; return its offset."""
    with queue.receive(timeout=0) as delivery:
        delivery.reject(rejected)
    return delivery.offset


def catalog_of(directory: Path, snapshot: Callable[[], Sequence[QueueFacts]] = tuple, **options: Any) -> Catalog:
    """Return the catalogue of a service's directory; without ``snapshot``, of a service that has no queue open."""
    return Catalog(directory, snapshot, **options)


def select(directory: Path, query: str) -> Rows:
    """Return what a query gives, read only."""
    with closing(sqlite3.connect(f"file:{directory / 'catalog.db'}?mode=ro", uri=True)) as db:
        db.row_factory = sqlite3.Row
        return [dict(row) for row in db.execute(query)]


def contents(directory: Path) -> dict[str, Rows]:
    """Return all rows of all tables, in the order of their keys."""
    return {
        name: select(directory, f"select * from {name} order by {', '.join(spec.key)}") for name, spec in TABLES.items()
    }


def refreshed(catalog: Catalog) -> dict[str, Rows]:
    """Refresh, check that rebuilding gives the same rows, and return them."""
    directory = catalog.path.parent
    catalog.refresh()
    found = contents(directory)
    catalog.rebuild()
    assert contents(directory) == found, "a rebuilt catalogue differs from a refreshed one"
    return found
