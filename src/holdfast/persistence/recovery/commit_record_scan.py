"""Finds the pending commit records in a last data file: from the position in ``write.mark`` to the end."""

from __future__ import annotations

from holdfast.persistence.filesystem.storage import File
from holdfast.persistence.format.commit_record import CommitRecord
from holdfast.persistence.format.constants import COMPATIBLE_BORN_SEALED, KIND_COMMIT_RECORD
from holdfast.persistence.format.file_header import DataFileHeader
from holdfast.persistence.log.pending_commit_records import PendingCommitRecords
from holdfast.persistence.recovery.tail_scan import TailScan
from holdfast.persistence.segment.batch_file_reader import commit_records_from_behind
from holdfast.persistence.segment.frame_scanner import FrameScanner


def find_commit_records(file: File, header: DataFileHeader, scan: TailScan) -> PendingCommitRecords:
    """Return the commit records of a last data file, each with the offset of its first message.

    Some may have ended before the crash: redoing them changes nothing.

    Parameters
    ----------
    file, header
        The data file.
    scan : TailScan
        The result of recovery's scan; everything up to its end counts.
    """
    found = PendingCommitRecords()
    if header.features & COMPATIBLE_BORN_SEALED and scan.is_sealed:
        for born_with in commit_records_from_behind(file, header):
            found.add(born_with, 0, is_durable=True)
        return found
    for frame in FrameScanner(file, header.salt, scan.redo, scan.end).past_messages():  # others report the damage
        commit_record = CommitRecord.decode_any(frame.payload) if frame.kind == KIND_COMMIT_RECORD else None
        if commit_record is not None:
            first = commit_record.first_offset
            placed = commit_record.placed(
                header.first_offset + frame.index - commit_record.count if first is None else first
            )
            found.add(placed, frame.position, is_durable=True)
    return found
