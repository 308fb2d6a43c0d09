"""Facts about data files that are not written any more: the ends of their offsets, and the gaps between them.

A gap in the sequence of data files is made of retired files, and a gap in a merged file of messages that were left out:
every group of that time had finished them. A later group must not take the gap for a loss.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from holdfast.errors import CorruptionError, StorageError
from holdfast.persistence.filesystem.layout import DataFileName, read_data_file_header
from holdfast.persistence.filesystem.storage import MISSING, Storage
from holdfast.persistence.format.constants import FRAMES_START
from holdfast.persistence.format.framing import Frame
from holdfast.persistence.log.log_files import LogFiles
from holdfast.persistence.segment.frame_scanner import FrameScanner
from holdfast.persistence.segment.frame_trailer import read_seal


def sealed_places(storage: Storage, path: Path) -> list[tuple[int, int]]:
    """Return offsets of some messages of a file, and their positions, from its seal; none if it has none.

    A file that is gone, or has a damaged header, gives none; reading it reports that. Raises ``OSError``.
    """
    try:
        header = read_data_file_header(storage, path)
        file = storage.open(path, writable=False)
    except StorageError:
        return []
    except MISSING:
        return []
    with file:
        seal = read_seal(file, header)
    return [] if seal is None else [(header.first_offset + index, position) for index, position in seal.entries]


def retired_ranges(files: LogFiles, first: int = 0) -> list[range]:
    """Return the missing offsets between the first and the last data file, except those that damage has taken.

    Those that end before offset ``first`` are left out, and their files are not read.
    """
    ranges = []
    for name, following in pairwise(files.names()):
        if following.first_offset <= first:
            continue
        if name.is_merged:
            ranges += left_out(files.storage, files.path(name), name)
        if not name.is_before(following):
            ranges.append(range(end_offset(files.storage, files.path(name), name), following.first_offset))
    return [gap for gap in ranges if gap and gap.stop > first]


def left_out(storage: Storage, path: Path, name: DataFileName) -> list[range]:
    """Return the offsets that a merged file has not, up to its end; damage is none of them. Reads the whole file."""
    try:
        header = read_data_file_header(storage, path)
    except CorruptionError:
        return []
    ranges, expected = [], 0
    with storage.open(path, writable=False) as file:
        for each in FrameScanner(file, header.salt, FRAMES_START, file.size(), is_merged=True).frames():
            index = each.index if isinstance(each, Frame) else expected if each.frame is None else each.frame.index
            if isinstance(each, Frame) and index > expected:
                ranges.append(range(name.first_offset + expected, name.first_offset + index))
            expected = max(expected, each.next_index if isinstance(each, Frame) else index)
    return ranges


def end_offset(storage: Storage, path: Path, name: DataFileName) -> int:
    """Return the offset behind the last message of a file that is not written any more."""
    try:
        header = read_data_file_header(storage, path)
    except CorruptionError:
        return name.first_offset  # nothing of it can be read, so a group that starts now ignores it too
    with storage.open(path, writable=False) as file:
        seal = read_seal(file, header)
        if seal is not None:
            return name.first_offset + seal.message_count
        scanner = FrameScanner(file, header.salt, FRAMES_START, file.size())
        index = 0
        for frame in scanner.past_damage():
            index = frame.next_index
        return name.first_offset + index
