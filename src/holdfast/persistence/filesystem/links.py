"""Second names of files: what is changed in place must have one name, or a copy changes with it."""

from __future__ import annotations

from pathlib import Path

from holdfast.errors import StorageError
from holdfast.persistence.filesystem.storage import File, Storage


def refuse_second_name(file: File, path: Path) -> None:
    """Refuse a file that is changed in place and has another name.

    Raises
    ------
    StorageError
        It has: whatever is written here changes the other one too.
    OSError
        The disk refuses.
    """
    if file.link_count() > 1:
        raise StorageError(
            f"{path} has a second name (a hard link), so this queue and a copy of it write over each other. Remove the "
            "copy; if you need one, close the queue and make it with cp -a, or take a snapshot of the file system",
            path=str(path),
        )


def open_alone(storage: Storage, path: Path) -> File:
    """Open a file whose space is used again, or make one; a second name is somebody's copy, and keeps the old file.

    Raises ``OSError``.
    """
    file = storage.open(path, create=True)
    try:
        is_alone = file.link_count() <= 1
    except BaseException:
        file.close()
        raise
    if is_alone:
        return file
    file.close()
    storage.remove(path)
    return storage.open(path, create=True)
