"""Finds a control frame from its end: the last four bytes of a seal or a commit record are its frame's size."""

from __future__ import annotations

from holdfast.persistence.filesystem.storage import ReadableFile
from holdfast.persistence.format.constants import (
    COMMIT_RECORD_TRAILER,
    FRAME_HEADER,
    FRAME_HEADER_BYTES,
    FRAMES_START,
    KIND_SEAL,
    SEAL_TRAILER,
    STX,
)
from holdfast.persistence.format.file_header import DataFileHeader
from holdfast.persistence.format.framing import Frame, FrameError
from holdfast.persistence.format.seal import Seal
from holdfast.persistence.segment.frame_scanner import FrameScanner

assert COMMIT_RECORD_TRAILER.format == SEAL_TRAILER.format, "one way to find both"


def frame_before(file: ReadableFile, salt: int, end: int, kind: int) -> Frame | None:
    """Return the frame of this kind that ends at ``end``, or None if none that verifies does."""
    if end < FRAMES_START + FRAME_HEADER_BYTES + SEAL_TRAILER.size:
        return None
    size = int.from_bytes(file.read_at(SEAL_TRAILER.size, end - SEAL_TRAILER.size), "little")
    if not FRAME_HEADER_BYTES < size <= end - FRAMES_START:
        return None
    try:
        frame = FrameScanner(file, salt, end - size, end).next()
    except FrameError:
        return None
    return frame if frame.kind == kind and frame.end == end else None


def read_seal(file: ReadableFile, header: DataFileHeader) -> Seal | None:
    """Return the seal that ends a data file, or None if it has none: it was cut by recovery, or is being written."""
    frame = frame_before(file, header.salt, file.size(), KIND_SEAL)
    try:
        return None if frame is None else Seal.decode(frame.payload)
    except ValueError:
        return None


def seal_position(file: ReadableFile) -> int | None:
    """Return the start of the seal that ends a file, if it looks like one, verified or not; else None."""
    size = file.size()
    at = size - int.from_bytes(file.read_at(SEAL_TRAILER.size, max(0, size - SEAL_TRAILER.size)), "little")
    header = file.read_at(FRAME_HEADER_BYTES, at) if at >= FRAMES_START else b""
    if len(header) < FRAME_HEADER_BYTES:
        return None
    stx, _, _, kind, *_ = FRAME_HEADER.unpack(header)
    return at if (stx, kind) == (STX, KIND_SEAL) else None
