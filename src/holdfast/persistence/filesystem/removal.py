"""Removes a whole queue, so that a kill leaves either the queue or remains that the next start removes.

The directory is renamed first, durably, to a name that no queue can have. Then everything in it is removed, and
``queue.json`` last: by that file the remains are known, so a user's directory of such a name stays.
docs/service.md, "Deleting a queue".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from holdfast.errors import HoldfastError, UsageError
from holdfast.persistence.filesystem.directories import sync_name
from holdfast.persistence.filesystem.layout import open_directory, queue_directory
from holdfast.persistence.filesystem.poison import commit_unknown
from holdfast.persistence.filesystem.storage import MISSING, Storage

_REMAINS = re.compile(r"\.(.+)\.removed")


def move_away(storage: Storage, root: Path) -> Path:
    """Take the directory of a queue out of its place, durably; return where it is now.

    The caller holds its locks, and has made sure that its ``queue.json`` is whole and durable.

    Raises
    ------
    UsageError
        A directory that is no deleted queue has the name of the remains; the queue is as it was.
    CommitUnknownError
        The sync failed: after a loss of power the queue may be there again.
    OSError
        The disk refuses; the queue is as it was.
    """
    remains = root.with_name(f".{root.name}.removed")
    if remains.name in storage.list(root.parent):
        if not _is_remains(storage, remains):
            raise UsageError(
                f"{remains} is in the way and is not known to be a deleted queue: move it elsewhere, "
                f"then delete queue {root.name!r}"
            )
        remove_remains(storage, remains)
    storage.rename(root, remains)
    try:
        sync_name(storage, root)
    except OSError as error:
        raise commit_unknown("deleting the queue", root, error) from error
    return remains


def find_remains(storage: Storage, directory: Path) -> Iterator[tuple[str, Path]]:
    """Yield name and remains of each queue in ``directory`` whose deletion was cut off. Raises ``OSError``."""
    for name in storage.list(directory):
        match = _REMAINS.fullmatch(name)
        if match is not None and _is_remains(storage, directory / name):
            yield match[1], directory / name


def remove_remains(storage: Storage, remains: Path) -> None:
    """Remove a queue that was moved away, also beside another process that does; follows no link.

    Raises ``OSError`` if the disk refuses. What is left then, or after a crash, is found as remains again.
    """
    if _is_queue(storage, remains):
        sync_name(storage, remains)  # or a loss of power gives a queue its name back that has lost its files
        identity = queue_directory(remains).identity
        with suppress(*MISSING):
            for name in storage.list(remains):
                if name != identity.name:
                    _remove(storage, remains / name)
            storage.sync_directory(remains)  # or a loss of power brings files back, and queue.json not
            storage.remove(identity)
    with suppress(*MISSING):
        storage.remove_directory(remains)


def _is_remains(storage: Storage, path: Path) -> bool:
    """Whether a deletion can have left this: a queue, or an empty directory. Of what cannot be read, no."""
    if _is_queue(storage, path):
        return True
    try:
        storage.directory_status(path)
        return not storage.list(path)
    except OSError:
        return False


def _is_queue(storage: Storage, path: Path) -> bool:
    try:
        open_directory(storage, path, create=False)
    except HoldfastError:
        return False
    return True


def _remove(storage: Storage, path: Path) -> None:
    """Remove a file, or a directory with all that is in it."""
    try:
        storage.directory_status(path)
    except OSError:  # a file, or a link
        with suppress(FileNotFoundError):
            storage.remove(path)
        return
    with suppress(*MISSING):
        for name in storage.list(path):
            _remove(storage, path / name)
        storage.remove_directory(path)
