"""The payload of a seal frame: the totals of a full data file, and a sparse index into it. docs/format.md. Pure."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from operator import itemgetter

from holdfast.persistence.format.constants import FRAME_HEADER_BYTES, INDEX_STRIDE_BYTES, SEAL, SEAL_ENTRY, SEAL_TRAILER


def seal_room(capacity_bytes: int) -> int:
    """Return the bytes to keep free at the end of a data file so that its seal fits."""
    entries = 2 + capacity_bytes // INDEX_STRIDE_BYTES
    return FRAME_HEADER_BYTES + SEAL.size + SEAL_ENTRY.size * entries + SEAL_TRAILER.size


def capacity_for(size_bytes: int) -> int:
    """Return the size of a data file in which ``size_bytes`` of header and frames leave room for its seal."""
    capacity = size_bytes + seal_room(size_bytes)
    return capacity + seal_room(capacity) - seal_room(size_bytes) + SEAL_ENTRY.size


@dataclass(frozen=True, slots=True)
class Seal:
    """The contents of a seal frame.

    Attributes
    ----------
    message_count : int
        Messages in the file.
    timestamp_min_ns, timestamp_max_ns : int
        Of the file's messages; both 0 if there is none. The smallest is a lower bound if the file was closed and opened
        again in between.
    entries : tuple of (int, int)
        Index of a message and the position of its frame, ascending, about one every 64 KiB since the file was opened.
    """

    message_count: int
    timestamp_min_ns: int
    timestamp_max_ns: int
    entries: tuple[tuple[int, int], ...]

    def encode(self) -> bytes:
        """Return the frame's payload; its last four bytes are the size of the whole frame."""
        parts = [SEAL.pack(self.message_count, self.timestamp_min_ns, self.timestamp_max_ns, len(self.entries))]
        parts += [SEAL_ENTRY.pack(*entry) for entry in self.entries]
        size = FRAME_HEADER_BYTES + SEAL.size + SEAL_ENTRY.size * len(self.entries) + SEAL_TRAILER.size
        return b"".join([*parts, SEAL_TRAILER.pack(size)])

    @classmethod
    def decode(cls, payload: bytes) -> Seal:
        """Return the seal in a frame's payload; raises ValueError if it is not one."""
        if len(payload) < SEAL.size + SEAL_TRAILER.size:
            raise ValueError("too short for a seal")
        count, timestamp_min, timestamp_max, entry_count = SEAL.unpack_from(payload)
        body = payload[SEAL.size : -SEAL_TRAILER.size]
        if len(body) != entry_count * SEAL_ENTRY.size:
            raise ValueError(f"a seal of {entry_count} index entries has {len(body)} bytes for them")
        return cls(count, timestamp_min, timestamp_max, tuple(SEAL_ENTRY.iter_unpack(body)))

    def position_before(self, index: int) -> tuple[int, int] | None:
        """Return the last entry at or before ``index``, or None."""
        at = bisect_right(self.entries, index, key=itemgetter(0))
        return self.entries[at - 1] if at else None
