"""Where the files of an owner are, and to which directory a queue belongs."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from holdfast.persistence.filesystem.access import check_part
from holdfast.persistence.filesystem.storage import MISSING, Storage

_OWNER = ".owner"
_SESSIONS = "sessions"
_IDENTITY = "queue.json"


def owner_directory(root: Path) -> Path:
    """Return the directory of the owner's files; no queue can have its name."""
    return root / _OWNER


def sessions_directory(root: Path) -> Path:
    """Return the directory of the session files."""
    return root / _OWNER / _SESSIONS


def ownership_root(storage: Storage, queue_path: Path) -> Path:
    """Return the directory that is owned if a queue is opened: that of its service, or its own.

    A queue belongs to a service if its parent directory has ``.owner/`` of this user, and no ``queue.json``. Another
    user's ``.owner/`` says nothing: in a directory such as /tmp everybody can make one.

    Raises
    ------
    OSError
        The disk refuses.
    """
    parent = queue_path.parent
    try:
        status = storage.directory_status(owner_directory(parent))
    except MISSING:
        return queue_path
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        return queue_path
    if status.owner != os.geteuid():
        return queue_path
    try:
        storage.open(parent / _IDENTITY, writable=False).close()
    except MISSING:
        return parent
    return queue_path


def make_owner_directory(storage: Storage, root: Path) -> Path:
    """Return the directory of the owner's files, made if missing.

    Raises
    ------
    ConfigError
        It is a file or a link, or belongs to another user, or others may write into it.
    OSError
        The disk refuses, or ``root`` is missing.
    """
    return _made(storage, owner_directory(root))


def make_sessions_directory(storage: Storage, root: Path) -> Path:
    """Return the directory of the session files, made if missing. Raises as :func:`make_owner_directory`."""
    make_owner_directory(storage, root)
    return _made(storage, sessions_directory(root))


def _made(storage: Storage, path: Path) -> Path:
    with suppress(FileExistsError):  # a file, or a link: the check says which
        storage.make_directory(path)
    check_part(storage, path)
    return path
