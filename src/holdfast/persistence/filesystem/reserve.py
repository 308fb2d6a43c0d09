"""Reserves space of the disk: what fits into a file, and a little in ``groups/.reserve*``.

With that a group can begin on a full disk and drain it. A group that has begun has its space: its position
files are reserved ahead. A group that begins needs a few more blocks and files. The disk may have run out of either
just because no consumer has run yet.
"""

from __future__ import annotations

import logging

from holdfast.persistence.filesystem.layout import QueueDirectory
from holdfast.persistence.filesystem.storage import DISK_FULL_ERRNOS, MISSING, File, Storage
from holdfast.threads import log_later

RESERVE_BYTES = 64 * 2**10
"""Two of the smallest position files, group.json, a lock file and their directory entries, with half to spare."""

RESERVE_FILES = 5
"""A group's directory, lock, ``group.json`` and two position files. The first has the room, the others are empty."""


def keep_reserve(storage: Storage, directory: QueueDirectory) -> None:
    """Reserve the space if it is not reserved; on a disk that is already full this has to wait."""
    try:
        with storage.open(directory.reserve, create=True) as file:
            if file.size() < RESERVE_BYTES:
                file.allocate(RESERVE_BYTES)
                file.sync()
        there = storage.list(directory.groups)
        for path in directory.more_reserves(RESERVE_FILES - 1):
            if path.name not in there:
                storage.open(path, create=True).close()
    except OSError as error:
        log_later(logging.INFO, "no space to reserve in %s: %s", directory.groups, error)


def spend_reserve(storage: Storage, directory: QueueDirectory) -> bool:
    """Give the space back to the file system; return whether there was any."""
    count = 0
    try:
        for path in (directory.reserve, *directory.more_reserves(RESERVE_FILES - 1)):
            try:
                storage.remove(path)
                count += 1
            except MISSING:
                pass
        if count:
            storage.sync_directory(directory.groups)
    except OSError as error:
        log_later(logging.WARNING, "the space reserved in %s cannot be used: %s", directory.groups, error)
        return False
    return count > 0


def allocate_what_fits(file: File, least: int, wanted: int) -> int:
    """Reserve the space ``wanted``, and return what the file has; on a full disk half of that, down to ``least``."""
    space, size = file.size(), wanted
    while True:
        try:
            file.allocate(size)
            return max(space, size)
        except OSError as error:
            if error.errno not in DISK_FULL_ERRNOS or size == least > space:
                raise
            if space >= least:
                return space
        size = max(least, size // 2)
