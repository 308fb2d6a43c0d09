"""What a data file that is not written any more says of itself: its seal, where its offsets end, the gaps between.

A gap in the sequence of data files is what was retired: every group of that time had finished it. A group that comes
later has no business with it, and must not take it for a loss.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from holdfast.errors import CorruptionError, StorageError
from holdfast.persistence.filesystem.layout import DataFileName, is_missing, read_data_file_header
from holdfast.persistence.filesystem.storage import File, Storage
from holdfast.persistence.format.constants import FRAME_HEADER_BYTES, FRAMES_START, KIND_SEAL, SEAL_TRAILER
from holdfast.persistence.format.file_header import DataFileHeader
from holdfast.persistence.format.framing import FrameError
from holdfast.persistence.format.seal import Seal
from holdfast.persistence.log.log_files import LogFiles
from holdfast.persistence.segment.frame_scanner import FrameScanner


def read_seal(file: File, header: DataFileHeader) -> Seal | None:
    """Return the seal that ends a data file, or None where none does: it was cut by recovery, or is being written."""
    size = file.size()
    frame_size = int.from_bytes(file.read_at(SEAL_TRAILER.size, size - SEAL_TRAILER.size), "little") if size else 0
    if not FRAME_HEADER_BYTES < frame_size <= size - FRAMES_START:
        return None
    try:
        frame = FrameScanner(file, header.salt, size - frame_size, size).next()
        return Seal.decode(frame.payload) if frame.kind == KIND_SEAL else None
    except (FrameError, ValueError):
        return None


def sealed_places(storage: Storage, path: Path) -> list[tuple[int, int]]:
    """Return offsets of some messages of a file, and their positions, as its seal knows them; none where none tells.

    A file that is gone, or whose header is damaged, tells nothing here: whoever reads it says so. Raises ``OSError``.
    """
    try:
        header = read_data_file_header(storage, path)
        file = storage.open(path, writable=False)
    except StorageError:
        return []
    except OSError as error:
        if is_missing(error):
            return []
        raise
    try:
        seal = read_seal(file, header)
    finally:
        file.close()
    return [] if seal is None else [(header.first_offset + index, position) for index, position in seal.entries]


def retired_ranges(storage: Storage, files: LogFiles) -> list[range]:
    """Return the offsets between the first and the last data file that are not there any more."""
    ranges = []
    for name, following in pairwise(files.names()):
        if following.sequence > name.sequence + 1:
            gap = range(end_offset(storage, files.path(name), name), following.first_offset)
            ranges += [gap] if gap else []
    return ranges


def end_offset(storage: Storage, path: Path, name: DataFileName) -> int:
    """Return the offset behind the last message of a file that is not written any more."""
    try:
        header = read_data_file_header(storage, path)
    except CorruptionError:
        return name.first_offset  # nothing of it can be read: whoever starts now has no business with it either
    file = storage.open(path, writable=False)
    try:
        seal = read_seal(file, header)
        if seal is not None:
            return name.first_offset + seal.message_count
        scanner = FrameScanner(file, header.salt, FRAMES_START, file.size())
        index = 0
        while True:
            try:
                index = scanner.next().next_index
            except FrameError:
                frame = scanner.skip_damage(index)
                if frame is None:
                    return name.first_offset + index
                index = frame.next_index
    finally:
        file.close()
