"""Decides whether a queue may be opened for writing, by its place and its files, before anything is changed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from holdfast.errors import ConfigError, CorruptionError
from holdfast.persistence.filesystem.file_names import refuse_second_name
from holdfast.persistence.filesystem.layout import (
    QueueDirectory,
    list_data_files,
    list_generations,
    list_segments,
    position_file,
)
from holdfast.persistence.filesystem.storage import MISSING, File, Storage
from holdfast.persistence.format.constants import FRAMES_START
from holdfast.persistence.format.file_header import DataFileHeader, PositionFileHeader, SegmentHeader, block_copies
from holdfast.persistence.groups.group_files import list_groups
from holdfast.persistence.log.watermark import read_write_mark

ANY_FILE_SYSTEM = "HOLDFAST_ANY_FILE_SYSTEM"
"""The variable that says, where it is ``true``, that any file system will do."""

_OF_SEVERAL_COMPUTERS = frozenset([
    "9p", "acfs", "afs", "beegfs", "ceph", "cifs", "coda", "gfs2", "glusterfs", "gpfs", "lustre", "ncp", "ncpfs",
    "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "smb3", "smbfs", "vboxsf", "virtiofs", "vmhgfs", "wekafs",
])  # fmt: skip
_FUSE = ("fuse", "fuse.")
_LOCAL_FUSE = frozenset({"fuse.fuse-overlayfs"})
"""Those that hand locks, renames and syncs on to a local file system. (``fuseblk`` is a local disk.)"""


def check_file_system(storage: Storage, root: Path, *, is_any_allowed: bool) -> None:
    """Refuse a path on a file system that several computers share, or that an unknown process serves.

    Raises
    ------
    ConfigError
        It is on one, and this was not allowed explicitly.
    OSError
        The disk refuses.
    """
    if is_any_allowed or os.environ.get(ANY_FILE_SYSTEM, "").lower() == "true":
        return
    kind = _kind(storage, root)
    is_fuse = kind.startswith(_FUSE[1]) or kind == _FUSE[0]
    if kind in _OF_SEVERAL_COMPUTERS or (is_fuse and kind not in _LOCAL_FUSE):
        what = "which is not known to lock and to sync as a disk does" if is_fuse else "which other computers may share"
        raise ConfigError(
            f"{root} is on a file system of the kind {kind}, {what}: two owners could overwrite each other there, and "
            "a power cut could lose what was confirmed. Choose a directory on a local disk; or, if only this computer "
            f"opens it and it may lose messages, pass any_file_system=True or set {ANY_FILE_SYSTEM}=true",
            path=str(root),
            file_system=kind,
        )


def _kind(storage: Storage, root: Path) -> str:
    """Return the kind of file system of a path, or of the directory in which it would be made."""
    for path in (root, *root.parents):
        try:
            return storage.file_system(path)
        except ValueError:  # a NUL: opening the directory reports it
            break
        except MISSING:
            pass
    return ""


def admit(storage: Storage, directory: QueueDirectory, queue_id: bytes) -> None:
    """Accept a queue that may be written to, and change nothing in it.

    Raises
    ------
    UnsupportedVersionError
        A file that would count as damaged, and be repaired, has another format version.
    StorageError
        A file that is changed in place has a second name.
    OSError
        The disk refuses.

    Notes
    -----
    Damage is accepted: recovery reports it. Cost: each of these files is opened, and the headers are read.
    """
    for path, file in _changed_in_place(storage, directory):
        with file:
            refuse_second_name(file, path)
            with suppress(CorruptionError):
                _check_version(file, path, queue_id)


def _check_version(file: File, path: Path, queue_id: bytes) -> None:
    """Raise UnsupportedVersionError if a file has another format version; CorruptionError if its version is unknown."""
    if path.name == "write.mark":
        read_write_mark(file, queue_id, path)
    elif path.suffix == ".data":
        DataFileHeader.decode(block_copies(file.read_at(FRAMES_START, 0)), str(path))
    elif path.suffix == ".position" and path.stem.isdigit():
        PositionFileHeader.decode(block_copies(file.read_at(FRAMES_START, 0)), str(path))
    elif path.suffix == ".log":
        SegmentHeader.decode(block_copies(file.read_at(FRAMES_START, 0)), str(path))


def _changed_in_place(storage: Storage, directory: QueueDirectory) -> Iterator[tuple[Path, File]]:
    """Yield the files, open, that an owner writes into without replacing them; some may be removed meanwhile."""
    paths = [directory.write_mark, directory.dedup_ids, directory.outcome_log]
    paths += [directory.data_file(name) for name in list_data_files(storage, directory)[-1:]]
    paths += map(directory.segment, list_segments(storage, directory))
    for group in list_groups(storage, directory):
        path = directory.group(group.name)
        paths += [position_file(path, generation) for generation in reversed(list_generations(storage, path))]
        paths += [path / "next.position", path / "decided"]
    for path in paths:
        try:
            file = storage.open(path, writable=False)
        except MISSING:
            pass
        else:
            yield path, file
