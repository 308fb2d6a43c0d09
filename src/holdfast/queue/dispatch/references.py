"""Messages that wait outside of the order of the log, as one integer each: a million take some 70 MB.

An integer holds, from its largest digits down, a rank, the message's offset, and the place of its frame. So a heap of
them is a queue by rank, and by offset inside of a rank.
"""

from __future__ import annotations

from heapq import heappop, heappush, nsmallest
from typing import NamedTuple

from holdfast.persistence.format.constants import FRAME_HEADER_BYTES
from holdfast.persistence.log.log_reader import Record

_OFFSET_SHIFT, _SEQUENCE_SHIFT, RANK_SHIFT = 80, 32, 144
_POSITION_MASK = 2**32 - 1
_SEQUENCE_MASK = 2**48 - 1
_OFFSET_MASK = 2**64 - 1


class Reference(NamedTuple):
    """The place of a message in the log."""

    offset: int
    sequence: int
    position: int


def reference_to(record: Record) -> int:
    """Return a record's place in the log, packed."""
    offset, _, headers, payload, end, sequence = record
    start = end - FRAME_HEADER_BYTES - len(headers) - len(payload)
    return offset << _OFFSET_SHIFT | sequence << _SEQUENCE_SHIFT | start


def offset_of(packed: int) -> int:
    """Return the offset of a packed reference; a rank in front of it does no harm."""
    return packed >> _OFFSET_SHIFT & _OFFSET_MASK


def unpack(packed: int) -> Reference:
    """Return the fields of a packed reference; a rank in front of it does no harm."""
    return Reference(
        packed >> _OFFSET_SHIFT & _OFFSET_MASK, packed >> _SEQUENCE_SHIFT & _SEQUENCE_MASK, packed & _POSITION_MASK
    )


class RankedReferences:
    """References by rank, then by offset; small numbers first.

    Attributes
    ----------
    heap : list
        The references; empty if there are none, which is checked before every take.
    """

    __slots__ = ("heap",)

    def __init__(self) -> None:
        self.heap: list[int] = []

    def push(self, rank: int, packed: int) -> None:
        """Add a reference."""
        heappush(self.heap, rank << RANK_SHIFT | packed)

    def push_ranked(self, ranked: int) -> None:
        """Add a reference that has its rank in front."""
        heappush(self.heap, ranked)

    def pop_ranked(self) -> int:
        """Remove the first one; return it with its rank in front."""
        return heappop(self.heap)

    def pop(self) -> tuple[int, int]:
        """Remove the first one; return its rank and the reference, packed."""
        ranked = heappop(self.heap)
        rank = ranked >> RANK_SHIFT
        return rank, ranked ^ rank << RANK_SHIFT

    @property
    def first_rank(self) -> int:
        """Rank of the first one; there is one."""
        return self.heap[0] >> RANK_SHIFT

    def first(self, count_max: int) -> list[int]:
        """Return the first ones with their ranks, which stay."""
        return nsmallest(count_max, self.heap)

    def clear(self) -> None:
        """Forget them all."""
        self.heap.clear()

    def __len__(self) -> int:
        return len(self.heap)
