"""Reads a group's progress, from the start or from its last place; takes no lock and changes nothing.

A bad entry that a later entry proves synced is skipped and reported. At any other bad entry reading stops: it is the
torn end, or an entry that is being written now. A good entry that names messages far behind the end of the log is
damage too.

The rest of a run counts without its bad entries, with one exception: a vote counts whole or not at all. An incomplete
vote is dropped and reported as such: its messages may be delivered although it commits.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from holdfast.errors import CorruptionError
from holdfast.persistence.filesystem.layout import list_generations, position_file
from holdfast.persistence.filesystem.storage import MISSING, File, Storage
from holdfast.persistence.format.constants import (
    ENTRY,
    ENTRY_FLAG_CHECKPOINT,
    ENTRY_FLAG_FIRST,
    ENTRY_FLAG_LAST,
    ENTRY_FLOOR,
    ENTRY_GENERATION,
    ENTRY_VOTE,
    FRAMES_START,
    POSITION_FILE_BYTES_LIMIT,
)
from holdfast.persistence.format.file_header import PositionFileHeader, block_copies
from holdfast.persistence.format.report import DAMAGED, Damage
from holdfast.persistence.groups.position_entry import Change, Entry, decode_entry, reach_of
from holdfast.persistence.groups.position_run import UNREADABLE, apply_run, is_known_floor
from holdfast.persistence.groups.progress import GroupProgress
from holdfast.persistence.groups.reach import Reach
from holdfast.persistence.groups.vote import vote_entry_count

_WINDOW_BYTES = 2**20
"""Most position files as a whole."""


class PositionFileReader:
    """Follows the progress of one group.

    Parameters
    ----------
    storage, directory
        Where the group's files are.
    queue_id, group_id : bytes
        Whose they must be.
    reach : Reach
        How far entries may reach.
    initial : callable
        Returns the progress of a group that has just started and has no position file.

    Attributes
    ----------
    progress : GroupProgress
        As of the last :meth:`refresh`.
    generation : int
        Of the position file it comes from; 0 while there is none.
    is_superseded : bool
        Whether the last :meth:`refresh` met a later file of another life of the group, which may count by now.
    has_appended : bool
        Whether the position file has an entry behind its checkpoint: its writer had synced its name before.
    damage : list of Damage
        Entries and files that could not be read.
    """

    def __init__(
        self,
        storage: Storage,
        directory: Path,
        queue_id: bytes,
        group_id: bytes,
        reach: Reach,
        initial: Callable[[], GroupProgress],
    ) -> None:
        self._storage = storage
        self._reach = reach
        self._directory = directory
        self.ids = (queue_id, group_id)
        self._initial = initial
        self.progress = initial()
        self.generation = 0
        self.is_superseded = self.has_appended = False
        self.damage: list[Damage] = []
        self._salt = 0
        self._next = 0
        self._synced = 0  # so many entries are known to have been synced
        self._run: list[Change] = []
        self._vote_end = 0  # number of the entry behind the last vote begun
        self._has_floor = False

    def refresh(self) -> GroupProgress:
        """Read the entries written since the last call, and return the progress.

        Raises
        ------
        UnsupportedVersionError
            A Holdfast of another format version wrote the file.
        OSError
            The disk refuses.
        """
        self.is_superseded = False
        for generation in reversed(list_generations(self._storage, self._directory)):
            if generation < self.generation:
                break
            try:
                if self._read(generation):
                    break
            except MISSING:  # replaced by the next generation just now
                pass
        return self.progress

    @property
    def is_durable(self) -> bool:
        """Whether the file itself proves that all entries which were read have been synced by their writer."""
        return self._synced >= self._next

    def sync(self) -> None:
        """Make the entries that were read durable: another process may have written them without a sync."""
        while self.generation:
            generation = self.generation
            try:
                with self._storage.open(position_file(self._directory, generation)) as file:
                    file.sync()
            except MISSING:  # replaced by the next generation just now
                self.refresh()
                if self.generation in (0, generation):  # nothing is behind it that can be read
                    raise
            else:
                self._storage.sync_directory(self._directory)
                return

    def _read(self, generation: int) -> bool:
        """Continue reading one generation; False if it cannot be used."""
        path = position_file(self._directory, generation)
        with self._storage.open(path, writable=False) as file:
            if file.size() > POSITION_FILE_BYTES_LIMIT:
                self._report(path, 0, file.size(), f"no position file is larger than {POSITION_FILE_BYTES_LIMIT} bytes")
                return False
            if generation != self.generation and not self._begin(path, generation, file.read_at(FRAMES_START, 0)):
                return False
            self._take(path, file)
        if not self._has_floor:
            self._report(path, FRAMES_START, 0, "the checkpoint has lost its floor")
            self.generation = 0  # so that an older one, if any, is read instead
        return self._has_floor

    def _report(self, path: Path, position: int, size: int, reason: str) -> None:
        """Record damage once, however often it is met: some readers poll every few milliseconds."""
        damage = Damage(path, position, size, range(0), DAMAGED, reason)
        if damage not in self.damage:
            self.damage.append(damage)

    def _begin(self, path: Path, generation: int, start: bytes) -> bool:
        try:
            header = PositionFileHeader.decode(block_copies(start), str(path))
        except CorruptionError as error:
            self._report(path, 0, len(start), str(error))
            return False
        if (header.queue_id, header.group_id) != self.ids or header.generation != generation:
            self.is_superseded |= header.queue_id == self.ids[0]
            return False
        self.progress = self._initial()
        self.generation, self._salt, self._next, self._run = generation, header.salt, 0, []
        self._synced = 0
        self._vote_end, self._has_floor, self.has_appended = 0, False, False
        return True

    def _take(self, path: Path, file: File) -> None:
        """Apply the new entries, whole runs at a time."""
        self._reach.renew()
        while self._take_window(path, file):
            pass
        self._end_unreadable(path)

    def _take_window(self, path: Path, file: File) -> bool:
        """Read some entries; return whether there may be more."""
        base = self._next
        data = _window(file, base)
        while (at := (self._next - base) * ENTRY.size) + ENTRY.size <= len(data):
            entry = decode_entry(data, at, self._salt, self._next)
            if entry is None:
                if not self._was_synced(file, data[at + ENTRY.size :]):
                    return False
                position = FRAMES_START + self._next * ENTRY.size
                reason = f"entry {self._next} does not verify; its change may be repeated"
                self._report(path, position, ENTRY.size, reason)
                self._run.append(UNREADABLE)
                self._next += 1
            else:
                self._add(path, entry)
        return len(data) == _WINDOW_BYTES

    def _add(self, path: Path, entry: Entry) -> None:
        """Add an entry to its run, and apply the run if the entry ends it."""
        if entry.flags & ENTRY_FLAG_FIRST:
            self._end_unreadable(path)
            self._run = []
        change = self._reach.bounded(entry.change)
        if change is None:
            position = FRAMES_START + entry.number * ENTRY.size
            reason = f"entry {entry.number} names offset {reach_of(entry.change) - 1}, beyond the log"
            self._report(path, position, ENTRY.size, f"{reason}; it does not count")
        self._run.append(change or UNREADABLE)
        self._next += 1
        self._synced = max(self._synced, entry.synced_mark)
        if entry.change.kind == ENTRY_VOTE:
            self._vote_end = entry.number + vote_entry_count(entry.change)
        in_checkpoint = entry.flags & ENTRY_FLAG_CHECKPOINT  # all of it is on the disk: each entry counts by itself
        self.has_appended |= not in_checkpoint
        if entry.synced_mark == entry.number and not in_checkpoint and is_known_floor(entry.change, self.progress):
            self._synced = self._next  # nothing is lost with it
        if entry.flags & ENTRY_FLAG_LAST or (in_checkpoint and self._next >= self._vote_end):
            self._apply(path)

    def _end_unreadable(self, path: Path) -> None:
        """Apply a run whose last entry is damaged.

        It was whole: the bad entry is known to be synced, whole runs are synced, and the next one has begun or nothing
        more is known to be synced.
        """
        if self._run and self._run[-1] is UNREADABLE:
            self._apply(path)

    def _apply(self, path: Path) -> None:
        """Apply the entries that were read since the last run."""
        run, self._run = self._run, []
        start = FRAMES_START + (self._next - len(run)) * ENTRY.size
        for reason in apply_run(run, self.progress):
            self._report(path, start, len(run) * ENTRY.size, reason)
        self._has_floor |= any(change.kind == ENTRY_FLOOR for change in run)

    def _was_synced(self, file: File, behind: bytes) -> bool:
        """Whether a good entry after the next, bad one proves that the bad one was on the disk once."""
        number = self._next + 1
        while behind or (behind := _window(file, number)):
            if self._says_so(behind, number):
                return True
            number += len(behind) // ENTRY.size
            behind = b""
        return False

    def _says_so(self, data: bytes, number: int) -> bool:
        """Whether one of these entries, from ``number`` on, proves that the next one was on the disk."""
        if data == bytes(len(data)):  # only reserved space: the quickest way to see that
            return False
        low_bytes = data[ENTRY.size - ENTRY_GENERATION.size :: ENTRY.size]  # of the generation of each entry
        ahead = -1
        while (ahead := low_bytes.find(self.generation & 0xFF, ahead + 1)) >= 0:  # skips thousands of older lives
            entry = decode_entry(data, ahead * ENTRY.size, self._salt, number + ahead)
            if entry is not None and (entry.synced_mark > self._next or entry.flags & ENTRY_FLAG_CHECKPOINT):
                return True
        return False


def _window(file: File, number: int) -> bytes:
    """Return whole entries from this one on, as many as are read at once; none at the end of the file."""
    data = file.read_at(_WINDOW_BYTES, FRAMES_START + number * ENTRY.size)
    return data[: len(data) - len(data) % ENTRY.size]
