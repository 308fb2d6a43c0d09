"""The parts of a log by themselves, in a simulated storage: a queue directory, data files of chosen frames, writers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from holdfast.persistence.filesystem.layout import DataFileName, QueueDirectory, open_directory
from holdfast.persistence.filesystem.storage import Storage, write_whole
from holdfast.persistence.format.commit_record import CommitRecord
from holdfast.persistence.format.constants import FLAGS_SINGLE, FRAMES_START, KIND_MESSAGE
from holdfast.persistence.format.file_header import DataFileHeader, block_buffers
from holdfast.persistence.format.framing import encode_frame
from holdfast.persistence.format.message_options import MessageOptions, not_too_large
from holdfast.persistence.index.priorities import Priorities
from holdfast.persistence.log.log_files import LogFiles
from holdfast.persistence.log.log_writer import LogWriter
from holdfast.persistence.log.watermark import WatermarkFile
from holdfast.persistence.recovery.log_recovery import RecoveredLog, recover_log
from support.builders.clocks import START_NS, FakeClock
from support.storages.simulated_storage import SimulatedStorage

FILE_BYTES = 6000


class RollingWriter(LogWriter):
    """A log writer that rolls by itself, as no ids and no other files depend on what its data files say."""

    def append(self, payload: bytes, headers: bytes = b"") -> int:
        """Append one record, and roll before if there is no room; return its offset."""
        while (offset := super().append(payload, headers)) is None:
            self.roll()
        return offset

    def append_batch(
        self,
        payloads: Sequence[bytes],
        headers: Mapping[int, bytes] | None = None,
        decision: CommitRecord | None = None,
    ) -> range:
        """Append records that commit together, and roll before if there is no room; return their offsets."""
        while (offsets := super().append_batch(payloads, headers, decision)) is None:
            self.roll()
        return offsets


class LogParts:
    """A new queue directory, its id, and short ways to put things into it.

    Attributes
    ----------
    storage, directory, queue_id, clock
        What every part is made of.
    """

    def __init__(self, storage: SimulatedStorage | None = None) -> None:
        self.storage = storage or SimulatedStorage()
        self.directory: QueueDirectory
        self.directory, self.queue_id, _ = open_directory(self.storage, Path("/queue"), create=True)
        self.clock = FakeClock()

    def files(self) -> LogFiles:
        """Return a fresh catalogue."""
        return LogFiles(self.storage, self.directory, self.queue_id)

    def recover(self, finished_offset: int = 0, files: LogFiles | None = None) -> RecoveredLog:
        """Recover the log."""
        return recover_log(
            self.storage, self.directory, files or self.files(), self.queue_id, finished_offset=finished_offset
        )

    def writer(self, *, synced_only: bool = True, file_bytes: int = FILE_BYTES) -> RollingWriter:
        """Recover the log and return a writer that continues where it ends."""
        files = self.files()
        log = self.recover(files=files)
        return RollingWriter(
            self.directory,
            files,
            self.clock,
            log.tail,
            WatermarkFile(self.storage, self.directory.write_mark, log.mark, log.fence, synced_only=synced_only),
            Priorities(self.storage, self.directory),
            file_bytes=file_bytes,
        )

    def data_file(
        self, frames: Sequence[bytes], *, header: DataFileHeader | None = None, behind: bytes = b""
    ) -> tuple[Path, DataFileHeader]:
        """Make a data file of these frames, with something behind them; return where it is, and its header."""
        header = header or self.header()
        path = self.directory.data_file(DataFileName(header.sequence, header.first_offset))
        put(self.storage, path, block_buffers(header.encode()) + b"".join(frames) + behind)
        return path, header

    def header(self, sequence: int = 1, first_offset: int = 0, previous_end: int = 0) -> DataFileHeader:
        """Return a header of this queue whose salt tests know."""
        return DataFileHeader(
            self.queue_id, sequence, first_offset, START_NS, sequence - 1, previous_end, b"f" * 16, 0x5A17
        )


def put(storage: Storage, path: Path, content: bytes) -> None:
    """Make a durable file of this content, replacing what stood there."""
    file = storage.open(path, create=True)
    try:
        file.truncate(0)
        write_whole(file, (content,), 0)
        file.sync()
    finally:
        file.close()
    storage.sync_directory(path.parent)


def with_options(options: MessageOptions, headers: bytes) -> bytes:
    """Return a message's options followed by an application's encoded headers; raises RecordTooLargeError."""
    return not_too_large(options.encode() + headers)


def frame(
    header: DataFileHeader,
    payload: bytes,
    index: int,
    *,
    durable_mark: int = FRAMES_START,
    flags: int = FLAGS_SINGLE,
    kind: int = KIND_MESSAGE,
    timestamp_ns: int = START_NS,
) -> bytes:
    """Return one frame of a data file."""
    return b"".join(
        encode_frame(
            header.salt,
            payload,
            index=index,
            durable_mark=durable_mark,
            timestamp_ns=timestamp_ns,
            kind=kind,
            flags=flags,
        )
    )
