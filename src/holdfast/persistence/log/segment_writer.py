"""Appends frames to the active data file: positions, indexes, checksums, syncs, and recovery from failures.

One commit is one ``write_at``; no user-space buffer holds an acknowledged record. The caller holds the append lock
around every ``append*``; only :meth:`SegmentWriter.sync` and :meth:`SegmentWriter.publish` run beside them.

What is *not* promised here: an append is durable only once :meth:`SegmentWriter.sync` has covered it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from holdfast.clock import Clock
from holdfast.errors import FencedError, RecordTooLargeError
from holdfast.persistence.filesystem.fence import WINDOW_NS, unnamed
from holdfast.persistence.filesystem.layout import DataFileName, QueueDirectory
from holdfast.persistence.filesystem.poison import Poison, commit_unknown
from holdfast.persistence.filesystem.storage import File, storage_error, write_whole
from holdfast.persistence.format.commit_record import CommitRecord
from holdfast.persistence.format.constants import (
    DATA_FILE_BYTES_LIMIT,
    FLAGS_SINGLE,
    FRAME_HEADER_BYTES,
    FRAMES_START,
    INDEX_STRIDE_BYTES,
    KIND_MARK,
)
from holdfast.persistence.format.file_header import DataFileHeader
from holdfast.persistence.format.framing import encode_batch, encode_frame, encode_message
from holdfast.persistence.format.message_options import has_priority
from holdfast.persistence.format.seal import capacity_for, seal_room
from holdfast.persistence.index.priorities import Priorities
from holdfast.persistence.log.file_steps import step_holding
from holdfast.persistence.log.follow_up import follow_up
from holdfast.persistence.log.log_files import LogFiles
from holdfast.persistence.log.log_tail import LogEnd, LogTail
from holdfast.persistence.log.watermark import WatermarkFile


class SegmentWriter:
    """The part of :class:`LogWriter` inside one data file.

    Attributes
    ----------
    end, synced : LogEnd
        Behind the last whole commit, and behind the last one that is known to be on the disk.
    pending_commit_records : PendingCommitRecords
        Those in the active file.
    prioritized_end : int
        Offset behind the last message that may have a priority; 0: none ever had. Never behind :attr:`end`: it is
        raised before a message is written. An append that fails leaves it too high.
    keeps_room : bool
        Whether what is left of the active file is kept: every append needs the next one.
    """

    def __init__(
        self,
        directory: QueueDirectory,
        files: LogFiles,
        clock: Clock,
        tail: LogTail,
        mark: WatermarkFile,
        priorities: Priorities,
        *,
        file_bytes: int,
    ) -> None:
        self._storage = files.storage
        self._directory = directory
        self._files = files
        self._time_ns = clock.time_ns
        self._mark = mark
        self._mark_trouble = f"write.mark of {directory.root} cannot be written; other processes see new messages later"
        self._compared_ns = self._named_ns = -WINDOW_NS
        self._priorities = priorities
        self._file_bytes = file_bytes
        self.pending_commit_records = tail.commit_records
        self._is_abandoned = False
        self._wanted_bytes = 0
        self._sync_lock = threading.Lock()
        self._poison = Poison("the write side", directory.root)
        self._timestamp_ns = tail.timestamp_ns
        capacity = step_holding(tail.position, file_bytes) if tail.file is not None else 0
        self._use(tail.file, tail.header, tail.position, tail.message_count, capacity)
        self._opened_end = self.end
        self.prioritized_end = tail.next_offset if priorities.is_used else 0
        self.publish()
        self._compared_ns = (
            self._named_ns
        ) = -WINDOW_NS  # the first append may go into the file that another owner still writes

    def _use(self, file: File | None, header: DataFileHeader, position: int, index: int, capacity: int) -> None:
        """Make ``file`` the one to append to, up to ``capacity``; without one that is 0: the next append makes one."""
        self._file = file
        self._capacity = capacity
        self._header = header
        self._sequence = header.sequence
        self._first_offset = header.first_offset
        self._salt = header.salt
        self._position = position
        self._index = index
        self._limit = capacity - seal_room(capacity)
        self.keeps_room = False
        self._timestamp_min_ns = header.base_timestamp_ns
        self._seal_entries: list[tuple[int, int]] = []
        self._next_entry_position = position
        self._synced_position = position
        self._named_ns = -WINDOW_NS
        self.end: LogEnd = (header.sequence, position, header.first_offset + index)
        self.synced: LogEnd = self.end

    # -- Appending ---------------------------------------------------------------------------------------------------

    def append(self, payload: bytes, headers: bytes = b"") -> int | None:
        """Append one record as a commit of its own; return its offset, or None if it needs a roll before.

        Raises
        ------
        DiskFullError, StorageError
            It could not be written; nothing of it stays, and the next append may succeed.
        PoisonedError
            An earlier failure left memory and disk possibly apart; nothing was written.
        """
        timestamp = self._time_ns()
        if timestamp < self._timestamp_ns:  # noqa: PLR1730  # max() would be a call for every record
            timestamp = self._timestamp_ns
        if timestamp - self._compared_ns >= WINDOW_NS:
            self._look_for_others()
        position, index, mark = self._position, self._index, self._synced_position
        if headers and has_priority(headers):
            self._prioritize(1)
        size = FRAME_HEADER_BYTES + len(headers) + len(payload)
        end = position + size
        if end > self._limit:
            self._lack_room(size)
            return None
        buffers = encode_message(self._salt, index, mark, timestamp, headers, payload)
        try:
            done = self._file.write_at(buffers, position)  # type: ignore[union-attr]  # else the limit is 0
            if done != size:
                self._finish_write(b"".join(buffers), done, position)
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

    def append_batch(
        self,
        payloads: Sequence[bytes],
        headers: Mapping[int, bytes] | None = None,
        commit_record: CommitRecord | None = None,
    ) -> range | None:
        """Append records that commit together, in one write and inside one data file; return their offsets.

        As :meth:`append` it returns None, and has written nothing, if the active file has no room for them.

        Parameters
        ----------
        payloads, headers
            The payloads, and the encoded headers of messages that have some, by number in the batch.
        commit_record : CommitRecord or None
            Ends the batch. It is pending from here on.

        Raises as :meth:`append`, and RecordTooLargeError if no data file could hold the batch.
        """
        count = len(payloads)
        size = sum(map(len, payloads)) + FRAME_HEADER_BYTES * count
        if headers:
            size += sum(map(len, headers.values()))
            if any(map(has_priority, headers.values())):
                self._prioritize(count)
        encoded = commit_record.encode() if commit_record is not None else None
        if encoded is not None:
            size += FRAME_HEADER_BYTES + len(encoded)
        now = max(self._time_ns(), self._timestamp_ns)
        if now - self._compared_ns >= WINDOW_NS:
            self._look_for_others()
        timestamp = now if count else self._timestamp_ns  # without a message no time passes for retention
        if self._position + size > self._limit:
            self._lack_room(size)
            return None
        assert self._file is not None
        position, index = self._position, self._index
        buffers = encode_batch(
            self._salt,
            payloads,
            index=index,
            durable_mark=self._synced_position,
            timestamp_ns=timestamp,
            headers=headers,
            commit_record=encoded,
        )
        try:
            if commit_record is not None and encoded is not None:  # before it is there: a request must not miss it
                at = position + size - FRAME_HEADER_BYTES - len(encoded)
                self.pending_commit_records.add(commit_record.placed(self._first_offset + index), at)
            write_whole(self._file, buffers, position)
            first = self._advance(position, size, index, count, timestamp)
        except BaseException as error:
            try:
                self._undo(position, index, error)
            except BaseException:  # if it could not be taken back, the outcome is unknown
                if commit_record is not None and self.end[1] <= position and self._poison.cause is None:
                    self.pending_commit_records.remove(commit_record.nonce)
                raise
        return range(first, first + count)

    def append_mark(self) -> None:
        """Append a mark frame and sync it: a witness that everything before it was on the disk."""
        if self._file is not None:  # else the last file is sealed, and its seal proves it
            self.check_fence()
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
        """Update memory after a write; return the offset of its first message."""
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

    def _prioritize(self, count: int) -> None:
        """Make known that some of the next ``count`` messages have a priority, before any reader can see them."""
        self._poison.check()
        self._priorities.note()
        self.prioritized_end = max(self.prioritized_end, self.end[2] + count)

    # -- Failing -----------------------------------------------------------------------------------------------------

    @property
    def is_poisoned(self) -> bool:
        """Whether memory and disk may be apart."""
        return self._poison.cause is not None

    def check_poison(self) -> None:
        """Raise PoisonedError if memory and disk may be apart."""
        self._poison.check()

    def poison(self, cause: BaseException) -> None:
        """Refuse every later write: memory and disk may be apart."""
        self._poison.set(cause)
        self._limit = -1  # sends every append to _lack_room, which refuses it

    def _finish_write(self, frame: bytes, done: int, position: int) -> None:
        """Continue after a short write; the next attempt raises the error that stopped it."""
        assert self._file is not None
        write_whole(self._file, (frame[done:],), position + done)

    def _undo(self, position: int, index: int, error: BaseException) -> NoReturn:
        """Take a failed append back, on the disk and in memory, before anything else is appended; else poison."""
        assert self._file is not None
        if self.end[1] > position:  # interrupted after the last step: it is whole on the disk and in memory
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
        """Sync everything appended before the call; return the offset behind the last message covered.

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
                self._compare_locked()
                self._synced_position = end[1]
                self.synced = end
            except BaseException as error:
                self.poison(error)
                if isinstance(error, OSError | FencedError):
                    raise commit_unknown("a sync", self._path, error) from error
                raise
        self._publish_locked()
        return end[2]

    @property
    def unsynced_bytes(self) -> int:
        """Bytes appended since the last sync."""
        return self._position - self._synced_position

    def has_space(self, size: int) -> bool:
        """Whether ``size`` bytes of frames fit into the active file."""
        return self._position + size <= self._limit

    def publish(self) -> None:
        """Publish the high watermark to other processes, in ``write.mark``; raises as :meth:`check_fence`."""
        with self._sync_lock:
            if self._poison.cause is None:
                self._check_fence_locked()
                self._publish_locked()

    def _publish_locked(self) -> None:
        end = self.end
        redo = self.pending_commit_records.first_position(end[1])
        follow_up(self._mark_trouble, self._mark.publish, self._header, end, self.synced, redo, self._timestamp_ns)

    # -- Fencing -----------------------------------------------------------------------------------------------------

    def check_fence(self) -> None:
        """Compare the token in ``write.mark`` with that of this opening.

        Raises
        ------
        FencedError
            Another owner has opened the queue. The write side is poisoned; nothing was written.
        StorageError
            The disk refuses.
        """
        with self._sync_lock:
            self._check_fence_locked()

    def _look_for_others(self) -> None:
        """As :meth:`check_fence`; a sync that is under way compares by itself."""
        if not self._sync_lock.locked():
            self.check_fence()

    def _check_fence_locked(self) -> None:
        self._poison.check()
        try:
            self._compare_locked()
        except FencedError as error:
            self.poison(error)
            raise
        except OSError as error:
            raise storage_error(error, "looking for other owners", self._directory.write_mark) from error

    def _compare_locked(self) -> None:
        """Compare tokens; now and then, because that takes longer, check also that the active file has a name."""
        self._mark.check_fence()
        now = max(self._time_ns(), self._timestamp_ns)  # also if all commits are without messages
        if now - self._named_ns >= WINDOW_NS and self._file is not None:
            if not self._file.link_count():
                raise unnamed(self._path)
            self._named_ns = now
        self._compared_ns = now

    def rest(self) -> None:
        """Close ``write.mark`` while there is nothing to publish; does nothing beside a sync."""
        if self.end == self.synced and not self._sync_lock.locked():
            with self._sync_lock:
                self._mark.rest()
                self._compared_ns = -WINDOW_NS  # cannot be opened again: an append fails, not its sync

    # -- Where there is no room --------------------------------------------------------------------------------------

    @property
    def _path(self) -> Path:
        return self._directory.data_file(DataFileName(self._header.sequence, self._header.first_offset))

    def _lack_room(self, size: int) -> None:
        """See whether a roll may make room for ``size`` bytes of frames; the slow path of every append."""
        self._poison.check()
        check_fits(size)
        self.check_fence()
        self._wanted_bytes = size


def check_fits(size: int) -> None:
    """Refuse frames that no data file holds; raises RecordTooLargeError."""
    if capacity_for(FRAMES_START + size) > DATA_FILE_BYTES_LIMIT:
        raise RecordTooLargeError(
            f"{size} bytes cannot commit together: a data file holds less than 4 GiB; put them in several batches",
            size_bytes=size,
            max_bytes=DATA_FILE_BYTES_LIMIT - FRAMES_START,
        )
