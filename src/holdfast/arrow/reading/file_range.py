"""The range of one task, decided when the read was planned: messages of a data file, and how to know the file again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.persistence.filesystem.layout import DataFileName

Runs = tuple[tuple[int, int], ...]
"""Ascending ranges of offsets: the first of each, and the one behind its last."""


@dataclass(frozen=True, slots=True)
class FileRange:
    """Messages of one data file.

    Attributes
    ----------
    name : DataFileName
        The file. A queue never gives a name to two contents.
    wanted : tuple of (int, int)
        Ascending ranges of offsets; all of them are in the file, or lost.
    limit : int
        Position behind the last byte that may be read; 0: the end of the file.
    file_id : bytes
        Of the file that is being written, which may not be the one of that name after a power failure; else empty.
    position : int
        Position of the first message; 0 if that is not known.
    log_end : tuple of (int, int)
        A data file, by sequence, and a position in it: the log went so far when the read was planned.
    """

    name: DataFileName
    wanted: Runs
    limit: int = 0
    file_id: bytes = b""
    position: int = 0
    log_end: tuple[int, int] = (0, 0)

    @property
    def start(self) -> int:
        """The first offset."""
        return self.wanted[0][0]

    @property
    def end(self) -> int:
        """The offset behind the last one."""
        return self.wanted[-1][1]


def clipped(runs: Runs, first: int, end: int) -> Runs:
    """Return what of ascending ranges is in ``first`` to ``end``."""
    return tuple((max(first, a), min(end, b)) for a, b in runs if a < end and first < b and max(first, a) < min(end, b))


def without(first: int, end: int, gone: list[int]) -> Iterator[tuple[int, int]]:
    """Yield the ranges that are left of ``first`` to ``end`` without these ascending offsets."""
    for offset in gone:
        if first <= offset < end:
            if first < offset:
                yield first, offset
            first = offset + 1
    if first < end:
        yield first, end
