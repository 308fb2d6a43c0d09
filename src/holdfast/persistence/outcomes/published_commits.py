"""The pending commit records that ``write.mark`` names, for a process that does not own the log."""

from __future__ import annotations

from holdfast.errors import CorruptionError
from holdfast.persistence.filesystem.layout import DataFileName, QueueDirectory, open_if_there
from holdfast.persistence.filesystem.storage import File, Storage
from holdfast.persistence.format.commit_record import CommitRecord
from holdfast.persistence.format.constants import FRAMES_START, KIND_COMMIT_RECORD
from holdfast.persistence.format.file_header import DataFileHeader, block_copies
from holdfast.persistence.log.watermark import Watermark, marked
from holdfast.persistence.segment.batch_file_reader import commit_records_from_behind
from holdfast.persistence.segment.frame_scanner import FrameScanner


def published_commits(storage: Storage, directory: QueueDirectory, queue_id: bytes) -> frozenset[bytes]:
    """Return the nonces of transactions whose commit records are pending in the published log.

    A commit whose mark is not on the disk is missing: after a loss of power only the next opening knows of it.
    Raises ``OSError``, or UnsupportedVersionError if a Holdfast of another format version wrote the data file.
    """
    mark = marked(storage, directory.write_mark)
    if mark is None or mark.queue_id != queue_id:
        return frozenset()
    path = directory.data_file(DataFileName(mark.sequence, mark.first_offset))
    file = open_if_there(storage, path)
    if file is None:  # the log has moved on, or is not whole
        return frozenset()
    with file:
        try:
            header = DataFileHeader.decode(block_copies(file.read_at(FRAMES_START, 0)), str(path))
        except CorruptionError:
            return frozenset()
        is_same = header.file_id == mark.file_id
        return frozenset(each.nonce for each in _pending(file, header, mark)) if is_same else frozenset()


def _pending(file: File, header: DataFileHeader, mark: Watermark) -> list[CommitRecord]:
    if not mark.redo:
        return commit_records_from_behind(file, header)
    frames = FrameScanner(file, header.salt, mark.redo, mark.written).past_messages()
    found = (CommitRecord.decode_any(frame.payload) for frame in frames if frame.kind == KIND_COMMIT_RECORD)
    return [each for each in found if each is not None]
