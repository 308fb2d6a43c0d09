"""Divides a plan into tasks of about the same size: many small data files into one, a large one apart.

A large file is cut at the message positions in its seal; the one that is being written has none, and stays whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from holdfast.arrow.reading.file_range import FileRange, clipped
from holdfast.persistence.filesystem.layout import queue_directory
from holdfast.persistence.filesystem.storage import MISSING, Storage
from holdfast.persistence.log.sealed_file import sealed_places

TASK_BYTES_MIN = 4 * 2**20
"""Starting a task takes as long as reading so much."""

_LARGE = 1.5
"""How much larger than a task a file is before it is cut: two halves would only take more starting."""


QueueParts = list[tuple[int, list[FileRange]]]
"""What one task reads: of each of its queues, by number, the parts in the order of the log."""


def pack(
    storage: Storage, queues: Sequence[tuple[Path, list[FileRange]]], task_bytes: int, task_count_min: int = 1
) -> list[QueueParts]:
    """Return the parts of queues by task; small ones of several queues share a task.

    Parameters
    ----------
    storage : Storage
        Where they are.
    queues : sequence of (Path, list of FileRange)
        What is read of each queue, in the order of its log.
    task_bytes : int
        About the most that one task reads.
    task_count_min : int
        Tasks are made smaller, but not tiny, until there are so many.
    """
    spans = [_spans(storage, root, parts, is_exact=task_count_min > 1) for root, parts in queues]
    if task_count_min > 1:
        size = sum(end - begin for each in spans for begin, end in each)
        task_bytes = min(task_bytes, max(TASK_BYTES_MIN, -(-size // task_count_min)))
    tasks: list[QueueParts] = []
    room = 0
    for number, (root, parts) in enumerate(queues):
        for part, span in zip(parts, spans[number], strict=True):
            for piece, size in _pieces(storage, queue_directory(root).data_file(part.name), part, span, task_bytes):
                if not tasks or size > room:
                    tasks.append([])
                    room = task_bytes
                if not tasks[-1] or tasks[-1][-1][0] != number:
                    tasks[-1].append((number, []))
                tasks[-1][-1][1].append(piece)
                room -= size
    return tasks


def _spans(storage: Storage, root: Path, parts: list[FileRange], *, is_exact: bool) -> list[tuple[int, int]]:
    """Return about where each part begins and ends in its file; only the first and the last may be within one."""
    paths = [queue_directory(root).data_file(part.name) for part in parts]
    spans = [(0, part.limit or _size_of(storage, path)) for part, path in zip(parts, paths, strict=True)]
    if is_exact and parts:
        spans[0] = _begin(storage, paths[0], parts[0]), spans[0][1]
        spans[-1] = spans[-1][0], _end(storage, paths[-1], parts[-1]) or spans[-1][1]
    return spans


def _begin(storage: Storage, path: Path, part: FileRange) -> int:
    """Return about where a part begins in its file; 0 if neither its seal nor the part tells."""
    if part.limit:
        return part.position
    return max((position for offset, position in sealed_places(storage, path) if offset <= part.start), default=0)


def _end(storage: Storage, path: Path, part: FileRange) -> int:
    """Return about where a part ends in its file; 0 if its seal does not tell."""
    places = [] if part.limit else sealed_places(storage, path)
    return next((position for offset, position in places if offset >= part.end), 0)


def _pieces(
    storage: Storage, path: Path, part: FileRange, span: tuple[int, int], task_bytes: int
) -> Iterator[tuple[FileRange, int]]:
    """Yield a part that has about this span of its file, or its pieces, with about how many bytes each has."""
    begin, end = span
    size = end - begin
    cuts = _cuts(storage, path, part, end, task_bytes) if size > _LARGE * task_bytes and not part.limit else []
    if not cuts:
        yield part, size
        return
    starts = [(part.start, part.position), *cuts]
    for (first, position), (last, _) in zip(starts, [*cuts, (part.end, 0)], strict=True):
        runs = clipped(part.wanted, first, last)
        if runs:  # a position is that of the first wanted message, which may be behind the cut
            yield replace(part, wanted=runs, position=position if runs[0][0] == first else 0), task_bytes


def _cuts(storage: Storage, path: Path, part: FileRange, end: int, task_bytes: int) -> list[tuple[int, int]]:
    """Return offsets and positions of messages at which to cut a sealed file; none if no seal tells."""
    cuts, last = [], 0
    for offset, position in sealed_places(storage, path):
        if position - last >= task_bytes and part.start < offset < part.end and end - position >= task_bytes // 2:
            cuts.append((offset, position))
        if position - last >= task_bytes or offset <= part.start:
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
