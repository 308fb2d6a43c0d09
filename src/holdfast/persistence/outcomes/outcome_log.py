"""The outcome log: remembers the outcomes of decided transactions, for callers that ask again by id.

A ring of fixed slots in one file, made as a whole before its first use, so that noting takes no space. The oldest
outcome is forgotten first; a slot that does not verify is forgotten too. Forgetting costs an answer, never a message.
docs/format.md, "Decided transactions".

What is *not* promised: an outcome is durable only once :meth:`OutcomeLog.sync` has returned.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import HoldfastError
from holdfast.persistence.filesystem.document import made_anew
from holdfast.persistence.filesystem.layout import open_if_there
from holdfast.persistence.filesystem.poison import Poison, commit_unknown
from holdfast.persistence.filesystem.ring import used_slots, void_count
from holdfast.persistence.filesystem.storage import MISSING, File, Storage, storage_errors, write_whole
from holdfast.persistence.format.checksum import crc32c
from holdfast.persistence.format.constants import (
    HEADER_CRC,
    NUMBER_MAX,
    OUTCOME_ABORTED,
    OUTCOME_COMMITTED,
    OUTCOME_ID_BYTES_MAX,
    OUTCOME_SLOT,
    OUTCOMES_MAX,
)

COMMITTED = OUTCOME_COMMITTED
ABORTED = OUTCOME_ABORTED

_UNUSED = bytes(OUTCOME_SLOT.size)


@dataclass(frozen=True, slots=True)
class OutcomeEntry:
    """The outcome of one transaction.

    Attributes
    ----------
    number : int
        Number of outcomes before it; determines its slot.
    id, nonce
        Which transaction.
    outcome : int
        ``COMMITTED`` or ``ABORTED``.
    offsets : range
        Of its messages, if it was committed.
    timestamp_ns : int
        When it was prepared, or decided.
    """

    number: int
    id: str
    nonce: bytes
    outcome: int
    offsets: range
    timestamp_ns: int

    @property
    def is_committed(self) -> bool:
        """Whether it was committed; else it was aborted."""
        return self.outcome == COMMITTED

    def encode(self) -> bytes:
        """Return the bytes of its slot."""
        name = self.id.encode()
        assert 0 < len(name) <= OUTCOME_ID_BYTES_MAX, "ids are checked where they are given"
        rest = (self.number, self.timestamp_ns, self.nonce, self.offsets.start, len(self.offsets), name)
        slot = OUTCOME_SLOT.pack(0, self.outcome, len(name), 0, *rest)
        return HEADER_CRC.pack(crc32c(0, slot[HEADER_CRC.size :])) + slot[HEADER_CRC.size :]

    @classmethod
    def decode(cls, slot: bytes) -> OutcomeEntry:
        """Return the outcome in a slot; raises ValueError if it holds none."""
        if len(slot) != OUTCOME_SLOT.size:
            raise ValueError("cut off")
        crc, outcome, id_size, _, number, timestamp, nonce, first, count, name = OUTCOME_SLOT.unpack(slot)
        if crc != crc32c(0, slot[HEADER_CRC.size :]):
            raise ValueError("the checksum does not match")
        if outcome not in (COMMITTED, ABORTED) or max(number, first + count) > NUMBER_MAX:
            raise ValueError(f"verdict {outcome}, number {number}, {count} messages from {first}")
        return cls(number, name[:id_size].decode(), nonce, outcome, range(first, first + count), timestamp)


class OutcomeLog:
    """Records the outcomes of transactions, and finds them by id or nonce. Threads may share it.

    Nothing is made before :meth:`reserve` or the first note.

    Parameters
    ----------
    storage, path
        Where the ring is; its directory is made with it.

    Raises
    ------
    StorageError
        It cannot be read.
    """

    def __init__(self, storage: Storage, path: Path) -> None:
        self._storage = storage
        self._path = path
        self._lock = threading.RLock()
        self._file: File | None = None
        self._poison = Poison("the outcome log", path)
        self._ring: dict[int, OutcomeEntry] = {}  # by number, ascending: the latest is returned
        with storage_errors("reading decided transactions", path):
            self._read()
        self._numbers = {each.nonce: number for number, each in self._ring.items()}
        self._ids = {each.id: number for number, each in self._ring.items()}
        self._is_synced = True
        self._unsure = set(self._ring)
        self._next = max(self._ring, default=-1) + 1

    def __len__(self) -> int:
        return len(self._ring)

    def find(self, transaction_id: str) -> OutcomeEntry | None:
        """Return the outcome of the latest transaction of this id, or None if none is remembered."""
        with self._lock:
            return self._ring.get(self._ids.get(transaction_id, -1))

    def find_nonce(self, nonce: bytes) -> OutcomeEntry | None:
        """Return the outcome of one transaction, or None if none is remembered."""
        with self._lock:
            return self._ring.get(self._numbers.get(nonce, -1))

    def reserve(self) -> None:
        """Reserve the file, so that :meth:`note` takes no space; raises as :meth:`note`."""
        with self._lock:
            self._poison.check()
            if self._file is None:
                with storage_errors("creating the outcome log", self._path):
                    self._file = self._open()

    def note(self, transaction_id: str, nonce: bytes, outcome: int, offsets: range, timestamp_ns: int) -> None:
        """Record an outcome in the place of the oldest; an outcome that is recorded is not recorded again.

        Raises
        ------
        DiskFullError, StorageError
            It could not be written, and is not remembered.
        PoisonedError
            An earlier sync failed, or a write that was interrupted could not be taken back.
        """
        with self._lock:
            self._poison.check()
            known = self.find_nonce(nonce)
            if known is not None and (known.id, known.outcome) == (transaction_id, outcome):
                if known.number in self._unsure:  # maybe not on the disk: writing makes it dirty
                    self._write(known)
                    self._unsure.discard(known.number)
                return
            entry = OutcomeEntry(self._next, transaction_id, nonce, outcome, offsets, timestamp_ns)
            try:
                self._write(entry)
            except BaseException as error:
                if not isinstance(error, HoldfastError):  # interrupted: it may be in the file, but is not remembered
                    self._erase(entry.number)
                raise
            self._ring[entry.number] = entry
            self._numbers[nonce] = self._ids[transaction_id] = entry.number
            self._next = entry.number + 1
            oldest = self._ring.pop(entry.number - OUTCOMES_MAX, None)
            if oldest is not None:
                self._numbers.pop(oldest.nonce, None)
                if self._ids.get(oldest.id) == oldest.number:
                    del self._ids[oldest.id]

    def sync(self) -> None:
        """Sync the recorded outcomes; raises CommitUnknownError, and then nothing more can be recorded here."""
        with self._lock:
            self._poison.check()
            if self._file is None or self._is_synced:
                return
            self._is_synced = True  # before the sync: an outcome noted meanwhile needs the next one
            try:
                self._file.sync()
            except BaseException as error:
                self._poison.set(error)
                if isinstance(error, OSError):
                    raise commit_unknown("syncing decided transactions", self._path, error) from error
                raise

    def close(self) -> None:
        """Sync, if nothing failed before, and close the file."""
        try:
            if self._poison.cause is None:
                self.sync()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the file and write nothing."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _read(self) -> None:
        file = open_if_there(self._storage, self._path)
        if file is None:
            return
        found = []
        with file:
            for place, slot in used_slots(file, OUTCOME_SLOT.size, OUTCOMES_MAX):
                entry = _entry_at(place, slot)
                if entry is not None:
                    found.append(entry)
        self._ring = {each.number: each for each in sorted(found, key=lambda each: each.number)}

    def _write(self, entry: OutcomeEntry) -> None:
        with storage_errors("writing to the outcome log", self._path):
            if self._file is None:
                self._file = self._open()
            write_whole(self._file, (entry.encode(),), entry.number % OUTCOMES_MAX * OUTCOME_SLOT.size)
        self._is_synced = False

    def _erase(self, number: int) -> None:
        try:
            if self._file is not None:
                write_whole(self._file, (_UNUSED,), number % OUTCOMES_MAX * OUTCOME_SLOT.size)
        except BaseException as error:
            self._poison.set(error)

    def _open(self) -> File:
        """Open the ring for writing; a missing one is made under another name, with all its space, and then renamed."""
        directory = self._path.parent
        try:
            self._storage.sync_directory(directory)  # the process that made it may have been killed before doing so
            return self._storage.open(self._path)
        except MISSING:
            pass
        self._storage.make_directory(directory)
        try:
            self._storage.sync_directory(directory.parent)
        except OSError:  # a second sync could succeed over a lost name: the next attempt makes a new one
            with suppress(OSError):
                self._storage.remove_directory(directory)
            raise
        with made_anew(self._storage, self._path) as file:
            file.allocate(OUTCOMES_MAX * OUTCOME_SLOT.size)
        return self._storage.open(self._path)


def _entry_at(place: int, slot: bytes) -> OutcomeEntry | None:
    """Return the outcome in a slot; None if that was torn while it was overwritten, or damaged: it is forgotten."""
    with suppress(ValueError):
        entry = OutcomeEntry.decode(slot)
        if entry.number % OUTCOMES_MAX == place:
            return entry
    return None


def void_outcomes(storage: Storage, path: Path) -> int:
    """Return how many used slots of an outcome log do not verify. Raises ``OSError``."""
    file = open_if_there(storage, path)
    if file is None:
        return 0
    with file:
        return void_count(file, OUTCOME_SLOT.size, OUTCOMES_MAX, lambda place, slot: bool(_entry_at(place, slot)))
