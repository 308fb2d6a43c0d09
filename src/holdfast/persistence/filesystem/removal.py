"""Removes a whole queue, so that a kill leaves either the queue or remains that the next start removes.

The directory is renamed first, durably, to a name that no queue can have; then its files are removed, in any order.
docs/service.md, "Deleting a queue".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from holdfast.persistence.filesystem.layout import sync_name
from holdfast.persistence.filesystem.poison import commit_unknown
from holdfast.persistence.filesystem.storage import MISSING, Storage

_REMAINS = re.compile(r"\.(.+)\.removed")


def move_away(storage: Storage, root: Path) -> Path:
    """Take the directory of a queue out of its place, durably; return where it is now. The caller holds its locks.

    Raises
    ------
    CommitUnknownError
        The sync failed: after a loss of power the queue may be there again.
    OSError
        The disk refuses; the queue is as it was.
    """
    remains = root.with_name(f".{root.name}.removed")
    remove_tree(storage, remains)
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
        if match is not None:
            yield match[1], directory / name


def remove_tree(storage: Storage, path: Path) -> None:
    """Remove a directory with all that is in it, also beside another process that does; follows no link.

    Raises ``OSError`` if the disk refuses; some of it may be removed then.
    """
    try:
        names = storage.list(path)
    except FileNotFoundError:
        return
    for name in names:
        child = path / name
        try:
            storage.directory_status(child)
        except OSError:  # a file, or a link
            with suppress(FileNotFoundError):
                storage.remove(child)
        else:
            remove_tree(storage, child)
    with suppress(*MISSING):
        storage.remove_directory(path)
