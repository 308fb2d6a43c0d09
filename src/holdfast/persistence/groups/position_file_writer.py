"""The read side's file: append-only progress of one group, in generations.

A generation starts with a checkpoint of everything and is filled with 64-byte entries. Then the next one is made from
the space of the one before it, so acknowledging needs no new space and works on a full disk. While there is space, it
is twice as large as the full one. A failed append leaves its slots to the next append. The caller holds the take lock
around :meth:`PositionFileWriter.append`; syncs run beside it.

What is *not* promised here: an entry is durable only once :meth:`PositionFileWriter.sync` has covered it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, NoReturn

from holdfast.clock import Clock
from holdfast.errors import ClosedError, CommitUnknownError, DiskFullError, FencedError, StorageError
from holdfast.persistence.filesystem.fence import WINDOW_NS, Fence, unnamed
from holdfast.persistence.filesystem.file_names import open_alone, refuse_second_name
from holdfast.persistence.filesystem.layout import list_generations, position_file, within
from holdfast.persistence.filesystem.locks import read_owner
from holdfast.persistence.filesystem.poison import Poison, commit_unknown
from holdfast.persistence.filesystem.reserve import allocate_what_fits
from holdfast.persistence.filesystem.storage import (
    DISK_FULL_ERRNOS,
    MISSING,
    File,
    Storage,
    storage_error,
    storage_errors,
    write_whole,
)
from holdfast.persistence.format.constants import (
    ENTRY,
    ENTRY_DONE,
    FENCE_BYTES,
    FENCE_POSITION,
    FRAMES_START,
    POSITION_FILE_BYTES_LIMIT,
)
from holdfast.persistence.format.file_header import PositionFileHeader, block_buffers
from holdfast.persistence.groups.position_entry import Change, encode_run, floor_change, pack_entry, run_flags
from holdfast.persistence.groups.position_file_reader import PositionFileReader
from holdfast.persistence.groups.position_run import apply_run, checkpoint
from holdfast.persistence.groups.progress import GroupProgress
from holdfast.persistence.log.log_reader import Record
from holdfast.threads import log_later

POSITION_FILE_BYTES_MIN = 16 * 2**10
"""Size of the first position file; each one that follows a full one is twice as large."""

NEXT = "next.position"
"""The next generation while it is made, or its reserved space."""

_SINGLE = run_flags(0, 1)
_ENTRY_BYTES = ENTRY.size


class _Generation(NamedTuple):
    """A position file with its checkpoint, durable."""

    file: File
    number: int
    salt: int
    entry_count: int
    space: int
    older: Sequence[int]


class PositionFileWriter:
    """Appends to the position file of one group.

    Parameters
    ----------
    storage, directory, clock
        Where the group's files are, and where timestamps come from.
    reader : PositionFileReader
        Reads the group's progress, once the token of this opening is in the file. The first checkpoint contains it.
    file_bytes : int
        Size of the largest position files; a larger checkpoint gets a larger file.

    Attributes
    ----------
    progress : GroupProgress
        The progress that was read, kept up to date.
    end : int
        Entries appended since this object was made: the ticket that :meth:`sync` covers.
    """

    def __init__(
        self,
        storage: Storage,
        directory: Path,
        clock: Clock,
        reader: PositionFileReader,
        *,
        file_bytes: int,
    ) -> None:
        self._storage, self._directory = storage, directory
        self._next_path = within(directory, NEXT)
        self._time_ns = clock.time_ns
        self._ids = reader.ids
        self._file_bytes = file_bytes
        self._space = POSITION_FILE_BYTES_MIN // 2  # of the current file; the first one takes twice this
        self._sync_lock = threading.Lock()
        self._poison = Poison("the read side", directory)
        self._fence = Fence(lambda: read_owner(storage, within(directory, "read.lock")))
        self._token = self._fence.slot
        self._timestamp_ns = 0
        self._compared_ns = self._named_ns = -WINDOW_NS
        self._file: File | None = None
        self._salt = self._slot = self._synced_slot = self._slots = 0
        self.end = 0
        self._synced_end = 0
        claimed, generations = self._claim_latest()
        self.progress = reader.refresh()
        if reader.generation and reader.generation != claimed:  # the latest is of another life, or damaged
            self._claim(reader.generation)
            self.progress = reader.refresh()
        self._generation = reader.generation or max(generations, default=0)
        self._use(self._make_first(reader))
        if not generations:
            self._reserve_next()

    def _claim_latest(self) -> tuple[int, list[int]]:
        """Put the token into the latest generation, to fence an owner who still writes there; return it, and all.

        Such an owner may be beginning the next generation: then that is the latest, and gets the token too.
        """
        claimed, generations = 0, list_generations(self._storage, self._directory)
        while generations and claimed != generations[-1]:
            claimed = generations[-1]
            self._claim(claimed)
            generations = list_generations(self._storage, self._directory)
        return claimed, generations

    def _make_first(self, reader: PositionFileReader) -> _Generation:
        """Write what was read into the next file: into new space, if the name of the one that was read may be lost.

        Its writer may have been killed before it synced that name, or its sync has failed. Nothing then is appended to
        the file. If the disk is full, a sync of the name has to do.
        """
        changes = checkpoint(self.progress)
        if reader.generation and not reader.has_appended:
            with suppress(DiskFullError):
                return self._make_generation(self._ids, changes, into_new=True)
            self._storage.sync_directory(self._directory)
        return self._make_generation(self._ids, changes)

    def _claim(self, generation: int) -> None:
        path = position_file(self._directory, generation)
        with storage_errors("claiming progress", path), suppress(*MISSING), self._storage.open(path) as file:
            refuse_second_name(file, path)
            self._fence.put(file)

    # -- Appending ---------------------------------------------------------------------------------------------------

    def append(self, changes: Sequence[Change]) -> int:
        """Append entries that count together or not at all, and apply them to the progress.

        Returns
        -------
        int
            The ticket to sync up to.

        Raises
        ------
        DiskFullError, StorageError
            They could not be written, and do not count.
        PoisonedError
            An earlier failure left memory and disk possibly apart.
        """
        timestamp = self._timestamp_ns = self._time_ns()
        self._make_ready(len(changes))
        slot, end = self._slot, self.end
        entries = encode_run(self._salt, changes, slot, timestamp, self._synced_slot, self._generation)
        assert self._file is not None
        written = False
        try:
            write_whole(self._file, entries, FRAMES_START + slot * ENTRY.size)
            written = True
            self._count(changes, slot, end)
        except BaseException as error:
            self._fail(changes, slot, end, error, written=written)
        return end + len(changes)

    def append_one(self, kind: int, record: Record, delivery_count: int = 0, number: int = 0) -> int:
        """Append the entry of one message that is delivered or done: as :meth:`append`, in half the time.

        The delivery count is one that an entry has room for.
        """
        offset, _, _, _, position, sequence = record
        self._timestamp_ns = now = self._time_ns()
        age = now - self._compared_ns
        if self._slot >= self._slots or self._poison.cause is not None or not -WINDOW_NS < age < WINDOW_NS:
            self._make_ready(1)
        salt, mark, slot, end = self._salt, self._synced_slot, self._slot, self.end
        place = offset, 1, now, number, position, self._generation & 0xFFFFFFFF
        entry = pack_entry(salt, kind, _SINGLE, delivery_count, slot, mark, sequence, *place)
        written = False
        try:
            at = FRAMES_START + slot * _ENTRY_BYTES
            done = self._file.write_at((entry,), at)  # type: ignore[union-attr]  # else there is no slot
            if done != _ENTRY_BYTES:
                write_whole(self._file, (entry[done:],), at + done)  # type: ignore[arg-type]
            written = True
            if kind == ENTRY_DONE:
                self.progress.finish(offset, 1, (sequence, position))
            else:
                self.progress.deliver(offset, 1, delivery_count, number)
            self._slot = slot + 1
            self.end = end + 1
        except BaseException as error:
            changes = (Change(kind, offset, 1, (sequence, position), delivery_count, number),)
            self._fail(changes, slot, end, error, written=written)
        return end + 1

    def _make_ready(self, count: int) -> None:
        """Refuse, or have slots for so many entries."""
        self._poison.check()
        if abs(self._timestamp_ns - self._compared_ns) >= WINDOW_NS:
            self._check_fence()
        if self._slot + count > self._slots:
            self._next_generation(count)

    def _fail(self, changes: Sequence[Change], slot: int, end: int, error: BaseException, *, written: bool) -> NoReturn:
        """End an append that was cut short: all of it counts, on the disk and in memory, or none."""
        if written:  # interrupted after the write: entries on the disk count in memory too
            self._count(changes, slot, end)
        else:
            self._erase(slot, len(changes))
        if isinstance(error, OSError):
            raise storage_error(error, "noting progress", self._path) from error
        raise error

    def _count(self, changes: Sequence[Change], slot: int, end: int) -> None:
        """Apply written entries to the progress; applying them twice changes nothing."""
        apply_run(changes, self.progress)
        self._slot = slot + len(changes)
        self.end = end + len(changes)

    def _erase(self, slot: int, count: int) -> None:
        """Undo an append that was cut short: its entries must not count after a restart."""
        assert self._file is not None
        try:
            write_whole(self._file, (bytes(count * ENTRY.size),), FRAMES_START + slot * ENTRY.size)
        except BaseException as error:
            self._poison.set(error)

    # -- Syncing -----------------------------------------------------------------------------------------------------

    def sync(self) -> int:
        """Sync all entries appended before the call; return the ticket that this covers.

        Raises
        ------
        CommitUnknownError
            The sync failed or was interrupted; the read side is poisoned.
        PoisonedError
            It had been poisoned before.
        ClosedError
            :meth:`close` was interrupted before its sync.
        """
        with self._sync_lock:
            self._poison.check()
            end, slot = self.end, self._slot
            if end > self._synced_end:
                if self._file is None:
                    raise ClosedError(
                        f"{self._path} was closed before its last entries were synced; open the queue again"
                    )
                try:
                    self._file.sync()
                    self._compare(self._file)
                    self._synced_end, self._synced_slot = end, slot
                except BaseException as error:
                    self._poison.set(error)
                    if isinstance(error, OSError | FencedError):
                        raise commit_unknown("a sync", self._path, error) from error
                    raise
            return end

    # -- Fencing -----------------------------------------------------------------------------------------------------

    def _check_fence(self) -> None:
        """Check whether another owner has opened the group, before more is appended; a sync checks by itself."""
        assert self._file is not None
        try:
            self._compare(self._file)
        except FencedError as error:
            self._poison.set(error)
            raise
        except OSError as error:
            raise storage_error(error, "looking for other owners", self._path) from error

    def _compare(self, file: File) -> None:
        """Raise FencedError if a file holds another owner's token; now and then, check also that it has its name."""
        found = file.read_at(FENCE_BYTES, FENCE_POSITION)
        if found != self._token:
            raise self._fence.error(found, self._path)
        now = self._timestamp_ns
        if abs(now - self._named_ns) >= WINDOW_NS:
            if not file.link_count():
                raise unnamed(self._path)
            self._named_ns = now
        self._compared_ns = now

    @property
    def group_id(self) -> bytes:
        """The life of the group that it writes."""
        return self._ids[1]

    @property
    def unsynced_count(self) -> int:
        """Number of entries that wait for a sync."""
        return self.end - self._synced_end

    # -- Generations -------------------------------------------------------------------------------------------------

    @property
    def _path(self) -> Path:
        return position_file(self._directory, self._generation)

    def _next_generation(self, needed: int) -> None:
        """Begin a new file; its checkpoint contains the entries of the old one, which is not needed any more."""
        changes = checkpoint(self.progress)
        with self._sync_lock:
            self._poison.check()
            old = self._file
            assert old is not None
            self._slots = self._slot  # if this fails, the next file may be read instead: nothing more is written here
            try:
                self._use(self._make_generation(self._ids, changes, needed, old))
            except FencedError as error:
                self._poison.set(error)
                raise
            finally:
                if self._file is not old:
                    self._synced_end = self.end
                    old.close()

    def begin_life(self, group_id: bytes, progress: GroupProgress, publish: Callable[[], object]) -> None:
        """Continue with another life of the group: its checkpoint is on the disk before ``publish`` names that life.

        Raises
        ------
        CommitUnknownError, PoisonedError
            Either life may be the one that counts, and the read side is poisoned; or it had been before.
        StorageError, OSError
            The life before continues: nothing that counts has changed.
        """
        changes = checkpoint(progress)
        with self._sync_lock:
            self._poison.check()
            old, ids = self._file, (self._ids[0], group_id)
            assert old is not None
            try:
                made = self._make_generation(ids, changes, 0, old)
            except FencedError as error:
                self._poison.set(error)
                raise
            is_published = False
            try:
                publish()
                is_published = True
                self._compare(old)
                self._ids, self.progress = ids, progress
                self._use(made)
                self._synced_end = self.end
            except BaseException as error:
                is_known = isinstance(error, OSError | StorageError) and not isinstance(error, CommitUnknownError)
                if is_known and not is_published:  # the document is as it was
                    raise
                self._poison.set(error)
                if isinstance(error, OSError | FencedError):
                    raise commit_unknown("a seek", self._path, error) from error
                raise
            finally:
                (made.file if self._file is old else old).close()

    def _make_generation(
        self,
        ids: tuple[bytes, bytes],
        changes: list[Change],
        needed: int = 0,
        old: File | None = None,
        *,
        into_new: bool = False,
    ) -> _Generation:
        """Write the checkpoint into the next file, sync it, and give it its name.

        Another owner puts its token into the old file before it reads it. So the token there is checked until the new
        file has its name: then either the other owner has read the new file, or its token is found here.
        """
        generation = self._generation + 1
        header = PositionFileHeader(*ids, generation)
        least, wanted = self._sizes_for(len(changes) + needed)
        timestamp = self._time_ns()
        entries = encode_run(header.salt, changes, 0, timestamp, 0, generation, is_checkpoint=True)
        target = position_file(self._directory, generation)
        try:
            older = [number for number in list_generations(self._storage, self._directory) if number < self._generation]
            if older and not into_new:
                self._storage.rename(position_file(self._directory, older.pop()), self._next_path)
            file = open_alone(self._storage, self._next_path)
        except OSError as error:
            raise storage_error(error, "beginning a position file", target) from error
        is_written = False
        try:
            if file.size() > POSITION_FILE_BYTES_LIMIT:  # it would never be read
                file.truncate(wanted)
            space = allocate_what_fits(file, least, wanted)
            if old is not None:
                self._compare(old)  # another owner may be making its next generation in the same file
            write_whole(file, (block_buffers(header.encode(), self._token), b"".join(entries)), 0)
            is_written = True
            file.sync()
            if old is not None:
                self._compare(old)
            self._storage.rename(self._next_path, target)
            self._storage.sync_directory(self._directory)
            if old is not None:
                self._compare(old)
        except BaseException as error:
            file.close()
            if isinstance(error, OSError):
                if is_written or error.errno not in DISK_FULL_ERRNOS:  # never sync again what a sync has failed on
                    with suppress(OSError):
                        self._storage.remove(self._next_path)
                raise storage_error(error, "beginning a position file", target) from error
            raise
        return _Generation(file, generation, header.salt, len(entries), space, older)

    def _use(self, made: _Generation) -> None:
        """Append to a file that has its name."""
        self._file, self._generation, self._salt = made.file, made.number, made.salt
        self._slot = self._synced_slot = made.entry_count
        self._space, self._slots = made.space, (made.space - FRAMES_START) // ENTRY.size
        with suppress(OSError):  # if one stays, the generation after the next takes its space
            for number in made.older:
                self._storage.remove(position_file(self._directory, number))

    def _sizes_for(self, entry_count: int) -> tuple[int, int]:
        """Return the least size of a file that begins with so many entries, and the one that it should have."""
        least = FRAMES_START + entry_count * ENTRY.size
        if least > POSITION_FILE_BYTES_LIMIT:
            raise StorageError(
                f"the progress of {self._directory} takes {entry_count} entries, more than a position file holds; "
                "acknowledge what was delivered, in order, and try again",
                path=str(self._directory),
            )
        wanted = max(min(2 * self._space, self._file_bytes), FRAMES_START + 4 * entry_count * ENTRY.size)
        return least, min(wanted, POSITION_FILE_BYTES_LIMIT)

    def _reserve_next(self) -> None:
        """Reserve the space of one more generation in a spare file; later generations use that of the one before."""
        try:
            with self._storage.open(self._next_path, create=True) as file:
                file.allocate(self._space)
                file.sync()
        except OSError as error:  # nothing depends on it yet: the disk may have space again when it is needed
            with suppress(OSError):  # never sync again what a sync has failed on
                self._storage.remove(self._next_path)
            log_later(logging.WARNING, "no room to reserve for the progress of %s: %s", self._directory, error)

    # -- Closing -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Sync and close the file."""
        try:
            if self._poison.cause is None and self._file is not None:
                self.sync()
                self._leave_witness()
        finally:
            self.abandon()

    def _leave_witness(self) -> None:
        """Append an entry that only proves all before it synced, and the name of the file; no caller waits for it."""
        progress = self.progress
        if self._slot < self._slots:
            with suppress(StorageError):
                floor = floor_change(progress.floor, progress.lost_count, progress.skipped_count, progress.hint)
                self._synced_end = self.append([floor])

    def abandon(self) -> None:
        """Close the handle and write nothing: after a fork, in the child."""
        file, self._file = self._file, None  # first: a close that is interrupted here syncs no closed handle later
        if file is not None:
            file.close()
