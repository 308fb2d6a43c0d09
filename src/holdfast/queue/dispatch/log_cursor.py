"""The log as one consumer group reads it on: damaged messages are given up durably, and reported once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.persistence.filesystem.storage import storage_error, storage_errors
from holdfast.persistence.format.report import Damage
from holdfast.persistence.groups.progress import GroupProgress
from holdfast.persistence.log.log_files import LogFiles
from holdfast.persistence.log.log_reader import Record
from holdfast.persistence.log.run_reader import PlainRun, RunReader
from holdfast.queue.dispatch.progress_store import ProgressStore
from holdfast.queue.dispatch.references import offset_of, unpack
from holdfast.queue.dispatch.sources import Source
from holdfast.queue.options.message_filter import MessageFilter

_JUMP_COUNT_MIN = 256
"""Finished messages that are worth a jump: fewer are read faster than a file is opened."""

_LOOK_UP_BYTES = 2**16
"""Read at once around a message that is looked up."""

_LOOK_UP_COUNT = 64
"""Messages that are read at once if they are looked up in the order of the log; the bytes above bound them, too."""


@dataclass(frozen=True, slots=True)
class GroupLog:
    """The log for one consumer group.

    Attributes
    ----------
    source : Source
        How far may be read, and how to wait for more.
    files : LogFiles
        The log to read.
    path : Path
        The group's directory, for errors.
    progress : GroupProgress
        Its progress so far: the start, and the finished messages.
    progress_store : ProgressStore or None
        The progress store of a group that exists already.
    open_progress_store : callable
        Opens them at the first take: showing a queue does not create a group.
    message_filter : MessageFilter or None
        The messages that the group gets; None: all.
    """

    source: Source
    files: LogFiles
    path: Path
    progress: GroupProgress
    progress_store: ProgressStore | None
    open_progress_store: Callable[[], ProgressStore]
    message_filter: MessageFilter | None = None


class LogCursor:
    """Reads a log in order, and reads single messages beside that. The caller holds the take lock.

    Parameters
    ----------
    log : GroupLog
        The log to read, and where to start.

    Attributes
    ----------
    progress_store : ProgressStore or None
        Those of the group, once it has begun.
    damage : list of Damage
        What reading has met.
    """

    def __init__(self, log: GroupLog) -> None:
        self._source = log.source
        self._losses: list[Damage] = []
        self._reader = RunReader(log.files, self._losses.append, recheck=True)
        self._lookups = RunReader(log.files, self._losses.append, recheck=True, chunk_bytes=_LOOK_UP_BYTES)
        self._behind: deque[Record] = deque()  # records that follow the one that was looked up last
        self._progress = log.progress
        self._path = log.path
        self._jumped_to = -1
        self.progress_store: ProgressStore | None = None
        self.damage: list[Damage] = []
        self._is_placed = False

    def begin(self, progress_store: ProgressStore) -> None:
        """Continue with the progress store of a group that has begun: from here on it pins unfinished messages."""
        self.progress_store = progress_store
        self._progress = progress_store.progress
        self._reader.recheck = self._lookups.recheck = False
        self._behind.clear()

    @property
    def next_offset(self) -> int:
        """Offset of the message that is read next."""
        return self._reader.next_offset if self._is_placed else self._progress.floor

    @property
    def has_seen_headers(self) -> bool:
        """Whether any of the records that were read last has headers."""
        return self._reader.has_seen_headers

    def go_to_floor(self) -> None:
        """Go back to the oldest unfinished message."""
        self.go_to(self._progress.floor, self._progress.hint)

    def go_to(self, offset: int, hint: tuple[int, int] | None = None) -> None:
        """Go to a message, or to one a little before it."""
        with storage_errors("reading", self._path):
            self._reader.seek(offset, hint)
        self._jumped_to = -1
        self._is_placed = True

    def read(self, count_max: int, end_offset: int | None = None) -> list[Record]:
        """Return records from the cursor's place on, finished ones too; none at the end of the log."""
        if not self._is_placed:
            self.go_to_floor()
        reader, end = self._reader, self._source.end()
        stop = end[2] if end_offset is None else min(end[2], end_offset)
        with storage_errors("reading", self._path):
            while reader.next_offset < stop:
                self._jump()
                before = reader.next_offset
                records = reader.read(count_max, end)
                if self.progress_store is not None:
                    self._note_losses(self.progress_store)
                    self.progress_store.pass_files(reader.name)
                if records or reader.next_offset == before:
                    return records
        return []

    def pass_plain(self, count_max: int, bytes_max: int) -> PlainRun | None:
        """Skip messages without options; None if the next one has to be read."""
        with storage_errors("reading", self._path):
            return self._reader.pass_plain(count_max, bytes_max, self._source.end())

    def _jump(self) -> None:
        """Skip many finished messages at once, so that a single unfinished one does not make opening slow."""
        run = self._progress.run_at(self._reader.next_offset)
        if run is not None and run[0] != self._jumped_to and run[0] - self._reader.next_offset >= _JUMP_COUNT_MIN:
            self._jumped_to = run[0]
            self._reader.seek(*run)

    def look_up(self, packed: int) -> Record | None:
        """Return the record of a packed reference; None if it is damaged, which is noted."""
        offset, behind, lookups = offset_of(packed), self._behind, self._lookups
        if behind and behind[0][0] == offset:
            return behind.popleft()
        behind.clear()
        is_next = lookups.next_offset == offset
        try:
            lookups.move_to(*unpack(packed))
            return self._read_one(offset, _LOOK_UP_COUNT if is_next and lookups.next_offset == offset else 1)
        except OSError as error:
            raise storage_error(error, "reading", self._path) from error

    def find(self, offset: int) -> Record | None:
        """Return the record of an offset, wherever it is; None if it is damaged, or not there."""
        with storage_errors("reading", self._path):
            if offset == self._progress.floor:
                self._lookups.seek(offset, self._progress.hint)
            else:
                self._lookups.go_on_to(offset)
            return self._read_one(offset)

    def _read_one(self, offset: int, count_max: int = 1) -> Record | None:
        """Read on up to a record; the lookups may be a little before it, or else more may be read behind it."""
        end = self._source.end()
        while self._lookups.next_offset <= offset:
            records = self._lookups.read(count_max, end)
            if self._losses and self.progress_store is not None:
                self._note_losses(self.progress_store)
            if not records or records[0][0] >= offset:
                self._behind.extend(records[1:])
                return records[0] if records and records[0][0] == offset else None
        return None

    def _note_losses(self, progress_store: ProgressStore) -> None:
        """Give up damaged messages, durably, so that they are reported once; finished ones are not a loss."""
        while self._losses:
            damage = self._losses[0]
            missed = progress_store.progress.unfinished_runs(damage.offsets.start, damage.offsets.stop)
            progress_store.lose(damage.offsets)
            self.damage += [replace(damage, offsets=run) for run in missed] if damage.offsets else [damage]
            self._losses.pop(0)

    def rest(self) -> None:
        """Close data files that were not read since the last call, until they are read on."""
        self._reader.rest()
        self._lookups.rest()
        self._behind.clear()

    def close(self) -> None:
        """Close the data files."""
        self._reader.close()
        self._lookups.close()
        self._behind.clear()
