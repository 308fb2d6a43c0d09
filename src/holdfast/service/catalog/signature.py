"""Whether the files of a queue have changed since last time: what the file system says of them, not what they hold."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_SETTLED_NS = 2 * 10**9
"""A file that was changed later than this may change again without a new time: clocks of file systems tick coarsely."""

_Stamp = tuple[str, int, int, int]


@dataclass(frozen=True, slots=True)
class Signature:
    """The state of a queue's files.

    Attributes
    ----------
    stamps : tuple
        Path, inode, size and time of the last change of each file.
    is_settled : bool
        Whether the same stamps later on mean that nothing has changed.
    """

    stamps: tuple[_Stamp, ...]
    is_settled: bool


def take_signature(root: Path) -> Signature:
    """Return the state of a queue's files. Acknowledgements change it, and prepared transactions; requests do not."""
    stamps = tuple(_stamps(str(root)))
    newest = max((stamp[3] for stamp in stamps), default=0)
    return Signature(stamps, newest < time.time_ns() - _SETTLED_NS)


def _stamps(root: str) -> Iterator[_Stamp]:
    yield from _stat(root, "queue.json", "write.mark")
    yield from _entries(os.path.join(root, "data"))
    yield from _entries(os.path.join(root, "prepared"))
    groups = os.path.join(root, "groups")
    for name in _names(groups):
        yield from _entries(os.path.join(groups, name))


def _entries(directory: str) -> Iterator[_Stamp]:
    """Yield a directory and what is in it, but for notes of dead letters: they are many, and written once."""
    yield from _stat(directory, ".")
    yield from _stat(directory, *(name for name in _names(directory) if not name.startswith("dead-")))


def _names(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _stat(directory: str, *names: str) -> Iterator[_Stamp]:
    for name in names:
        path = os.path.join(directory, name)
        try:
            status = os.stat(path, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            continue
        yield (path, status.st_ino, status.st_size, status.st_mtime_ns)
