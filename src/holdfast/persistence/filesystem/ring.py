"""A ring: a file of fixed slots that are reused in turn, so that it keeps the latest entries and never grows."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from holdfast.persistence.filesystem.storage import File

_ROOM = bytes(4096)
_READ_BYTES = 2**20


def used_bytes(data: bytes) -> int:
    r"""Return the position of the zeros that end ``data``: a ring that has not wrapped yet is mostly empty.

    The same as ``len(data.rstrip(b"\0"))``, which takes milliseconds for some megabytes of zeros, because it checks
    each byte.
    """
    end = len(data)
    while data.endswith(_ROOM, 0, end):
        end -= len(_ROOM)
    start = max(0, end - len(_ROOM))
    return start + len(data[start:end].rstrip(b"\0"))


def used_slots(file: File, slot_bytes: int, slot_count: int) -> Iterator[tuple[int, bytes]]:
    """Yield the position and bytes of each whole slot that was ever used; the file is read in pieces."""
    at_once = _READ_BYTES // slot_bytes
    for first in range(0, slot_count, at_once):
        data = file.read_at(min(at_once, slot_count - first) * slot_bytes, first * slot_bytes)
        for at in range(0, min(used_bytes(data), len(data) - slot_bytes + 1), slot_bytes):
            if data.startswith(_ROOM[:4], at) and not data[at : at + slot_bytes].strip(b"\0"):
                continue
            yield first + at // slot_bytes, data[at : at + slot_bytes]


def void_count(file: File, slot_bytes: int, slot_count: int, is_good: Callable[[int, bytes], bool]) -> int:
    """Return how many used slots do not verify, also at a second look: then none of them is being written."""
    return sum(
        not is_good(place, slot) and file.read_at(slot_bytes, place * slot_bytes) == slot
        for place, slot in used_slots(file, slot_bytes, slot_count)
    )
