"""Who decides, at a power loss, which unsynced pieces reached the disk.

A choice is asked once per piece, in an order that depends on nothing but the run and the answers so far: first the
names in the order they changed, then for each file that still has a name (by inode) its changes in order.
"""

from __future__ import annotations

import random
from typing import Protocol

from support.storages.disk_operations import NameOperation

ALL_SECTORS = -1  # every bit of the mask is set, however many sectors there are


class CrashChoice(Protocol):
    """The answers; true or a set bit means that the piece is on the disk."""

    def keep_sectors(self, inode: int, first_sector: int, count: int) -> int:
        """Return a mask: bit i says whether sector ``first_sector + i`` of this one write is kept."""

    def keep_size(self, inode: int, size: int) -> bool:
        """Return whether the change of the file's size to ``size`` is kept."""

    def keep_name(self, operation: NameOperation) -> bool:
        """Return whether the change of a directory entry is kept."""

    def garbage(self, inode: int, sector: int) -> bytes:
        """Return what reads back from a sector of the file that was never written and is lost; nothing: zeros."""


class ReadsZeros:
    """What was never written reads back as zeros."""

    def garbage(self, inode: int, sector: int) -> bytes:
        return b""


class SameForAll(ReadsZeros):
    """One answer to everything: the two corners that a recovery must at least stand."""

    def __init__(self, *, keep: bool) -> None:
        self._keep = keep

    def keep_sectors(self, inode: int, first_sector: int, count: int) -> int:
        return ALL_SECTORS if self._keep else 0

    def keep_size(self, inode: int, size: int) -> bool:
        return self._keep

    def keep_name(self, operation: NameOperation) -> bool:
        return self._keep


class ByKind(ReadsZeros):
    """One answer per kind of piece, for tests that ask about one of the three alone."""

    def __init__(self, *, sectors: bool, sizes: bool, names: bool) -> None:
        self._sectors = sectors
        self._sizes = sizes
        self._names = names

    def keep_sectors(self, inode: int, first_sector: int, count: int) -> int:
        return ALL_SECTORS if self._sectors else 0

    def keep_size(self, inode: int, size: int) -> bool:
        return self._sizes

    def keep_name(self, operation: NameOperation) -> bool:
        return self._names


class RandomChoice(ReadsZeros):
    """An independent coin for each piece; ``keep`` is its bias, since a fair coin hardly ever keeps nearly all."""

    def __init__(self, rng: random.Random, keep: float = 0.5) -> None:
        self._rng = rng
        self._keep = keep

    def keep_sectors(self, inode: int, first_sector: int, count: int) -> int:
        if self._keep == 0.5:
            return self._rng.getrandbits(count)  # one call instead of one per sector: this is the hot path
        return sum((self._rng.random() < self._keep) << sector for sector in range(count))

    def keep_size(self, inode: int, size: int) -> bool:
        return self._rng.random() < self._keep

    def keep_name(self, operation: NameOperation) -> bool:
        return self._rng.random() < self._keep


class Odometer(ReadsZeros):
    """Every combination of answers, one crash after the other: the last answer that was "dropped" becomes "kept".

    Which pieces are asked about depends on earlier answers (a file that lost its name is not asked about), so the
    digits are made as they are asked for and cut off when an earlier one turns.
    """

    def __init__(self) -> None:
        self._digits: list[bool] = []
        self._asked = 0

    def advance(self) -> bool:
        """Go to the next combination; return False when all were seen."""
        self._asked = 0
        while self._digits and self._digits[-1]:
            self._digits.pop()
        if not self._digits:
            return False
        self._digits[-1] = True
        return True

    def keep_sectors(self, inode: int, first_sector: int, count: int) -> int:
        return sum(self._next() << sector for sector in range(count))

    def keep_size(self, inode: int, size: int) -> bool:
        return self._next()

    def keep_name(self, operation: NameOperation) -> bool:
        return self._next()

    def _next(self) -> bool:
        if self._asked == len(self._digits):
            self._digits.append(False)
        self._asked += 1
        return self._digits[self._asked - 1]
