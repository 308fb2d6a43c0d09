"""``dedup.ids``: the deduplication ids of a queue's latest messages, behind the data files that held these messages.

A ring of fixed slots. After a crash, the ids of the active data file are read from that file, so a put writes nothing
here. The ring is brought up to date and synced before each roll and at a clean close. docs/format.md, "Deduplication".

What is *not* promised: ids of the last data file count here only if that file was closed cleanly.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from itertools import count
from pathlib import Path
from typing import NamedTuple

from holdfast.persistence.filesystem.document import made_anew
from holdfast.persistence.filesystem.layout import open_if_there
from holdfast.persistence.filesystem.ring import used_slots, void_count
from holdfast.persistence.filesystem.storage import File, Storage, storage_errors, write_whole
from holdfast.persistence.format.checksum import crc32c
from holdfast.persistence.format.constants import (
    DEDUP_DIGEST_BYTES,
    DEDUP_SLOT,
    DEDUP_SLOT_BODY,
    DEDUP_SLOTS_MAX,
    HEADER_CRC,
)
from holdfast.threads import log_later


class Remembered(NamedTuple):
    """One id: its digest, the offset of the message that was put with it, and the time."""

    digest: bytes
    offset: int
    timestamp_ns: int


def digest_of(dedup_id: str) -> bytes:
    """Return the digest of an id, empty for none: all take the same space, and none is stored in clear."""
    return blake2b(dedup_id.encode(), digest_size=DEDUP_DIGEST_BYTES).digest() if dedup_id else b""


class DedupRing:
    """The file. The caller holds the append lock.

    Parameters
    ----------
    storage, path
        Where it is.
    queue_id : bytes
        The queue: slots of another queue do not verify.
    slot_count : int
        How many ids a new file holds.

    Attributes
    ----------
    storage : Storage
        As above.
    exists, is_named : bool
        Whether the file exists, and whether its name is durable.
    slot_count : int
        As above, or as many as the file holds.
    """

    def __init__(self, storage: Storage, path: Path, queue_id: bytes, slot_count: int) -> None:
        self.storage = storage
        self._path = path
        self._seed = crc32c(0, queue_id)
        self.slot_count = slot_count
        self.exists = False
        self.is_named = False
        self._is_whole = False  # with the notes added, the file holds all ids
        self._next = 0
        self._notes: deque[Remembered] = deque(maxlen=slot_count)

    def read(self) -> list[Remembered]:
        """Return the ids in the file, the oldest first; none if there is no file.

        Raises
        ------
        StorageError
            It cannot be read.
        """
        with storage_errors("reading deduplication ids", self._path):
            file = open_if_there(self.storage, self._path)
            if file is None:
                return []
            with file:
                slot_count = file.size() // DEDUP_SLOT.size
                found = self._decode(file, slot_count) if slot_count <= DEDUP_SLOTS_MAX else {}
        self.exists, self.is_named = True, bool(found)
        if slot_count > DEDUP_SLOTS_MAX:
            log_later(logging.WARNING, "%s is larger than Holdfast writes it: the ids in it are forgotten", self._path)
        elif slot_count:
            self._is_whole = True
            self._next = max(found, default=-1) + 1
            self._set_size(slot_count)
        return [found[number] for number in sorted(found)]

    def renew(self) -> None:
        """Make the next :meth:`keep` rewrite the file, because some of its slots are void."""
        self._is_whole = False
        self._notes.clear()

    def resize(self, slot_count: int) -> None:
        """Set another number of slots, from the next :meth:`keep` on."""
        self.renew()
        self._set_size(slot_count)

    def reserve(self, everything: Callable[[], list[Remembered]]) -> None:
        """Make the file with all its space, if there is none; from here on, recovery after a crash looks for ids.

        An unused file is made again: the process that made it may have been killed before its name was durable.

        Raises
        ------
        DiskFullError, StorageError
            The file could not be made.
        """
        if not self.is_named:
            with storage_errors("making room for deduplication ids", self._path):
                self._write_anew(everything)

    def note(self, remembered: Remembered) -> None:
        """Add the id of an appended message; the next :meth:`keep` writes it."""
        if self._is_whole:  # else the whole file will be written
            if len(self._notes) == self.slot_count:  # the oldest note makes room, and keeps its number
                self._next += 1
            self._notes.append(remembered)

    def keep(self, everything: Callable[[], list[Remembered]]) -> None:
        """Write and sync the noted ids, or ``everything`` if a rewrite is due, the oldest first.

        Raises
        ------
        DiskFullError, StorageError
            The disk refuses; the next attempt writes everything into a new file.
        """
        with storage_errors("keeping deduplication ids", self._path):
            if self._notes:
                self._write_notes()
            elif self.exists and not self._is_whole:
                self._write_anew(everything)

    # -- Writing -----------------------------------------------------------------------------------------------------

    def _write_notes(self) -> None:
        first = self._next
        notes = list(map(self._encode, count(first), self._notes))
        self.renew()  # until all of this has succeeded: a second sync could succeed over data that the first one lost
        at = first % self.slot_count
        ahead = self.slot_count - at
        with self.storage.open(self._path) as file:
            write_whole(file, (b"".join(notes[:ahead]),), at * DEDUP_SLOT.size)
            if ahead < len(notes):
                write_whole(file, (b"".join(notes[ahead:]),), 0)
            file.sync()
        self._next = first + len(notes)
        self._is_whole = True

    def _write_anew(self, everything: Callable[[], list[Remembered]]) -> None:
        """Write a new file with space for all slots, and then name it. A failed attempt is repeated with a new file."""
        slots = everything()[-self.slot_count :]
        with made_anew(self.storage, self._path, is_first=not self.is_named) as file:
            file.allocate(self.slot_count * DEDUP_SLOT.size)
            if slots:
                write_whole(file, (b"".join(map(self._encode, range(len(slots)), slots)),), 0)
        self._notes.clear()
        self._next = len(slots)
        self.exists = self.is_named = self._is_whole = True

    # -- Slots -------------------------------------------------------------------------------------------------------

    def _set_size(self, slot_count: int) -> None:
        self.slot_count = slot_count
        self._notes = deque(maxlen=slot_count)

    def _encode(self, number: int, remembered: Remembered) -> bytes:
        digest, offset, timestamp_ns = remembered
        body = DEDUP_SLOT_BODY.pack(digest, number, offset, timestamp_ns)
        return HEADER_CRC.pack(crc32c(self._seed, body)) + body

    def _decode(self, file: File, slot_count: int) -> dict[int, Remembered]:
        """Return the entries of slots, by number, without those that are torn or damaged."""
        found = {}
        for place, slot in used_slots(file, DEDUP_SLOT.size, slot_count):
            if _is_good(slot_count, self._seed, place, slot):
                _, digest, number, offset, timestamp = DEDUP_SLOT.unpack(slot)
                found[number] = Remembered(digest, offset, timestamp)
        return found


def _is_good(slot_count: int, seed: int, place: int, slot: bytes) -> bool:
    crc, _, number, _, _ = DEDUP_SLOT.unpack(slot)
    return bool(number % slot_count == place and crc == crc32c(seed, slot[HEADER_CRC.size :]))


def void_ids(storage: Storage, path: Path, queue_id: bytes) -> int:
    """Return how many used slots of a ring do not verify. Raises ``OSError``."""
    file = open_if_there(storage, path)
    if file is None:
        return 0
    with file:
        slot_count, seed = file.size() // DEDUP_SLOT.size, crc32c(0, queue_id)
        is_good = partial(_is_good, slot_count, seed)
        return void_count(file, DEDUP_SLOT.size, min(slot_count, DEDUP_SLOTS_MAX), is_good)
