"""Writes one segment of the prepared log. docs/format.md, "Prepared log"."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from holdfast.errors import HoldfastError
from holdfast.persistence.filesystem.document import made_anew
from holdfast.persistence.filesystem.poison import Poison, commit_unknown
from holdfast.persistence.filesystem.storage import File, Storage, storage_errors, write_whole
from holdfast.persistence.format.constants import ENTRY_ENDED, FRAME_HEADER_BYTES, FRAMES_START, SYNCED_END_POSITION
from holdfast.persistence.format.file_header import SegmentHeader, block_buffers
from holdfast.persistence.prepared_log.segment_reader import encode_synced_end

ENDED_BYTES = FRAME_HEADER_BYTES + ENTRY_ENDED.size
"""Size of an "ended" frame."""


class SegmentWriter:
    """Appends to a new segment, and syncs it. Its owner excludes other threads from everything but :meth:`sync`.

    Parameters
    ----------
    storage, path
        Where to make it; its directory exists.
    header : SegmentHeader
        Its header.
    capacity_bytes : int
        Room for frames.
    reserve_bytes : int
        Space behind it, for commits on a full disk.
    poison : Poison
        Set if what is on the disk is unknown.
    check_fence : callable
        Raises FencedError if another owner has opened the queue.

    Attributes
    ----------
    path, header
        As above.
    end : int
        Position behind the last frame.
    takes_entries : bool
        Whether it has a reserve, and gave none of it back. Else it takes "ended" frames only.

    Raises
    ------
    DiskFullError, StorageError
        It is not made.
    """

    def __init__(
        self,
        storage: Storage,
        path: Path,
        header: SegmentHeader,
        capacity_bytes: int,
        reserve_bytes: int,
        poison: Poison,
        check_fence: Callable[[], None],
    ) -> None:
        self.path = path
        self.header = header
        self.capacity_bytes = capacity_bytes
        self._limit = FRAMES_START + capacity_bytes
        self._poison = poison
        self._check_fence = check_fence
        self._sync_lock = threading.Lock()
        self.end = self.synced = FRAMES_START
        self.takes_entries = reserve_bytes > 0
        with storage_errors("making a segment of the prepared log", path):
            with made_anew(storage, path) as file:
                file.allocate(self._limit + reserve_bytes)
                write_whole(file, (block_buffers(header.encode()),), 0)
            self.file = storage.open(path)

    def has_room(self, size: int) -> bool:
        """Whether so many bytes of frames fit."""
        return self.end + size <= self._limit

    def append(self, buffers: Sequence[bytes]) -> None:
        """Write frames behind the last one, which fit.

        Raises
        ------
        DiskFullError, StorageError
            Nothing was added.
        CommitUnknownError, PoisonedError
            What was added is unknown, or an earlier failure has poisoned the log.
        """
        self._poison.check()
        position = self.end
        try:
            with storage_errors("writing to the prepared log", self.path):
                write_whole(self.file, buffers, position)
            self.end = position + sum(map(len, buffers))
        except BaseException as error:
            with self._sync_lock:
                if self.synced <= position:  # else a sync of another thread has covered them: they count
                    self._take_back(position, error)
            raise

    def _take_back(self, position: int, error: BaseException) -> None:
        """Make frames that were written in part, or not noticed, count for nothing."""
        try:
            write_whole(self.file, (bytes(FRAME_HEADER_BYTES),), position)
        except OSError:
            self._poison.set(error)
            raise commit_unknown("writing to the prepared log", self.path, error) from error
        except BaseException:
            self._poison.set(error)
            raise
        self.end = position

    def sync(self) -> None:
        """Return once all frames appended before the call are on the disk, and the segment says so.

        Raises
        ------
        CommitUnknownError
            It failed, or another owner has come; the log is poisoned.
        PoisonedError
            As :meth:`append`.
        """
        with self._sync_lock:
            self._poison.check()
            end = self.end
            if end <= self.synced:
                return
            try:
                self.file.sync()
                self._check_fence()
            except BaseException as error:
                self._poison.set(error)
                if isinstance(error, OSError | HoldfastError):
                    raise commit_unknown("syncing the prepared log", self.path, error) from error
                raise
            self.synced = end
            with suppress(OSError):  # frames that follow say so, too
                write_whole(self.file, (encode_synced_end(end, self.header.salt),), SYNCED_END_POSITION)

    def give_back(self, size: int) -> bool:
        """Give so much of the reserve back to the disk; False if none is left. Raises StorageError."""
        self.takes_entries = False
        return give_back(self.file, self.path, self._limit, size)

    def close(self) -> None:
        """Sync, and close the file; a sync that fails poisons the log, for those who wait for it."""
        try:
            with suppress(HoldfastError):
                self.sync()
        finally:
            self.file.close()


def give_back(file: File, path: Path, kept_bytes: int, size: int) -> bool:
    """Cut so much off a segment, but nothing below ``kept_bytes``; False if that is nothing. Raises StorageError."""
    with storage_errors("giving space back", path):
        there = file.size()
        if there <= kept_bytes:
            return False
        file.truncate(max(kept_bytes, there - size))
        return True
