"""Whether the files of a queue have changed since last time: by metadata, not by contents."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from holdfast.persistence.filesystem.storage import MISSING, OsStorage, Stamp, stamp_of

_SETTLED_NS = 2 * 10**9
"""A file that was changed later than this may change again without a new time: clocks of file systems tick coarsely."""


@dataclass(frozen=True, slots=True)
class Signature:
    """The state of a queue's files.

    Attributes
    ----------
    stamps : tuple
        Path and metadata of each file.
    is_settled : bool
        Whether the same stamps later on mean that nothing has changed.
    """

    stamps: tuple[tuple[str, Stamp], ...]
    is_settled: bool


def take_signature(root: Path) -> Signature:
    """Return the state of a queue's files. Acknowledgements change it, and prepared transactions; requests do not."""
    stamps = tuple(_stamps(str(root)))
    newest = max((stamp.changed_ns for _, stamp in stamps), default=0)
    return Signature(stamps, newest < time.time_ns() - _SETTLED_NS)


def _stamps(root: str) -> Iterator[tuple[str, Stamp]]:
    yield from _stat(root, "queue.json", "write.mark")
    yield from _entries(os.path.join(root, "data"))
    yield from _entries(os.path.join(root, "prepared"))
    groups = os.path.join(root, "groups")
    for name in _names(groups):
        yield from _entries(os.path.join(groups, name))


def _entries(directory: str) -> Iterator[tuple[str, Stamp]]:
    """Yield a directory and its files, except notes of dead letters: they are many, and written once."""
    yield from _stat(directory, ".")
    yield from _stat(directory, *(name for name in _names(directory) if not name.startswith("dead-")))


def _names(directory: str) -> list[str]:
    with suppress(*MISSING):
        return OsStorage().list(Path(directory))
    return []


def _stat(directory: str, *names: str) -> Iterator[tuple[str, Stamp]]:
    for name in names:
        path = os.path.join(directory, name)
        stamp = stamp_of(path)
        if stamp is not None:
            yield path, stamp
