"""Whether a queue may be opened for writing as it stands; looked at before anything in it is changed."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from holdfast.errors import CorruptionError
from holdfast.persistence.file_header import PositionFileHeader, block_copies
from holdfast.persistence.format import FRAMES_START
from holdfast.persistence.group_files import list_groups
from holdfast.persistence.layout import (
    QueueDirectory,
    is_missing,
    list_data_files,
    list_generations,
    position_file,
    read_data_file_header,
)
from holdfast.persistence.storage import File, Storage
from holdfast.persistence.write_mark import read_write_mark


def admit(storage: Storage, directory: QueueDirectory, queue_id: bytes) -> None:
    """Let a queue pass that may be written to, and change nothing in it.

    Raises
    ------
    UnsupportedVersionError
        A file that would be taken for damaged, and repaired, has another format version.
    OSError
        The disk refuses.

    Notes
    -----
    Damage passes: recovery reports it. Cost: the header of the last data file, and of one position file for each group.
    """
    names = list_data_files(storage, directory)
    with suppress(CorruptionError, FileNotFoundError):  # the owner may be retiring it just now
        if names:
            read_data_file_header(storage, directory.data_file(names[-1]))
    mark = _opened(storage, directory.write_mark)
    if mark is not None:
        try:
            read_write_mark(mark, queue_id, directory.write_mark)
        finally:
            mark.close()
    for group in list_groups(storage, directory):
        _check_progress(storage, directory.group(group.name))


def _check_progress(storage: Storage, group_directory: Path) -> None:
    """Read the header of a group's latest position file."""
    path = position_file(group_directory, max(list_generations(storage, group_directory), default=0))
    file = _opened(storage, path)
    if file is not None:
        try:
            with suppress(CorruptionError):
                PositionFileHeader.decode(block_copies(file.read_at(FRAMES_START, 0)), str(path))
        finally:
            file.close()


def _opened(storage: Storage, path: Path) -> File | None:
    """Open a file to read; None where it is not there, or not there any more."""
    try:
        return storage.open(path, writable=False)
    except OSError as error:
        if is_missing(error):
            return None
        raise
