"""Sides a queue: who may, what has to be recovered first, and which sides come up.

Whoever reads a log reads a recovered log: a consumer that finds no writer takes the free write lock for as long as
recovery takes. Sides are locked, and consumers recover, while the groups lock is held: so nobody takes a consumer that
recovers for the owner of the write side, and who owns a side is written down once others find it locked.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from holdfast.clock import Clock
from holdfast.errors import ConfigError, DiskFullError
from holdfast.persistence import locks
from holdfast.persistence.data_file_reader import QueueFileReader
from holdfast.persistence.data_file_writer import QueueFileWriter
from holdfast.persistence.flush_policy import FlushPolicy
from holdfast.persistence.group_files import (
    DEFAULT_GROUP,
    GroupInfo,
    find_group,
    groups_locked,
    list_groups,
    progress_reader,
    repair_group,
    require_group,
    write_group,
)
from holdfast.persistence.layout import open_directory
from holdfast.persistence.locks import SideLock
from holdfast.persistence.log_files import LogFiles
from holdfast.persistence.position_file_reader import PositionFileReader
from holdfast.persistence.position_file_writer import PositionFileWriter
from holdfast.persistence.progress import GroupProgress
from holdfast.persistence.reclaim import retire_finished_files
from holdfast.persistence.recovery import RecoveredLog, recover_log
from holdfast.persistence.report import Damage, RecoveryReport
from holdfast.persistence.reserve import keep_reserve, spend_reserve
from holdfast.persistence.sealed_file import retired_ranges
from holdfast.persistence.storage import DISK_FULL_ERRNOS, Storage, storage_error
from holdfast.queue.books import GroupBooks
from holdfast.queue.bounds import Bounds
from holdfast.queue.look_side import LookSide
from holdfast.queue.read_side import ReadSide
from holdfast.queue.slowest_group import SlowestGroup
from holdfast.queue.sources import LocalSource, RemoteSource, Source
from holdfast.queue.write_side import WriteSide

logger = logging.getLogger("holdfast")

Begun = TypeVar("Begun")

MODES = ("both", "produce", "consume", "look")

POSITION_FILE_BYTES_MAX = 2**20
"""16,000 acknowledgements between two checkpoints; each group keeps two such files."""

POSITION_FILE_BYTES_MIN = 16 * 2**10


@dataclass(frozen=True, slots=True)
class Options:
    """How a queue is opened: see :class:`PersistentQueue`."""

    mode: str
    group: str
    flush: FlushPolicy
    data_file_bytes: int
    lock_timeout: float

    @property
    def writes(self) -> bool:
        """Whether this handle owns the write side."""
        return self.mode in ("both", "produce")

    @property
    def reads(self) -> bool:
        """Whether this handle owns the read side of its group."""
        return self.mode in ("both", "consume")


class Sides:
    """Brings the sides of one queue up, in order, and holds them: which ones there are depends on the mode."""

    def __init__(self, storage: Storage, clock: Clock, root: Path, options: Options) -> None:
        self._storage = storage
        self._clock = clock
        self._options = options
        self.directory, self.queue_id, self._is_new = open_directory(
            storage, root, create=options.writes, writable=options.mode != "look"
        )
        self._position_file_bytes = min(
            POSITION_FILE_BYTES_MAX, max(POSITION_FILE_BYTES_MIN, options.data_file_bytes // 8)
        )
        self.report = RecoveryReport()
        self.write_side: WriteSide | None = None
        self.read_side: ReadSide | None = None
        self.look_side: LookSide | None = None
        try:
            self._open_sides()
        except BaseException as error:
            self._undo()
            if isinstance(error, OSError):
                raise storage_error(error, "opening the queue", root) from error
            raise
        if not self.report.clean:
            level = logging.WARNING if self.report.damage or self.report.progress_damage else logging.INFO
            logger.log(level, "opening %s: %s", root, self.report)

    def _open_sides(self) -> None:
        options = self._options
        if options.writes:
            self._open_log(self._lock_writes())
            keep_reserve(self._storage, self.directory)
        elif options.mode == "look":
            self._open_log(None)
        else:
            with self._groups_locked():
                self._open_log(locks.try_acquire(self._storage, self.directory.write_lock))
        if options.reads:
            self._with_reserve(self._open_read_side)
        elif options.mode == "look":
            self._open_look_side()

    def _open_log(self, write_lock: SideLock | None) -> None:
        """Recover the log if ``write_lock`` is held; it stays so with a write side only."""
        try:
            self.files = LogFiles(self._storage, self.directory)
            if write_lock is not None:
                self._open_writer(self._recover(), write_lock)
        finally:
            if write_lock is not None and self.write_side is None:
                write_lock.release()

    def _groups_locked(self) -> AbstractContextManager[None]:
        return groups_locked(self._storage, self.directory, self._clock)

    def _undo(self) -> None:
        if self.write_side is not None:
            self.write_side.close()

    # -- The write side ----------------------------------------------------------------------------------------------

    def _lock_writes(self) -> SideLock:
        return locks.acquire(
            self._storage,
            self.directory.write_lock,
            self._clock,
            timeout=self._options.lock_timeout,
            what="the write side",
            guard=self._groups_locked,
        )

    def _recover(self) -> RecoveredLog:
        started = self._clock.monotonic()
        finished = 0
        for group in list_groups(self._storage, self.directory):
            finished = max(finished, self._reader_of(group).refresh().finished_end)
        log = recover_log(self._storage, self.directory, self.files, self.queue_id, finished_offset=finished)
        self.report = replace(log.report, seconds=self._clock.monotonic() - started)
        return log

    def _open_writer(self, log: RecoveredLog, lock: SideLock) -> None:
        """Make the writer; a consumer lets it publish where the log ends, and no more."""
        options = self._options
        writer = QueueFileWriter(
            self._storage,
            self.directory,
            self.files,
            self._clock,
            log.tail,
            log.mark,
            file_bytes=options.data_file_bytes,
            synced_only=options.flush.syncs_every_commit,
        )
        if options.writes:
            self.write_side = WriteSide(writer, lock, options.flush, self._clock)
        else:
            writer.abandon()

    # -- The read side -----------------------------------------------------------------------------------------------

    def _reader_of(self, group: GroupInfo) -> PositionFileReader:
        return progress_reader(self._storage, self.directory, self.queue_id, group)

    def _open_read_side(self) -> None:
        options = self._options
        self._find_own_group()  # before anything is made
        path = self.directory.group(options.group)
        self._storage.make_directory(path)
        lock = locks.acquire(
            self._storage,
            path / "read.lock",
            self._clock,
            timeout=options.lock_timeout,
            what=f"group {options.group!r}",
            guard=self._groups_locked,
        )
        source: Source | None = None
        try:
            group = self._find_own_group()  # whoever had the lock may have begun the default group, or deleted ours
            source = self._source()
            books = self._open_books(group) if group is not None else None
            progress = books.progress if books is not None else self._unused_group().initial_progress()
            self.read_side = ReadSide(
                source,
                lambda on_loss: QueueFileReader(self._storage, self.files, self.queue_id, on_loss),
                progress,
                lambda: self._with_reserve(lambda: self._open_books(self._begin_default_group())),
                lock,
                books,
            )
        except BaseException:
            if source is not None:
                source.close()
            lock.release()
            raise

    def _with_reserve(self, begin: Callable[[], Begun]) -> Begun:
        """Begin to read; on a full disk once more with the room that was set aside for this."""
        try:
            return begin()
        except (OSError, DiskFullError) as error:
            full = isinstance(error, DiskFullError) or error.errno in DISK_FULL_ERRNOS
            if not full or not spend_reserve(self._storage, self.directory):
                raise
        self._position_file_bytes = POSITION_FILE_BYTES_MIN
        return begin()

    def _find_own_group(self) -> GroupInfo | None:
        """Return the group to read for; None for a default group that nobody has used yet."""
        name = self._options.group
        if name != DEFAULT_GROUP and self._is_new:
            with self._groups_locked():
                group = find_group(self._storage, self.directory, name)
                return group or write_group(self._storage, self.directory, name, self.files, 0)
        if name != DEFAULT_GROUP:
            return require_group(self._storage, self.directory, name)
        return find_group(self._storage, self.directory, name)

    def _unused_group(self) -> GroupInfo:
        """Return what the default group would be if it began now."""
        return GroupInfo(
            DEFAULT_GROUP, bytes(16), self.files.first_offset, tuple(retired_ranges(self._storage, self.files))
        )

    def _begin_default_group(self) -> GroupInfo:
        """Make the default group at its first use: it starts at the oldest message that is still there."""
        try:
            with self._groups_locked():
                self.files.refresh()
                group = find_group(self._storage, self.directory, DEFAULT_GROUP)  # ``groups.create`` has made it
                return group or write_group(
                    self._storage, self.directory, DEFAULT_GROUP, self.files, self.files.first_offset
                )
        except OSError as error:
            raise storage_error(error, "beginning the default group", self.directory.groups) from error

    def _open_books(self, group: GroupInfo) -> GroupBooks:
        options = self._options
        if group.damage:
            group = repair_group(self._storage, self.directory, group, self.files)
        reader = self._reader_of(group)
        progress = reader.refresh()
        self.report = replace(
            self.report, progress_damage=(*self.report.progress_damage, *group.damage, *reader.damage)
        )
        positions = PositionFileWriter(
            self._storage,
            self.directory.group(group.name),
            self._clock,
            self.queue_id,
            group.group_id,
            progress,
            file_bytes=self._position_file_bytes,
        )
        books = GroupBooks(
            positions,
            progress,
            self.files,
            options.flush,
            self._clock,
            lambda own, sync: self.reclaim(group.name, own, sync),
        )
        for damage in self.report.damage:  # what recovery knows to be lost does not wait for a reader to come by
            books.lose(damage.offsets)
        return books

    def reclaim(
        self,
        own_group: str | None = None,
        own: GroupProgress | None = None,
        sync: Callable[[], object] | None = None,
    ) -> None:
        """Retire the data files that every group has finished."""
        retire_finished_files(
            self._storage,
            self.directory,
            self.files,
            self.queue_id,
            self._clock,
            own_group=own_group,
            own_progress=own,
            sync_own=sync,
        )

    def _source(self) -> Source:
        if self.write_side is not None:
            side = self.write_side
            return LocalSource(lambda: side.end, side.arrivals)
        return RemoteSource(self._storage, self.directory.write_mark, self.queue_id)

    # -- Both --------------------------------------------------------------------------------------------------------

    def bound(self, maxsize: int, max_bytes: int | None) -> None:
        """Make producers wait where there is no room; 0 and None: no bound."""
        side = self.write_side
        if side is None or not (maxsize or max_bytes is not None):
            return
        slowest = SlowestGroup(self._storage, self.directory, self.queue_id, self._options.group, self.read_side)
        side.bounds = Bounds(
            maxsize,
            max_bytes,
            lambda: slowest.depth(side.next_offset, self.files.first_offset),
            lambda size: side.disk_bytes_with(size, self.files, self._options.data_file_bytes),
        )
        if self.read_side is not None:
            self.read_side.room = side.bounds.room

    def depth(self) -> int:
        """Return how many messages the group has not finished; without a group, how many the log holds."""
        reader = self.read_side or self.look_side
        return reader.depth if reader is not None else self.next_offset() - self.files.first_offset

    def next_offset(self) -> int:
        """Return the offset of the message that comes next, as far as this handle may see."""
        if self.write_side is not None:
            return self.write_side.next_offset
        reader = self.read_side or self.look_side
        assert reader is not None, "every mode has a side"
        return reader.end

    def recovery(self) -> RecoveryReport:
        """Return what opening found, and the damage that reading has met since."""
        reader = self.read_side or self.look_side
        met: list[Damage] = [] if reader is None else list(reader.damage)
        new = [damage for damage in met if not any(known.covers(damage) for known in self.report.damage)]
        return replace(self.report, damage=(*self.report.damage, *new))

    # -- Looking -----------------------------------------------------------------------------------------------------

    def _open_look_side(self) -> None:
        self._find_positions()  # raises where there is no such group
        self.look_side = LookSide(self._storage, self.files, self.queue_id, self._source(), self._find_positions)

    def _find_positions(self) -> tuple[PositionFileReader, bool]:
        """Return the progress of the group to look at, and whether it has begun; until then it starts at the oldest."""
        name = self._options.group
        group = find_group(self._storage, self.directory, name)
        if group is None and name != DEFAULT_GROUP:
            group = require_group(self._storage, self.directory, name)
        if group is None:
            self.files.refresh()
        return self._reader_of(group or self._unused_group()), group is not None


def check_options(options: Options) -> None:
    """Refuse what cannot work; raises ConfigError."""
    if options.mode not in MODES:
        raise ConfigError(f"mode is one of {', '.join(MODES)}, not {options.mode!r}")
    if not isinstance(options.flush, FlushPolicy):
        raise ConfigError("flush takes FlushPolicy.every_commit(), .every(...) or .never()")
