"""The write side's file: always appends, seals a full data file and goes on in the next one.

One commit is one ``write_at``; no user-space buffer holds an acknowledged record. The caller holds the append lock
around every ``append*`` and :meth:`QueueFileWriter.close`; only :meth:`QueueFileWriter.sync` and
:meth:`QueueFileWriter.publish` run beside them.

What is *not* promised here: an append is durable only once :meth:`QueueFileWriter.sync` has covered it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from holdfast.clock import Clock
from holdfast.errors import RecordTooLargeError
from holdfast.persistence import next_data_file
from holdfast.persistence.checksum import crc32c
from holdfast.persistence.file_header import DataFileHeader
from holdfast.persistence.format import (
    DATA_FILE_BYTES_LIMIT,
    FLAG_CLEAN_CLOSE,
    FLAG_HEADERS,
    FLAGS_SINGLE,
    FRAME_BODY,
    FRAME_BODY_START,
    FRAME_HEADER_BYTES,
    FRAME_PREFIX,
    FRAME_SIZE_END,
    FRAMES_START,
    INDEX_STRIDE_BYTES,
    KIND_MARK,
    KIND_MESSAGE,
    KIND_SEAL,
    STX,
)
from holdfast.persistence.framing import encode_batch, encode_frame
from holdfast.persistence.layout import DataFileName, QueueDirectory
from holdfast.persistence.log_files import LogFiles
from holdfast.persistence.log_tail import LogEnd, LogTail
from holdfast.persistence.poison import Poison, commit_unknown
from holdfast.persistence.seal import Seal, capacity_for, seal_room
from holdfast.persistence.storage import File, Storage, storage_error, write_whole
from holdfast.persistence.write_mark import WriteMarkFile

_pack_body, _pack_prefix = FRAME_BODY.pack, FRAME_PREFIX.pack
_CRC_BYTES = FRAME_BODY_START - FRAME_SIZE_END


class QueueFileWriter:
    """Appends records to the last data file of one queue.

    Parameters
    ----------
    storage, directory, files, clock
        Where the files are, which there are, and where timestamps come from.
    tail : LogTail
        Where to go on.
    mark : File
        ``write.mark``.
    file_bytes : int
        Size at which a data file is sealed; a batch larger than that gets a file of its own.
    synced_only : bool
        Whether consumers may see a record only once it is synced.

    Attributes
    ----------
    end, synced : LogEnd
        Behind the last whole commit, and behind the last one that is known to be on the disk.
    """

    def __init__(
        self,
        storage: Storage,
        directory: QueueDirectory,
        files: LogFiles,
        clock: Clock,
        tail: LogTail,
        mark: File,
        *,
        file_bytes: int,
        synced_only: bool,
    ) -> None:
        self._storage = storage
        self._directory = directory
        self._files = files
        self._time_ns = clock.time_ns
        self._mark = WriteMarkFile(mark, directory.root, synced_only=synced_only)
        self._file_bytes = file_bytes
        self._sync_lock = threading.Lock()
        self._poison = Poison("the write side", directory.root)
        self._timestamp_ns = tail.timestamp_ns
        self._use(tail.file, tail.header, tail.position, tail.message_count)
        self._opened_end = self.end
        self.publish()

    def _use(self, file: File | None, header: DataFileHeader, position: int, index: int) -> None:
        """Make ``file`` the one to append to; without a file, the next append makes one."""
        capacity = min(max(self._file_bytes, file.size()), DATA_FILE_BYTES_LIMIT) if file else 0
        self._file = file
        self._header = header
        self._sequence = header.sequence
        self._first_offset = header.first_offset
        self._salt = header.salt
        self._position = position
        self._index = index
        self._limit = capacity - seal_room(capacity)
        self._timestamp_min_ns = header.base_timestamp_ns
        self._seal_entries: list[tuple[int, int]] = []
        self._next_entry_position = position
        self._synced_position = position
        self.end: LogEnd = (header.sequence, position, header.first_offset + index)
        self.synced: LogEnd = self.end

    # -- Appending ---------------------------------------------------------------------------------------------------

    def append(self, payload: bytes, headers: bytes = b"") -> int:
        """Append one record as a commit of its own; return its offset.

        Raises
        ------
        DiskFullError, StorageError
            It could not be written; nothing of it stays, and the next append is free to try.
        PoisonedError
            An earlier failure left memory and disk possibly apart; nothing was written.
        """
        timestamp = self._time_ns()
        if timestamp < self._timestamp_ns:  # noqa: PLR1730  # max() would be a call for every record
            timestamp = self._timestamp_ns
        position, index, mark = self._position, self._index, self._synced_position
        if headers:
            flags = FLAGS_SINGLE | FLAG_HEADERS
            body = _pack_body(KIND_MESSAGE, flags, len(headers), 1, index, mark, timestamp) + headers + payload
        else:
            body = _pack_body(KIND_MESSAGE, FLAGS_SINGLE, 0, 1, index, mark, timestamp) + payload
        size = len(body) + _CRC_BYTES
        end = position + FRAME_SIZE_END + size
        if end > self._limit:
            self._make_room(FRAME_SIZE_END + size)
            return self.append(payload, headers)
        prefix = _pack_prefix(STX, size, crc32c(self._salt ^ size, body))
        try:
            done = self._file.write_at((prefix, body), position)  # type: ignore[union-attr]  # _make_room has made it
            if done != end - position:
                self._finish_write(prefix + body, done, position)
            # What _advance does, unrolled: every message runs through here.
            if position >= self._next_entry_position:
                self._note_entry(index, position, timestamp)
            offset = self._first_offset + index
            self._timestamp_ns = timestamp
            self._index = index + 1
            self._position = end
            self.end = (self._sequence, end, offset + 1)
            return offset
        except BaseException as error:
            self._undo(position, index, error)

    def append_batch(self, payloads: Sequence[bytes]) -> range:
        """Append records that commit together, in one write and inside one data file; return their offsets.

        Raises as :meth:`append`, and RecordTooLargeError where no data file could hold the batch.
        """
        count = len(payloads)
        size = sum(map(len, payloads)) + FRAME_HEADER_BYTES * count
        if self._position + size > self._limit:
            self._make_room(size)
        assert self._file is not None
        position, index = self._position, self._index
        timestamp = max(self._time_ns(), self._timestamp_ns)
        buffers = encode_batch(
            self._salt, payloads, index=index, durable_mark=self._synced_position, timestamp_ns=timestamp
        )
        try:
            write_whole(self._file, buffers, position)
            first = self._advance(position, size, index, count, timestamp)
        except BaseException as error:
            self._undo(position, index, error)
        return range(first, first + count)

    def append_mark(self) -> None:
        """Append a mark frame and sync it: a witness that everything before it was on the disk."""
        self._append_control(KIND_MARK, 0, b"")
        self.sync()

    def _append_control(self, kind: int, flags: int, payload: bytes) -> None:
        """Append a frame that consumes no offset."""
        assert self._file is not None
        position, index = self._position, self._index
        prefix, body = encode_frame(
            self._salt,
            payload,
            index=index,
            durable_mark=self._synced_position,
            timestamp_ns=self._timestamp_ns,
            kind=kind,
            flags=FLAGS_SINGLE | flags,
        )
        try:
            write_whole(self._file, (prefix, body), position)
            self._advance(position, len(prefix) + len(body), index, 0, self._timestamp_ns)
        except BaseException as error:
            self._undo(position, index, error)

    def _advance(self, position: int, size: int, index: int, count: int, timestamp: int) -> int:
        """Note in memory what has just been written; return the offset of its first message."""
        if count and position >= self._next_entry_position:
            self._note_entry(index, position, timestamp)
        offset = self._first_offset + index
        self._timestamp_ns = timestamp
        self._index = index + count
        self._position = position + size
        self.end = (self._sequence, position + size, offset + count)
        return offset

    def _note_entry(self, index: int, position: int, timestamp: int) -> None:
        """Remember a message for the sparse index in the seal."""
        if not index:
            self._timestamp_min_ns = timestamp
        self._seal_entries.append((index, position))
        self._next_entry_position = position + INDEX_STRIDE_BYTES

    # -- Failing -----------------------------------------------------------------------------------------------------

    def poison(self, cause: BaseException) -> None:
        """Refuse every later write: memory and disk may be apart."""
        self._poison.set(cause)
        self._limit = -1  # sends every append to _make_room, which refuses it

    def _finish_write(self, frame: bytes, done: int, position: int) -> None:
        """Go on behind a short write; the error that stopped it comes out of the next attempt."""
        assert self._file is not None
        write_whole(self._file, (frame[done:],), position + done)

    def _undo(self, position: int, index: int, error: BaseException) -> NoReturn:
        """Take a failed append back, on the disk and in memory, before anything else is appended; else poison."""
        assert self._file is not None
        if self.end[1] > position:  # interrupted behind the last step: it is whole on the disk and in memory
            raise error
        try:
            with self._sync_lock:  # two syncs at once on one handle could share one error between them
                self._poison.check()
                self._file.truncate(position)
                self._file.sync()
            self._position, self._index = position, index
            self.end = (self._header.sequence, position, self._header.first_offset + index)
        except BaseException as undo_error:
            self.poison(undo_error)
            raise commit_unknown("taking back a failed write", self._path, undo_error) from error
        if isinstance(error, OSError):
            raise storage_error(error, "writing", self._path) from error
        raise error

    # -- Syncing -----------------------------------------------------------------------------------------------------

    def sync(self) -> int:
        """Put on the disk what was appended before the call; return the offset behind the last message covered.

        Raises
        ------
        CommitUnknownError
            The sync failed or was interrupted. The write side is poisoned: a second sync could succeed over lost data.
        PoisonedError
            It had been poisoned before.
        """
        with self._sync_lock:
            self._poison.check()
            return self._sync_locked()

    def _sync_locked(self) -> int:
        end = self.end
        if end != self.synced:
            assert self._file is not None
            try:
                self._file.sync()
                self._synced_position = end[1]
                self.synced = end
            except BaseException as error:
                self.poison(error)
                if isinstance(error, OSError):
                    raise commit_unknown("a sync", self._path, error) from error
                raise
        self._publish_locked()
        return end[2]

    @property
    def unsynced_bytes(self) -> int:
        """Bytes appended since the last sync."""
        return self._position - self._synced_position

    def has_room(self, size: int) -> bool:
        """Whether ``size`` bytes of frames fit into the active file."""
        return self._position + size <= self._limit

    @property
    def timestamp_ns(self) -> int:
        """Latest timestamp given to a message."""
        return self._timestamp_ns

    def publish(self) -> None:
        """Tell other processes, through ``write.mark``, how far they may read."""
        with self._sync_lock:
            self._publish_locked()

    def _publish_locked(self) -> None:
        self._mark.publish(self._header, self.end, self.synced, self._timestamp_ns)

    # -- Rolling -----------------------------------------------------------------------------------------------------

    @property
    def _path(self) -> Path:
        return self._directory.data_file(DataFileName(self._header.sequence, self._header.first_offset))

    def _make_room(self, size: int) -> None:
        """See to it that ``size`` bytes of frames fit into the active file; the slow path of every append."""
        self._poison.check()
        if self._position + size <= self._limit:
            return
        wanted = max(self._file_bytes, capacity_for(FRAMES_START + size))
        if wanted > DATA_FILE_BYTES_LIMIT:
            raise RecordTooLargeError(
                f"{size} bytes cannot commit together: a data file holds less than 4 GiB; put them in several batches",
                size_bytes=size,
                max_bytes=DATA_FILE_BYTES_LIMIT - FRAMES_START,
            )
        self._roll(wanted)

    def _roll(self, size_bytes: int) -> None:
        """Seal the active file and go on in a new one, which is made first: where there is no room nothing happens."""
        seal = Seal(
            self._index,
            self._timestamp_min_ns if self._index else 0,
            self._timestamp_ns if self._index else 0,
            tuple(self._seal_entries),
        ).encode()
        header = DataFileHeader(
            queue_id=self._header.queue_id,
            sequence=self._header.sequence + 1,
            first_offset=self.end[2],
            base_timestamp_ns=self._timestamp_ns,
            previous_sequence=self._header.sequence,
            previous_end=self._position + (FRAME_HEADER_BYTES + len(seal) if self._file else 0),
        )
        try:
            file = next_data_file.prepare(self._storage, self._directory, header, size_bytes)
        except OSError as error:
            raise storage_error(error, "making room for the next data file", self._directory.data) from error
        try:
            if self._file is not None:
                self._append_control(KIND_SEAL, 0, seal)
            with self._sync_lock:
                self._poison.check()  # a sync of the old file may have failed meanwhile, and is never tried again
                self._switch(file, header)
        except BaseException:
            if self._file is not file:
                file.close()
            raise

    def _switch(self, file: File, header: DataFileHeader) -> None:
        """Put the sealed file on the disk, whatever the flush policy, publish the next one, and write there."""
        old = self._file
        try:
            if old is not None:
                old.truncate(self._position)
                self._sync_locked()
                self._files.resize(self._header.sequence, self._position)
            name = next_data_file.publish(self._storage, self._directory, header)
            self._files.add(name, file.size())
            self._use(file, header, FRAMES_START, 0)
        except BaseException as error:
            self.poison(error)
            if isinstance(error, OSError):
                raise commit_unknown("rolling to the next data file", self._path, error) from error
            raise
        if old is not None:
            old.close()
        self._publish_locked()

    # -- Closing -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Sync, leave a mark frame as the witness of a clean close, cut the file behind it, and let go of the files."""
        try:
            if self._poison.cause is None and self._file is not None and self.end != self._opened_end:
                self.sync()
                self._append_control(KIND_MARK, FLAG_CLEAN_CLOSE, b"")
                self._file.truncate(self._position)
                self.sync()
                self._files.resize(self._header.sequence, self._position)
        except OSError as error:
            raise storage_error(error, "closing", self._path) from error
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the handles and write nothing: after a fork, in the child."""
        if self._file is not None:
            self._file.close()
        self._mark.close()
