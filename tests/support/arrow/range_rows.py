"""Reads the planned ranges of a queue, one below Arrow and in any storage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.arrow.reading.file_range_reader import FileRangeReader, Opener
from holdfast.arrow.reading.selection import Selection
from holdfast.arrow.reading.snapshot import take_snapshot
from holdfast.persistence.filesystem.layout import QueueDirectory
from holdfast.persistence.filesystem.storage import Storage
from holdfast.persistence.format.report import Damage


def read_parts(
    storage: Storage, root: Path, *, files: Opener | None = None, **options: Any
) -> tuple[dict[int, bytes], list[Damage]]:
    """Return payloads by offset, and losses; the plan comes from the storage, the bytes from ``files`` if given."""
    snapshot = take_snapshot(storage, Selection(root, **options))
    found: list[tuple[int, bytes]] = []
    losses = list(snapshot.missing)
    for part in snapshot.parts:
        path = QueueDirectory(root).data_file(part.name)
        for walked in FileRangeReader(files or storage, path, snapshot.queue_id, part, losses.append).walked():
            ends = zip(walked.bounds[::2], walked.bounds[1::2], strict=True)
            found += zip(walked.offsets, (walked.data[start:end] for start, end in ends), strict=True)
    assert [offset for offset, _ in found] == sorted(dict(found)), "in order, and none twice"
    return dict(found), losses
