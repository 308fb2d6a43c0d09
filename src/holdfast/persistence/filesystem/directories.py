"""Makes directories, and their names durable."""

from __future__ import annotations

import errno
from contextlib import suppress
from pathlib import Path

from holdfast.persistence.filesystem.storage import Storage, real_path

_NOT_OURS = frozenset({errno.EACCES, errno.EPERM, errno.EINVAL, errno.ENOTSUP})
"""A directory whose sync is refused so may be another user's, or of a file system that syncs none."""


def make_parents(storage: Storage, path: Path) -> None:
    """Make the directories above a path that are missing, durably. Raises ``OSError``; then none of them is left.

    The deepest one that is there may come from a process that makes it now, or was killed before it synced its name.
    All above it have been synced: none is made in a directory whose own name is not durable.
    """
    missing: list[Path] = []
    while _found(storage, path.parent) is None:
        path = path.parent
        missing.append(path)
    if path.parent != path.parent.parent:
        try:
            sync_name(storage, path.parent)
        except OSError as error:
            if error.errno not in _NOT_OURS:
                raise
    made: list[Path] = []
    try:
        for each in reversed(missing):
            storage.make_directory(each)
            made.append(each)
            sync_name(storage, each)
    except OSError:  # a second sync could succeed over lost names: the next attempt makes new ones
        with suppress(OSError):
            for each in reversed(made):
                storage.remove_directory(each)
        raise


def _found(storage: Storage, path: Path) -> Path | None:
    """Return a directory above a queue, with an operator's link resolved; None if there is none."""
    try:
        storage.directory_status(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        return real_path(path)
    return path


def sync_name(storage: Storage, path: Path) -> None:
    """Make the name of a directory durable."""
    storage.sync_directory(_found(storage, path.parent) or path.parent)
