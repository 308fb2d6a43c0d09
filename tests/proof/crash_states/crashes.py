"""Which crashes are tried at one instant: a kill, every loss of power where they are few, and a sample where not.

What was never written and is lost reads back as zeros, and in half of the sample as stale garbage: bytes of the queue's
own files, so that frames and entries stand where they have no business.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cached_property

from support.models.crash_choices import CrashChoice, RandomChoice, ReadsZeros, SameForAll
from support.storages.disk_operations import NameOperation, Operation, Sync, SyncDirectory
from support.storages.simulated_file_image import SECTOR_SIZE_BYTES
from support.storages.simulated_storage import SimulatedStorage

EXHAUSTIVE_PIECES_MAX = 5
"""Up to so many unsynced pieces a thorough look takes all combinations; of more each piece alone, and more."""

THOROUGH_SAMPLES = 6

NEARLY_ALL = 0.9

Crash = tuple[str, SimulatedStorage]
"""How it came about, and what is left."""


class AllBut(ReadsZeros):
    """One answer to every piece but one."""

    def __init__(self, keep: bool, odd: int) -> None:
        self._count = 0
        self._keep = keep
        self._odd = odd

    def keep_sectors(self, inode: int, first_sector: int, count: int) -> int:
        return sum(self._next() << sector for sector in range(count))

    def keep_size(self, inode: int, size: int) -> bool:
        return self._next()

    def keep_name(self, operation: NameOperation) -> bool:
        return self._next()

    def _next(self) -> bool:
        self._count += 1
        return self._keep is not (self._count - 1 == self._odd)


class WithGarbage:
    """The answers of another choice; what was never written reads back as pieces of the files in ``storage``."""

    def __init__(self, choice: CrashChoice, storage: SimulatedStorage, rng: random.Random) -> None:
        self.keep_sectors = choice.keep_sectors
        self.keep_size = choice.keep_size
        self.keep_name = choice.keep_name
        self._storage = storage
        self._rng = rng

    def garbage(self, inode: int, sector: int) -> bytes:
        at = self._rng.randrange(max(1, len(self._stale) // SECTOR_SIZE_BYTES)) * SECTOR_SIZE_BYTES
        return self._stale[at : at + SECTOR_SIZE_BYTES]

    @cached_property
    def _stale(self) -> bytes:
        return b"".join(content for content in self._storage.tree().values() if content)


def crashes(
    storage: SimulatedStorage, rng: random.Random, samples: int | None, last: Operation | None = None
) -> Iterator[Crash]:
    """Yield what crashes now would leave, some of them alike; where nothing is unsynced there is but one.

    ``samples``: how many losses of power are drawn beside the one that takes all; 0: one crash of any kind; None: a
    thorough look. ``last``: what was done since the same was asked, if that alone has happened: a sync changes nothing
    of what a kill leaves, and nothing but a sync what is lost in no case.
    """
    if samples == 0:
        yield _one_crash(storage, rng)
        return
    count = storage.undecided_count()
    is_sync = isinstance(last, Sync | SyncDirectory)
    if count and not is_sync:
        yield "kill", storage.crash_keeping_all()
    is_thorough = samples is None
    if count <= (EXHAUSTIVE_PIECES_MAX if is_thorough else 1):
        yield from (("power loss", state) for state in storage.crash_states())
        return
    if is_sync or last is None:
        yield "power loss that takes all", storage.crash(SameForAll(keep=False))
    if is_thorough:
        yield "power loss that takes nothing", storage.crash(SameForAll(keep=True))
        for odd in range(count):
            yield f"power loss that takes piece {odd}", storage.crash(AllBut(True, odd))
            yield f"power loss that leaves piece {odd}", storage.crash(AllBut(False, odd))
    for _ in range(THOROUGH_SAMPLES if samples is None else samples):
        yield "power loss, drawn", storage.crash(_drawn_choice(storage, rng))


def _one_crash(storage: SimulatedStorage, rng: random.Random) -> Crash:
    kind = rng.randrange(3)
    if kind == 0:
        return "kill", storage.crash_keeping_all()
    if kind == 1:
        return "power loss that takes all", storage.crash(SameForAll(keep=False))
    return "power loss, drawn", storage.crash(_drawn_choice(storage, rng))


def _drawn_choice(storage: SimulatedStorage, rng: random.Random) -> CrashChoice:
    """Throw a coin for each piece; half of the coins keep nearly all, and a quarter finds garbage where nothing was."""
    choice = RandomChoice(rng, NEARLY_ALL if rng.random() < 0.5 else 0.5)
    if rng.random() < 0.75:
        return choice
    return WithGarbage(choice, storage, rng)
