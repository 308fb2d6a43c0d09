"""Finds the deduplication ids when a queue is opened: in the ring, and in the last data file if it is ahead.

The ring is synced before each roll, so it has all ids of every file but the last. It has all ids of the last file only
if that was closed cleanly; else they come from the file's own messages. docs/format.md, "Deduplication".
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from holdfast.errors import CorruptionError
from holdfast.persistence.filesystem.storage import File, storage_errors
from holdfast.persistence.format.constants import COMPATIBLE_BORN_SEALED, FLAG_HEADERS, FRAMES_START, KIND_MESSAGE
from holdfast.persistence.format.file_header import DataFileHeader, block_copies
from holdfast.persistence.format.framing import Frame, FrameError
from holdfast.persistence.format.message_options import dedup_id_of
from holdfast.persistence.index.dedup_ring import DedupRing, Remembered, digest_of
from holdfast.persistence.log.log_files import LogFiles
from holdfast.persistence.log.log_tail import LogTail
from holdfast.persistence.segment.frame_scanner import FrameScanner, claimed_frames


def recall(files: LogFiles, tail: LogTail, ring: DedupRing) -> list[Remembered]:
    """Return the remembered ids, the oldest first. For a queue that never had an id this only checks the ring's name.

    Parameters
    ----------
    files, tail
        The log, recovered.
    ring : DedupRing
        Not read yet; rewritten later if it is behind, or holds void ids.

    Raises
    ------
    StorageError
        The disk refuses.
    """
    kept = ring.read()
    names = files.names()
    if not ring.exists or not names:
        return kept if not kept else _told(ring, kept, 0)
    if tail.file is not None:  # closed cleanly
        return _told(ring, kept, tail.next_offset)
    last = names[-1]
    path = files.path(last)
    end = tail.position if tail.header.sequence == last.sequence else None  # else a later one is missing
    with storage_errors("reading deduplication ids", path):
        born_sealed, found = False, []
        with ring.storage.open(path, writable=False) as file, suppress(CorruptionError):  # recovery has reported it
            header = DataFileHeader.decode(block_copies(file.read_at(FRAMES_START, 0)), str(path))
            born_sealed = bool(header.features & COMPATIBLE_BORN_SEALED)
            found = [] if born_sealed else list(_ids(file, header, path, file.size() if end is None else end))
    kept = _told(ring, kept, last.first_offset)
    if not born_sealed:
        ring.renew()
    return kept + found


def _told(ring: DedupRing, kept: list[Remembered], end: int) -> list[Remembered]:
    """Return the ring's ids of offsets below ``end``; have the ring rewritten if it holds others."""
    good = [each for each in kept if each.offset < end]
    if len(good) < len(kept):  # of messages in a torn tail: their offsets are given to others
        ring.renew()
    return good


def _ids(file: File, header: DataFileHeader, path: Path, end: int) -> Iterator[Remembered]:
    """Yield the ids of a data file's messages that verify."""
    try:
        frames = list(_with_headers(file, header, end))
    except FrameError:  # damage, which recovery or a reader reports
        frames = _past_damage(file, header, end)
    for frame in frames:
        dedup_id = dedup_id_of(frame.headers)
        if dedup_id:
            timestamp = max(frame.timestamp_ns, header.base_timestamp_ns)
            yield Remembered(digest_of(dedup_id), header.first_offset + frame.index, timestamp)


def _with_headers(file: File, header: DataFileHeader, end: int) -> Iterator[Frame]:
    """Yield the messages that have headers, checked; skip the others by their size. Raises FrameError."""
    scanner = FrameScanner(file, header.salt, FRAMES_START, end)
    behind, expected = FRAMES_START, 0
    for position, behind, kind, flags, index in claimed_frames(file, FRAMES_START, end):  # noqa: B007
        if kind == KIND_MESSAGE:
            if index != expected:
                raise FrameError("not the next message")
            expected += 1
            if flags & FLAG_HEADERS:
                scanner.position = position
                yield scanner.next()
    if behind < end:
        raise FrameError("not the next frame")


def _past_damage(file: File, header: DataFileHeader, end: int) -> list[Frame]:
    """Return the messages with headers that verify, skipping damage between them."""
    frames = FrameScanner(file, header.salt, FRAMES_START, end).past_damage()
    return [frame for frame in frames if frame.kind == KIND_MESSAGE and frame.flags & FLAG_HEADERS]
