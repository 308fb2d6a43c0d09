"""Changes settings of a queue that no handle has open, as ``holdfast set`` does."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Unpack

from holdfast import GroupNotFoundError, QueueNotFoundError
from holdfast.clock import Clock, SystemClock
from holdfast.persistence.filesystem.storage import OsStorage, Storage
from holdfast.queue.engine.configuring import configure_closed
from holdfast.queue.options.settings import Settings


def change_settings(
    path: Path,
    storage: Storage | None = None,
    *,
    clock: Clock | None = None,
    group: str = "default",
    **settings: Unpack[Settings],
) -> None:
    """Change some, of a queue that exists."""
    configure_closed(storage or OsStorage(), clock or SystemClock(), path, settings, group=group)


def set_first(
    path: Path, storage: Storage | None = None, *, clock: Clock | None = None, **settings: Unpack[Settings]
) -> None:
    """Change some before the queue is opened; one that is not there yet gets them from the handle that makes it."""
    with suppress(QueueNotFoundError, GroupNotFoundError):
        change_settings(path, storage, clock=clock, **settings)


def set_anew(path: Path, storage: Storage | None = None, group: str = "default", **settings: Unpack[Settings]) -> None:
    """Set those that were lost when a damaged document was rebuilt."""
    configure_closed(storage or OsStorage(), SystemClock(), path, settings, group=group, is_rebuilt=True)
