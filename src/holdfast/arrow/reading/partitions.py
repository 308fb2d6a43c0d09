"""Divides a plan into tasks of about the same size: many small data files into one, a large one apart.

A large file is cut at the message positions in its seal; the one that is being written has none, and stays whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from holdfast.arrow.reading.file_range import FileRange, clipped
from holdfast.persistence.filesystem.layout import queue_directory
from holdfast.persistence.filesystem.storage import MISSING, Storage
from holdfast.persistence.log.sealed_file import sealed_places

_LARGE = 1.5
"""How much larger than a task a file is before it is cut: two halves would only take more starting."""


def pack(storage: Storage, root: Path, parts: list[FileRange], partition_bytes: int) -> list[list[FileRange]]:
    """Return the parts by task, in the order of the log."""
    directory = queue_directory(root)
    tasks: list[list[FileRange]] = []
    room = 0
    for part in parts:
        for piece, size in _pieces(storage, directory.data_file(part.name), part, partition_bytes):
            if not tasks or size > room:
                tasks.append([])
                room = partition_bytes
            tasks[-1].append(piece)
            room -= size
    return tasks


def _pieces(storage: Storage, path: Path, part: FileRange, partition_bytes: int) -> Iterator[tuple[FileRange, int]]:
    """Yield a part, or its pieces, with about how many bytes each has."""
    size = part.limit or _size_of(storage, path)
    cuts = _cuts(storage, path, part, partition_bytes) if size > _LARGE * partition_bytes and not part.limit else []
    if not cuts:
        yield part, size
        return
    starts = [(part.start, part.position), *cuts]
    for (first, position), (end, _) in zip(starts, [*cuts, (part.end, 0)], strict=True):
        runs = clipped(part.wanted, first, end)
        if runs:  # a position is that of the first wanted message, which may be behind the cut
            yield replace(part, wanted=runs, position=position if runs[0][0] == first else 0), partition_bytes


def _cuts(storage: Storage, path: Path, part: FileRange, partition_bytes: int) -> list[tuple[int, int]]:
    """Return offsets and positions of messages at which to cut a sealed file; none if no seal tells."""
    cuts, last = [], 0
    for offset, position in sealed_places(storage, path):
        if position - last >= partition_bytes and part.start < offset < part.end:
            cuts.append((offset, position))
        if position - last >= partition_bytes or offset <= part.start:
            last = position
    return cuts


def _size_of(storage: Storage, path: Path) -> int:
    try:
        file = storage.open(path, writable=False)
    except MISSING:  # consumed meanwhile: reading it reports that
        return 0
    try:
        return file.size()
    finally:
        file.close()
