"""The allowed names of a service's queues: their directories are beside the service's own files."""

from __future__ import annotations

from holdfast.errors import ConfigError
from holdfast.persistence.filesystem.layout import check_name

CATALOG_NAME = "catalog.db"
CONFIG_NAME = "holdfast.toml"


def check_queue_name(name: str) -> str:
    """Return ``name`` if it may name a queue of a service; raises ConfigError otherwise.

    SQLite's files beside a database (``catalog.db-journal``, ``-wal``, ``-shm``) are reserved with it, and in any case
    of its letters: some file systems do not tell them apart.
    """
    check_name(name, "queue")
    lowered = name.lower()
    if lowered.startswith(CATALOG_NAME) or lowered == CONFIG_NAME:
        raise ConfigError(f"{name!r} cannot name a queue: the service keeps a file of its own there; choose another")
    return name
