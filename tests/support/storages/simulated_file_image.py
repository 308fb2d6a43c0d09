"""The contents of one simulated file: what a process sees, what the disk surely has, and what lies between.

Changes wait in order until a sync settles them. A crash replays the waiting ones onto the durable bytes, each sector
and each size as the crash choice says. Two writes into one sector are two pieces: a real disk could not lose the
first and keep the second, but code that survives this survives the real one too.
"""

from __future__ import annotations

from enum import Enum
from functools import lru_cache
from hashlib import blake2b

from support.models.crash_choices import ALL_SECTORS, CrashChoice

SECTOR_SIZE_BYTES = 512  # the unit that disks promise to write whole (RELIABILITY: crash model)


class Fate(Enum):
    """Where a change stands between memory and disk."""

    UNSYNCED = "unsynced"  # the next sync settles it
    SYNCED = "synced"  # settled, but behind something undecided, so it cannot be merged yet
    ABANDONED = "abandoned"  # a sync of it failed: memory calls it clean, the disk may never have got it


class FileChange:
    """One write or one change of size; a write that extends the file is both."""

    __slots__ = ("data", "fate", "position", "shrinks", "size")

    def __init__(self, position: int, data: bytes, size: int | None, shrinks: bool, fate: Fate) -> None:
        self.position = position
        self.data = data
        self.size = size
        self.shrinks = shrinks
        self.fate = fate

    def copy(self) -> FileChange:
        """Return a twin whose fate can differ."""
        return FileChange(self.position, self.data, self.size, self.shrinks, self.fate)

    @property
    def pieces(self) -> int:
        """How many answers :meth:`replay` asks for."""
        return (_sector_count(self.position, self.data) if self.data else 0) + (self.size is not None)

    def replay(self, image: bytearray, size: int, inode: int, choice: CrashChoice | None) -> int:
        """Put what is kept into ``image`` (None keeps all) and return the size of the file after it.

        ``image`` may be longer than the file: what a write left behind a size that was lost shows up again when a
        later size is kept.
        """
        if self.data:
            self._replay_sectors(image, inode, choice)
        if self.size is not None and (choice is None or choice.keep_size(inode, self.size)):
            if self.shrinks:
                del image[self.size :]
            return self.size
        return size

    def _replay_sectors(self, image: bytearray, inode: int, choice: CrashChoice | None) -> None:
        end = self.position + len(self.data)
        first = self.position // SECTOR_SIZE_BYTES
        count = _sector_count(self.position, self.data)
        mask = ALL_SECTORS if choice is None else choice.keep_sectors(inode, first, count)
        if mask in (ALL_SECTORS, (1 << count) - 1):
            put(image, self.position, self.data)
            return
        if not mask and end <= len(image):
            return
        assert choice is not None, "all is kept"
        for sector in range(count):
            start = max(self.position, (first + sector) * SECTOR_SIZE_BYTES)
            stop = min(end, (first + sector + 1) * SECTOR_SIZE_BYTES)
            if mask >> sector & 1:
                put(image, start, self.data[start - self.position : stop - self.position])
            elif start >= len(image):  # there never was anything
                garbage = choice.garbage(inode, first + sector)
                if garbage:
                    put(image, start, garbage[: stop - start])


class FileImage:
    """One file. Bytes objects are shared between images and copied when written to, so crashing is cheap.

    Attributes
    ----------
    change_count : int
        Changes so far; what a sync that began at one of them covers ends there.
    """

    __slots__ = ("_changes", "_data", "_digest", "_durable", "change_count")

    def __init__(self, content: bytes = b"") -> None:
        self._digest: bytes | None = None
        self._data: bytes | bytearray = content
        self._durable: bytes | bytearray = content
        self._changes: list[FileChange] = []
        self.change_count = 0

    def __len__(self) -> int:
        return len(self._data)

    def read(self, size: int, position: int) -> bytes:
        """Return what a running process sees."""
        return bytes(self._data[position : position + size])

    def digest(self) -> bytes:
        """Return 16 bytes that tell apart what processes see; they are kept until the file changes."""
        if self._digest is None:
            self._digest = _content_digest(bytes(self._data))
        return self._digest

    def write(self, data: bytes, position: int) -> None:
        """Change what a running process sees; the disk has it after a sync."""
        if not data:
            return
        live = self._live()
        end = position + len(data)
        size = end if end > len(live) else None
        put(live, position, data)
        self._add(FileChange(position, data, size, False, Fate.UNSYNCED))

    def resize(self, size: int) -> None:
        """Cut or extend with zeros."""
        live = self._live()
        before = len(live)
        if size == before:
            return
        set_size(live, size)
        self._add(FileChange(0, b"", size, size < before, Fate.UNSYNCED))

    def _add(self, change: FileChange) -> None:
        self._changes.append(change)
        self.change_count += 1

    def sync(self, later_count: int = 0) -> None:
        """Settle what no failed sync has touched, but for the last ``later_count`` changes."""
        for change in self._changes[: max(0, len(self._changes) - later_count)]:
            if change.fate is Fate.UNSYNCED:
                change.fate = Fate.SYNCED
        settled = 0
        while settled < len(self._changes) and self._changes[settled].fate is Fate.SYNCED:
            settled += 1
        if settled:
            durable = self._durable if isinstance(self._durable, bytearray) else bytearray(self._durable)
            size = len(durable)
            for change in self._changes[:settled]:
                size = change.replay(durable, size, 0, None)
            set_size(durable, size)
            self._durable = durable
            del self._changes[:settled]

    def fail_sync(self) -> None:
        """Leave everything unsynced undecided for good, as kernels do that mark pages clean after an error."""
        for change in self._changes:
            if change.fate is Fate.UNSYNCED:
                change.fate = Fate.ABANDONED

    @property
    def is_settled(self) -> bool:
        """Whether the disk has what a process sees, whatever happens."""
        return not self._changes

    def undecided_count(self) -> int:
        """Return how many pieces :meth:`after_power_loss` asks about."""
        return sum(change.pieces for change in self._changes if change.fate is not Fate.SYNCED)

    def after_power_loss(self, inode: int, choice: CrashChoice) -> FileImage:
        """Return the file as the disk could have it."""
        image = bytearray(self._durable)
        size = len(image)
        for change in self._changes:
            size = change.replay(image, size, inode, None if change.fate is Fate.SYNCED else choice)
        set_size(image, size)
        return FileImage(bytes(image))

    def copy(self) -> FileImage:
        """Return a twin with the same undecided changes: what the page cache holds after a process was killed."""
        twin = FileImage(self._freeze_durable())
        if not isinstance(self._data, bytes):
            self._data = bytes(self._data)
        twin._data = self._data
        twin._digest = self._digest
        twin._changes = [change.copy() for change in self._changes]
        twin.change_count = self.change_count
        return twin

    def _live(self) -> bytearray:
        self._digest = None
        if not isinstance(self._data, bytearray):
            self._data = bytearray(self._data)
        return self._data

    def _freeze_durable(self) -> bytes:
        if not isinstance(self._durable, bytes):
            self._durable = bytes(self._durable)
        return self._durable


@lru_cache(maxsize=4096)
def _content_digest(content: bytes) -> bytes:
    """Return the digest of a file: what is written again and again is digested once."""
    return blake2b(content, digest_size=16).digest()


def _sector_count(position: int, data: bytes) -> int:
    """Return how many sectors a write touches."""
    return (position + len(data) - 1) // SECTOR_SIZE_BYTES - position // SECTOR_SIZE_BYTES + 1


def put(image: bytearray, position: int, data: bytes) -> None:
    """Write into ``image``, with zeros between its end and ``position``."""
    if position > len(image):
        image.extend(bytes(position - len(image)))
    image[position : position + len(data)] = data


def set_size(image: bytearray, size: int) -> None:
    """Cut ``image`` or extend it with zeros."""
    if size > len(image):
        image.extend(bytes(size - len(image)))
    else:
        del image[size:]
