"""Changes settings of a queue that no handle has open, as ``holdfast set`` does."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

from holdfast.clock import SystemClock
from holdfast.persistence.filesystem.storage import OsStorage, Storage
from holdfast.queue.engine.configuring import configure_closed
from holdfast.queue.options.settings import Settings


def change_settings(path: Path, storage: Storage | None = None, **settings: Unpack[Settings]) -> None:
    """Change some, of a queue that exists."""
    configure_closed(storage or OsStorage(), SystemClock(), path, settings)
