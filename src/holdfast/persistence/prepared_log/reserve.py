"""The space that is reserved to commit one entry of the prepared log on a full disk."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.persistence.log.file_steps import LEAST_BYTES

_HEADROOM_BYTES = 8192
"""Beside the entry in each piece that is given back: blocks are whole, and frames have headers."""


class Reserve:
    """Gives the reserve of one entry back to the disk, piece by piece, and no more than committing it can need.

    Parameters
    ----------
    entry_bytes : int
        Size of the entry.
    give_back : callable
        Gives so many bytes back; returns False if none are left. Raises StorageError or ClosedError.
    make_whole : callable
        Reserves again what was given back. Raises DiskFullError or StorageError.
    """

    def __init__(self, entry_bytes: int, give_back: Callable[[int], bool], make_whole: Callable[[], None]) -> None:
        self._piece = entry_bytes + _HEADROOM_BYTES
        self._left = 2 * (self._piece + LEAST_BYTES)
        self._give_back = give_back
        self.make_whole = make_whole

    def give_back(self) -> bool:
        """Give a piece back; False if none is left, or if more would not help. Raises as the callable."""
        self._left -= self._piece
        return self._left > 0 and self._give_back(self._piece)
