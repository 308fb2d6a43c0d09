"""The write side's file: always appends, seals a full data file and continues in the next one.

The caller holds the append lock around everything but :meth:`LogWriter.sync` and
:meth:`LogWriter.publish`.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.errors import DiskFullError, FencedError
from holdfast.persistence.filesystem.layout import DataFileName
from holdfast.persistence.filesystem.poison import commit_unknown
from holdfast.persistence.filesystem.storage import DISK_FULL_ERRNOS, File, free_bytes, storage_error
from holdfast.persistence.format.constants import (
    COMPATIBLE_BORN_SEALED,
    DATA_FILE_BYTES_LIMIT,
    FLAG_CLEAN_CLOSE,
    FLAG_PENDING_COMMIT_RECORDS,
    FLAGS_SINGLE,
    FRAME_HEADER_BYTES,
    FRAMES_START,
    KIND_COMMIT_RECORD,
    KIND_MARK,
    KIND_SEAL,
)
from holdfast.persistence.format.file_header import DataFileHeader
from holdfast.persistence.format.framing import encode_frame
from holdfast.persistence.format.seal import Seal, capacity_for, seal_room
from holdfast.persistence.log import next_data_file
from holdfast.persistence.log.file_steps import least_holding, step_after, step_holding
from holdfast.persistence.log.segment_writer import SegmentWriter, check_fits
from holdfast.persistence.segment.batch_file import adopt_header, append_carried
from holdfast.persistence.segment.batch_file_reader import BatchSummary


class LogWriter(SegmentWriter):
    """Appends records to the last data file of one queue.

    Parameters
    ----------
    directory, files, clock
        The queue, its known data files, and the clock for timestamps.
    tail : LogTail
        The end of the log to append to.
    mark : WatermarkFile
        ``write.mark``, with the token of this opening.
    priorities : Priorities
        Whether messages may have priorities.
    file_bytes : int
        Size of the largest data files, which begin smaller (:mod:`holdfast.persistence.log.file_steps`); a larger
        batch gets a file of its own.
    """

    def change_file_bytes(self, file_bytes: int) -> None:
        """Let the next data files have another size."""
        self._file_bytes = file_bytes

    def reserve_rest(self) -> bool:
        """Reserve the rest of a file that was closed: then it can be sealed on a full disk. False if there is none."""
        if self._file is None:
            return True
        try:
            self._file.allocate(self._capacity)
        except OSError:
            return False
        self._files.resize(self._header.sequence, self._file.size())
        return True

    def keep_room(self, *, is_kept: bool) -> None:
        """Let no append use what is left of the active file, or let every append; until the next file begins."""
        if self._poison.cause is None:
            self._limit = self._position if is_kept else self._capacity - seal_room(self._capacity)
        self.keeps_room = is_kept
        if (cause := self._poison.cause) is not None:  # last: the sync of another thread may have failed just now
            self.poison(cause)

    # -- Rolling -----------------------------------------------------------------------------------------------------

    @property
    def oldest_ns(self) -> int | None:
        """Timestamp of the oldest message in the active file, or a bound below it; None if there is none."""
        return self._timestamp_min_ns if self._file is not None and self._index else None

    def roll(self, *, is_full: bool = True) -> None:
        """Seal the active file and begin the next one, with room for the append that has just found none.

        That append has checked the fence; its caller has made durable since what only the active file says.
        ``is_full``: False if there is no such append, and the file is only old.

        Raises
        ------
        RecordTooLargeError, DiskFullError, StorageError
            Nothing has happened: the next file is made first.
        CommitUnknownError, PoisonedError
            As :meth:`append`.
        """
        seal = self._seal()
        header = DataFileHeader(
            queue_id=self._header.queue_id,
            sequence=self._header.sequence + 1,
            first_offset=self.end[2],
            base_timestamp_ns=self._timestamp_ns,
            previous_sequence=self._header.sequence,
            previous_end=self._sealed_end(seal),
        )
        carried, positions = self._carry(header)
        frames_bytes = len(carried) + (self._wanted_bytes if is_full else 0)
        check_fits(frames_bytes)
        held = capacity_for(FRAMES_START + frames_bytes)
        step = max(self._next_step(is_full=is_full), step_holding(held, self._file_bytes))
        file = self._make_next(header, carried, least_holding(held, self._file_bytes), step)

        def publish() -> None:
            name = next_data_file.publish(self._storage, self._directory, header)
            self._files.add(name, file.size())
            self.pending_commit_records.move(positions)
            self._use(file, header, FRAMES_START + len(carried), 0, min(file.size(), DATA_FILE_BYTES_LIMIT))

        try:
            self._leave_file(seal, publish)
        except BaseException:
            if self._file is not file:
                file.close()
            raise

    def _make_next(self, header: DataFileHeader, carried: bytes, least_bytes: int, step_bytes: int) -> File:
        """Make the next file in its step; on a full disk the smallest that is enough.

        Each attempt takes a spare, and the first one that fails gives its space back: so no spare is left if both fail.
        """
        directory, where = self._directory, self._directory.data
        try:
            return next_data_file.prepare(self._storage, directory, header, step_bytes, carried)
        except OSError as error:
            if error.errno not in DISK_FULL_ERRNOS:
                raise storage_error(error, "making room for the next data file", where) from error
        try:
            return next_data_file.prepare(self._storage, directory, header, least_bytes, carried)
        except OSError as error:
            if error.errno not in DISK_FULL_ERRNOS:
                raise storage_error(error, "making room for the next data file", where) from error
            raise DiskFullError(
                f"disk full: the next data file in {where} takes {least_bytes} bytes at least, and "
                f"{free_bytes(where) or 0} are free ({error.strerror}); nothing of it was kept. Drain the queue or "
                f"free disk space, then try again (data_file_bytes={self._file_bytes} is the most that a file takes)",
                path=str(where),
            ) from error

    def _next_step(self, *, is_full: bool) -> int:
        """Return the step of the next file: a larger one behind a full file, the same one behind any other."""
        if self._file is not None and is_full:
            return step_after(self._capacity, self._file_bytes)
        return step_holding(min(self._position, self._file_bytes), self._file_bytes)

    def _seal(self) -> bytes:
        """Return the payload of the active file's seal."""
        return Seal(
            self._index,
            self._timestamp_min_ns if self._index else 0,
            self._timestamp_ns if self._index else 0,
            tuple(self._seal_entries),
        ).encode()

    def _sealed_end(self, seal: bytes) -> int:
        return self._position + (FRAME_HEADER_BYTES + len(seal) if self._file else 0)

    def _carry(self, header: DataFileHeader) -> tuple[bytes, dict[bytes, int]]:
        """Return the pending commit records as the first frames of the next file, and their positions there."""
        frames, positions, at = [], {}, FRAMES_START
        for commit_record in self.pending_commit_records:
            frame = b"".join(
                encode_frame(
                    header.salt,
                    commit_record.encode(),
                    index=0,
                    durable_mark=0,
                    timestamp_ns=self._timestamp_ns,
                    kind=KIND_COMMIT_RECORD,
                    flags=FLAGS_SINGLE,
                )
            )
            positions[commit_record.nonce] = at
            at += len(frame)
            frames.append(frame)
        return b"".join(frames), positions

    def _leave_file(self, seal: bytes, publish: Callable[[], None]) -> None:
        """Seal the active file and sync it, under any flush policy; then let ``publish`` bring the next.

        From the sync on, a failure leaves the contents of the disk unknown, and poisons.
        """
        if self._file is not None:
            self._append_control(KIND_SEAL, 0, seal)
        with self._sync_lock:
            self._poison.check()  # a sync of the old file may have failed meanwhile, and is never tried again
            old = self._file
            try:
                if old is not None:
                    old.truncate(self._position)
                    self._sync_locked()
                    self._files.resize(self._header.sequence, self._position)
                self._compare_locked()  # so late, because another owner's file may have the name by now
                publish()
                self._compare_locked()  # another owner that came in between has not seen this file
            except BaseException as error:
                self.poison(error)
                if isinstance(error, OSError | FencedError):
                    raise commit_unknown("rolling to the next data file", self._path, error) from error
                raise
            if old is not None:
                old.close()
            self._publish_locked()

    # -- Adopting ----------------------------------------------------------------------------------------------------

    def adopt(self, file: File, batch: BatchSummary) -> range:
        """Make a synced batch file the next data file, sealed as it is: its name in ``data/`` commits it.

        The caller has checked the fence, and made durable what only the active file says.

        Parameters
        ----------
        file : File
            Its handle, which is closed here.
        batch : BatchSummary
            Its contents, its path, and its commit record.

        Returns
        -------
        range
            Offsets of its messages.

        Raises
        ------
        DiskFullError, StorageError
            Nothing has happened; the file is where it was.
        CommitUnknownError, PoisonedError
            As :meth:`append`.
        """
        self._poison.check()
        seal, carried = self._seal(), list(self.pending_commit_records)
        first = self.end[2]
        header = DataFileHeader(
            queue_id=self._header.queue_id,
            sequence=self._header.sequence + 1,
            first_offset=first,
            base_timestamp_ns=max(self._timestamp_ns, self._time_ns()),
            previous_sequence=self._header.sequence,
            previous_end=self._sealed_end(seal),
            file_id=batch.header.file_id,
            salt=batch.header.salt,
            features=COMPATIBLE_BORN_SEALED,
        )
        try:
            if self._priorities.look():  # its messages are not read; the writer of the batch has noted it
                self.prioritized_end = first + batch.message_count
            if carried or not batch.is_sealed:
                append_carried(file, batch.header, carried)
            adopt_header(file, header)
            file.sync()
            size = file.size()
        except OSError as error:
            raise storage_error(error, "adopting a batch", batch.path) from error

        def publish() -> None:
            name = DataFileName(header.sequence, header.first_offset)
            self.pending_commit_records.add(
                batch.commit_record.placed(first), FRAMES_START
            )  # before it is there, as with appends
            self._storage.rename(batch.path, self._directory.data_file(name))
            self._storage.sync_directory(self._directory.data)
            self._files.add(name, size)
            self.pending_commit_records.confirm(batch.commit_record.nonce)
            self.pending_commit_records.move(
                dict.fromkeys([batch.commit_record.nonce, *(each.nonce for each in carried)], 0)
            )
            self._timestamp_ns = max(header.base_timestamp_ns, batch.timestamp_max_ns)
            self._use(None, header, size, batch.message_count, 0)

        self._leave_file(seal, publish)
        file.close()
        return range(first, first + batch.message_count)

    # -- Closing -----------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether anything may be written: this was neither abandoned nor poisoned."""
        return not self._is_abandoned and self._poison.cause is None

    @property
    def has_grown(self) -> bool:
        """Whether a clean close has to be noted: something was appended since this opening."""
        return self.is_open and self._file is not None and self.end != self._opened_end

    def close(self) -> None:
        """Sync, append a mark frame as the witness of a clean close, cut the file behind it, and close the files.

        The log has grown. After this, or an interruption of it, :meth:`abandon` closes the rest.
        """
        assert self._file is not None, "the log has grown"
        try:
            if self.end != self.synced:
                self.sync()
            self.check_fence()
            flag = FLAG_PENDING_COMMIT_RECORDS if len(self.pending_commit_records) else 0
            self._append_control(KIND_MARK, FLAG_CLEAN_CLOSE | flag, b"")
            self._file.truncate(self._position)
            self.sync()
            self._files.resize(self._header.sequence, self._position)
        except OSError as error:
            raise storage_error(error, "closing", self._path) from error
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the handles and write nothing; again does nothing."""
        self._is_abandoned = True
        if self._file is not None:
            self._file.close()
        self._mark.close()
