"""Where the log ends: what recovery hands to the writer, and what the writer shows to readers."""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.persistence.filesystem.storage import File
from holdfast.persistence.format.file_header import DataFileHeader
from holdfast.persistence.log.pending_commit_records import PendingCommitRecords

LogEnd = tuple[int, int, int]
"""Sequence of the last data file, position in it, offset of the message that comes next."""


@dataclass(frozen=True, slots=True)
class LogTail:
    """Where the log ends, as recovery left it; all of it is durable.

    Attributes
    ----------
    header : DataFileHeader
        Of the last data file; of an imaginary file number 0 where there is none.
    position, message_count : int
        Behind its last accepted frame, and the messages before that in this file.
    timestamp_ns : int
        Latest timestamp given to a message of the queue.
    file : File or None
        Its handle where it may be appended to: after a clean close only.
    decisions : PendingCommitRecords
        Those of the last data file that have not ended.
    """

    header: DataFileHeader
    position: int
    message_count: int
    timestamp_ns: int
    file: File | None
    decisions: PendingCommitRecords = field(default_factory=PendingCommitRecords)

    @property
    def next_offset(self) -> int:
        """Offset of the message that comes next."""
        return self.header.first_offset + self.message_count
