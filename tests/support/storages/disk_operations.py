"""What a simulated storage records: one small value per change, enough to repeat a run up to any point of it.

File contents are spoken of by inode, because a file outlives its name; names are spoken of by path.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes that went into a file; a short write records what went in, not what was asked for."""

    inode: int
    position: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Truncate:
    """A file was set to a size, up or down."""

    inode: int
    size: int


@dataclass(frozen=True, slots=True)
class Allocate:
    """A file grew to a size by reserving space; calls that had nothing to reserve are not recorded."""

    inode: int
    size: int


@dataclass(frozen=True, slots=True)
class Sync:
    """What was in a file became durable, but its last ``later_count`` changes: they came while it ran."""

    inode: int
    later_count: int = 0


@dataclass(frozen=True, slots=True)
class FailedSync:
    """A sync of a file failed: what it should have written stays undecided, whatever later syncs say."""

    inode: int


@dataclass(frozen=True, slots=True)
class Create:
    """A new, empty file got a name."""

    path: Path
    inode: int


@dataclass(frozen=True, slots=True)
class MakeDirectory:
    """A new directory got a name; directories that stood there already are not recorded."""

    path: Path
    inode: int


@dataclass(frozen=True, slots=True)
class Rename:
    """A name moved; lasting once the directory of ``target`` is synced."""

    source: Path
    target: Path


@dataclass(frozen=True, slots=True)
class Remove:
    """A file lost its name; open handles keep the file."""

    path: Path


@dataclass(frozen=True, slots=True)
class RemoveDirectory:
    """An empty directory lost its name."""

    path: Path


@dataclass(frozen=True, slots=True)
class SyncDirectory:
    """The names in one directory became durable; that directory's own name did not."""

    path: Path


@dataclass(frozen=True, slots=True)
class FailedSyncDirectory:
    """A sync of a directory failed: its unsynced names stay undecided, whatever later syncs say."""

    path: Path


FileOperation = Write | Truncate | Allocate | Sync | FailedSync
NameOperation = Create | MakeDirectory | Rename | Remove | RemoveDirectory
DirectoryOperation = SyncDirectory | FailedSyncDirectory
Operation = FileOperation | NameOperation | DirectoryOperation
