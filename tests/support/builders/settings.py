"""Changes settings of a queue that no handle has open, as ``holdfast set`` does."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Unpack

import pytest

from holdfast import CorruptionError, GroupNotFoundError, PersistentQueue, QueueNotFoundError, verify
from holdfast.clock import Clock, SystemClock
from holdfast.persistence.filesystem.storage import OsStorage, Storage
from holdfast.persistence.groups.group_files import set_command
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
    path: Path,
    storage: Storage | None = None,
    *,
    clock: Clock | None = None,
    group: str = "default",
    **settings: Unpack[Settings],
) -> None:
    """Change some before the queue is opened; one that is not there yet gets them from the handle that makes it."""
    with suppress(QueueNotFoundError, GroupNotFoundError):
        change_settings(path, storage, clock=clock, group=group, **settings)


def set_anew(path: Path, storage: Storage | None = None, group: str = "default", **settings: Unpack[Settings]) -> None:
    """Set those that were lost when a damaged document was rebuilt."""
    configure_closed(storage or OsStorage(), SystemClock(), path, settings, group=group, is_rebuilt=True)


def set_anew_if_lost(
    path: Path, storage: Storage, open_it: Callable[[], PersistentQueue], group: str = "default"
) -> tuple[PersistentQueue, Path | None]:
    """Open a queue that may be damaged; of a rebuilt document check what it says, set it anew, and open the queue.

    Returns the queue, and the document that was rebuilt without its settings.
    """
    try:
        return open_it(), None
    except CorruptionError as error:
        lost = error
    document = Path(lost.context["path"])
    assert document in (path / "queue.json", path / "groups" / group / "group.json"), lost
    assert set_command(path, "--rebuilt", group=group if document.name == "group.json" else "default") in str(lost)
    with pytest.raises(CorruptionError, match="--rebuilt"):  # not the first time only
        open_it()
    assert document in {each.path for each in verify(path, storage=storage).damage}
    with PersistentQueue(path, group=group, mode="read_only", storage=storage) as look:
        look.peek(1)
    with pytest.raises(CorruptionError, match="--rebuilt"):  # by mistake
        change_settings(path, storage, group=group, dedup_window=1, lease_seconds=1)
    set_anew(path, storage, group)
    return open_it(), document
