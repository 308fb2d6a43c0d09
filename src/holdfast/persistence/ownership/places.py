"""Where the files of an owner are."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from holdfast.persistence.filesystem.access import check_part
from holdfast.persistence.filesystem.storage import Storage

_OWNER = ".owner"
_SESSIONS = "sessions"
_IDENTITY = "queue.json"


def owner_directory(root: Path) -> Path:
    """Return the directory of the owner's files; no queue can have its name."""
    return root / _OWNER


def sessions_directory(root: Path) -> Path:
    """Return the directory of the session files."""
    return root / _OWNER / _SESSIONS


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
