"""Checks who owns a queue's directories and who may write into them, before anything is read or changed.

A user who may write into a directory can replace its files: forge messages, or remove progress. So a queue is opened
for writing only if no other user may write there. Mode "read_only" changes nothing, but it follows no link either: that
would show another queue's messages.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterator
from pathlib import Path

from holdfast.errors import ConfigError
from holdfast.persistence.filesystem.storage import DirectoryStatus, Storage

_WRITABLE_BY_OTHERS = 0o022
_WRITABLE_BY_ALL = 0o002
_PARTS = ("data", "groups", "spare", "prepared", ".owner")
_GROUPS = "groups"


def check_root(storage: Storage, root: Path, *, writable: bool) -> None:
    """Refuse a path that cannot be a queue's directory.

    Raises
    ------
    ConfigError
        It is a file or a link; or, for writing, another user owns it or may write into it.
    FileNotFoundError
        There is nothing.
    OSError
        The disk refuses.
    """
    status = _status(storage, root, "a queue is a directory: choose another path", "open the directory it points to")
    if writable:
        _check_ours(root, status)


def check_parts(storage: Storage, root: Path, names: Collection[str], *, writable: bool) -> None:
    """Refuse a queue whose parts are not directories of this user; ``names`` are those in ``root``. Raises as above."""
    for path in _parts(storage, root, names):
        try:
            status = _status(storage, path, _belongs(root, path), "move the directory it points to here")
        except FileNotFoundError:  # a group that has been deleted meanwhile
            continue
        if writable:
            _check_ours(path, status)


def check_part(storage: Storage, path: Path) -> None:
    """Refuse a part that is not a directory of this user, or that other users may write into. Raises as above."""
    _check_ours(path, _status(storage, path, _belongs(path.parent, path), "move the directory it points to here"))


def check_around(storage: Storage, root: Path) -> None:
    """Refuse a directory of queues into which every user may write: each could replace its configuration, and queues.

    Its owner may be another user, and a group may write: a volume of a container is often made so. Raises as above.
    """
    mode = storage.directory_status(root).mode
    if mode & _WRITABLE_BY_ALL:
        raise ConfigError(
            f"{root} can be written by every user (mode {mode:04o}), who could replace its queues and their "
            f"configuration; take that right away: chmod o-w {root}"
        )


def writable_by_others(storage: Storage, root: Path) -> bool:
    """Whether other users may write into a queue's directory. Raises as :func:`check_root`."""
    return bool(storage.directory_status(root).mode & _WRITABLE_BY_OTHERS)


def _belongs(root: Path, path: Path) -> str:
    """Return what belongs in the place of a file, and what to do."""
    if path.parent == root / _GROUPS:
        return "here belongs a directory of a consumer group: move the file out of the queue's directory"
    return "here belongs a directory of the queue: move the file away, and restore the directory if there was one"


def _parts(storage: Storage, root: Path, names: Collection[str]) -> Iterator[Path]:
    """Yield the directories of a queue, those of its groups last: they are listed once ``groups`` is one."""
    for name in _PARTS:
        if name in names:
            yield root / name
    if _GROUPS in names:
        for name in storage.list(root / _GROUPS):
            if not name.startswith("."):
                yield root / _GROUPS / name


def _status(storage: Storage, path: Path, no_file: str, no_link: str) -> DirectoryStatus:
    try:
        return storage.directory_status(path)
    except NotADirectoryError:
        raise ConfigError(f"{_file_in(storage, path)} is a file; {no_file}") from None
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise ConfigError(f"{path} is a symbolic link; {no_link}") from None


def _file_in(storage: Storage, path: Path) -> Path:
    """Return the file in the place of a directory: the last part of a path, or one above it."""
    while _is_file(storage, path.parent):
        path = path.parent
    return path


def _is_file(storage: Storage, path: Path) -> bool:
    try:
        storage.directory_status(path)
    except NotADirectoryError:
        return True
    except OSError:
        pass
    return False


def _check_ours(path: Path, status: DirectoryStatus) -> None:
    user = os.geteuid()
    if status.owner != user:
        raise ConfigError(
            f"{path} belongs to user {status.owner}, this is user {user}; run as that user, "
            f"or give it to this one with everything in it (chown -R {user})"
        )
    if status.mode & _WRITABLE_BY_OTHERS:
        raise ConfigError(
            f"{path} can be written by other users (mode {status.mode:04o}), who could forge or remove messages; "
            f"take that right away: chmod go-w {path}"
        )
