"""Names of files: given once more, so that they can be made durable, and second ones.

A name may come from a process that was killed before its directory was synced, or the sync may have failed. A second
sync could succeed over a lost name; over a new one it cannot.

A file that is changed in place must have one name, or a copy changes with it.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.errors import StorageError
from holdfast.persistence.filesystem.storage import File, Storage

_RENAMED = ".again"
"""Behind the name of a file that has it for two renames; readers pass such names over."""


def name_again(storage: Storage, path: Path) -> None:
    """Give a file the name that it has, as a new change for the next sync of its directory."""
    renamed = path.with_name(path.name + _RENAMED)
    storage.rename(path, renamed)
    storage.rename(renamed, path)


def finish_naming(storage: Storage, directory: Path) -> bool:
    """Give files back the names that :func:`name_again` was about to give them when its process died.

    Returns whether there were any.
    """
    renamed = [name for name in storage.list(directory) if name.endswith(_RENAMED)]
    for name in renamed:
        storage.rename(directory / name, directory / name.removesuffix(_RENAMED))
    return bool(renamed)


def refuse_second_name(file: File, path: Path) -> None:
    """Refuse a file that is changed in place and has another name.

    Raises
    ------
    StorageError
        It has a second name: writing to one changes the other too.
    OSError
        The disk refuses.
    """
    if file.link_count() > 1:
        raise StorageError(
            f"{path} has a second name (a hard link), so this queue and a copy of it overwrite each other. Remove the "
            "copy; if you need one, close the queue and make it with cp -a, or take a snapshot of the file system",
            path=str(path),
        )


def open_alone(storage: Storage, path: Path) -> File:
    """Open a file whose space is used again, or make one; a second name is a user's copy, and keeps the old file.

    Its size may be lost if a sync of it has failed. So it is given once more, as a new change for the next sync. Raises
    ``OSError``.
    """
    file = storage.open(path, create=True)
    try:
        is_alone = file.link_count() <= 1
        size = file.size() if is_alone else 0
        if size:
            file.truncate(size + 1)
            file.truncate(size)
    except BaseException:
        file.close()
        raise
    if is_alone:
        return file
    file.close()
    storage.remove(path)
    return storage.open(path, create=True)
