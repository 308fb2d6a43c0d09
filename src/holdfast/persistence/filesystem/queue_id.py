"""Finds the id of a queue whose ``queue.json`` is damaged or missing: every other file of the queue has it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from holdfast.errors import StorageError, UnsupportedVersionError
from holdfast.persistence.filesystem.storage import Storage
from holdfast.persistence.format.checksum import crc32c
from holdfast.persistence.format.constants import FRAMES_START, HEADER_CRC, WRITE_MARK, WRITE_MARK_BYTES
from holdfast.persistence.format.file_header import DataFileHeader, SegmentHeader, block_copies


def id_of_most(storage: Storage, data: Iterable[Path], segments: Iterable[Path], write_mark: Path) -> bytes | None:
    """Return the id that most of these files have: a file of another queue may have been copied among them.

    Parameters
    ----------
    storage, data, segments, write_mark
        Data files and batch files, segments of the prepared log, and the high watermark. Damaged and missing ones have
        none. If two ids are in the same number of files, the one that comes first counts.

    Raises
    ------
    UnsupportedVersionError
        A Holdfast of another format version wrote one of them.
    """
    found: Counter[bytes] = Counter()
    for header, paths in ((DataFileHeader, data), (SegmentHeader, segments)):
        for path in paths:
            for start in _start_of(storage, path, FRAMES_START):
                try:
                    found[header.decode(block_copies(start), str(path)).queue_id] += 1
                except UnsupportedVersionError:
                    raise
                except StorageError:
                    pass
    for mark in _start_of(storage, write_mark, WRITE_MARK_BYTES):
        checksum = crc32c(0, mark[: WRITE_MARK.size])
        if len(mark) == WRITE_MARK_BYTES and HEADER_CRC.unpack_from(mark, WRITE_MARK.size)[0] == checksum:
            found[WRITE_MARK.unpack_from(mark)[3]] += 1
    return found.most_common(1)[0][0] if found else None


def _start_of(storage: Storage, path: Path, size: int) -> Iterator[bytes]:
    """Yield the first bytes of a file, unless it cannot be read."""
    try:
        with storage.open(path, writable=False) as file:
            start = file.read_at(size, 0)
    except OSError:
        return
    yield start
