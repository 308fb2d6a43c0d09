"""The end of the log: from recovery to the writer, and from the writer to readers."""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.persistence.filesystem.storage import File
from holdfast.persistence.format.file_header import DataFileHeader
from holdfast.persistence.log.pending_commit_records import PendingCommitRecords

LogEnd = tuple[int, int, int]
"""Sequence of the last data file, position in it, offset of the message that comes next."""


@dataclass(frozen=True, slots=True)
class LogTail:
    """The end of the log after recovery; all of it is durable.

    Attributes
    ----------
    header : DataFileHeader
        Of the last data file; of an imaginary file number 0 if there is none.
    position, message_count : int
        Behind its last accepted frame, and the messages before that in this file.
    timestamp_ns : int
        Latest timestamp given to a message of the queue.
    file : File or None
        Its handle if it may be appended to: after a clean close only.
    commit_records : PendingCommitRecords
        Those of the last data file that are pending.
    """

    header: DataFileHeader
    position: int
    message_count: int
    timestamp_ns: int
    file: File | None
    commit_records: PendingCommitRecords = field(default_factory=PendingCommitRecords)

    @property
    def next_offset(self) -> int:
        """Offset of the next message."""
        return self.header.first_offset + self.message_count
