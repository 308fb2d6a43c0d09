"""A queue with a long backlog that takes no room: the first data files are real, those behind them have a hole.

What plans a read looks at names, sizes, headers and seals, and at frames of what it takes first. All of these are as
they would be: small files in front, as data files grow in steps, then files of the largest size.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from holdfast import FlushPolicy, PersistentQueue
from holdfast.persistence.filesystem.layout import DataFileName, QueueDirectory, list_data_files, read_data_file_header
from holdfast.persistence.filesystem.storage import OsStorage
from holdfast.persistence.format.constants import SEAL_TRAILER
from holdfast.persistence.format.file_header import DataFileHeader, block_buffers, random_id
from holdfast.persistence.log.watermark import read_write_mark

DATA_FILE_BYTES = 64 * 2**20
"""The default."""


def fill_all_steps(path: Path, payload: bytes) -> None:
    """Make a queue of full data files up to one of the largest size, and the beginning of the next.

    Each one is four times as large as the one in front of it: together they have a third more than the largest.
    """
    count = DATA_FILE_BYTES * 4 // 3 // len(payload)
    with PersistentQueue(path, mode="exclusive", flush=FlushPolicy.never(), data_file_bytes=DATA_FILE_BYTES) as queue:
        for _ in range(count // 100 + 1):
            queue.put_many([payload] * 100)


def lengthen(path: Path, file_count: int) -> None:
    """Give a queue that :func:`fill_all_steps` has made so many data files: more like its largest one, behind that."""
    storage, directory = OsStorage(), QueueDirectory(path)
    *smaller, first, last = list_data_files(storage, directory)
    header = read_data_file_header(storage, directory.data_file(first))
    previous_end = read_data_file_header(storage, directory.data_file(last)).previous_end
    size, seal = _seal_of(directory.data_file(first))
    message_count = last.first_offset - first.first_offset
    names = [
        DataFileName(first.sequence + each, first.first_offset + each * message_count)
        for each in range(file_count - len(smaller))
    ]
    _move_last(storage, directory, last, names[-1])
    for name in names[1:-1]:
        with directory.data_file(name).open("wb") as file:
            own = replace(_renamed(header, name), file_id=random_id(), previous_end=previous_end)
            file.write(block_buffers(own.encode()))
            file.truncate(size)
            file.seek(size - len(seal))
            file.write(seal)


def _seal_of(path: Path) -> tuple[int, bytes]:
    """Return the size of a sealed file and the frame that ends it; it verifies where the salt is the same."""
    content = path.read_bytes()
    return len(content), content[-int.from_bytes(content[-SEAL_TRAILER.size :], "little") :]


def _renamed(header: DataFileHeader, name: DataFileName) -> DataFileHeader:
    return replace(header, sequence=name.sequence, first_offset=name.first_offset, previous_sequence=name.sequence - 1)


def _move_last(storage: OsStorage, directory: QueueDirectory, last: DataFileName, name: DataFileName) -> None:
    """Give the file that is being written its new place in the log, in its header and in ``write.mark`` too."""
    old, new = directory.data_file(last), directory.data_file(name)
    header = read_data_file_header(storage, old)
    os.rename(old, new)
    with new.open("r+b") as file:
        file.write(block_buffers(_renamed(header, name).encode()))
    marked = storage.open(directory.write_mark)
    try:
        mark = read_write_mark(marked, header.queue_id)
        assert mark is not None, "the queue was closed"
        marked.write_at((replace(mark, sequence=name.sequence, first_offset=name.first_offset).encode(),), 0)
    finally:
        marked.close()
