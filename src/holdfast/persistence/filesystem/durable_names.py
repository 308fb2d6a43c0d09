"""Gives files the names that they have once more, so that these can be made durable.

A name may come from a process that was killed before its directory was synced, or the sync may have failed. A second
sync could succeed over a lost name; over a new one it cannot.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.persistence.filesystem.storage import Storage

_ASIDE = ".again"
"""Behind the name of a file that has it for two renames; readers pass such names over."""


def name_again(storage: Storage, path: Path) -> None:
    """Give a file the name that it has, as a new change for the next sync of its directory."""
    aside = path.with_name(path.name + _ASIDE)
    storage.rename(path, aside)
    storage.rename(aside, path)


def finish_naming(storage: Storage, directory: Path) -> bool:
    """Give files back the names that :func:`name_again` was about to give them when its process died.

    Returns whether there were any.
    """
    aside = [name for name in storage.list(directory) if name.endswith(_ASIDE)]
    for name in aside:
        storage.rename(directory / name, directory / name.removesuffix(_ASIDE))
    return bool(aside)
