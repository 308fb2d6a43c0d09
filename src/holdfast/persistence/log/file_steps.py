"""The sizes that data files are made in: steps, so that a small queue takes little space. Pure.

The first data file of a queue is small. Each file that follows a full one is four times as large, up to
``data_file_bytes``. No file stores its step: after a restart it is the smallest one that holds the file.
"""

from __future__ import annotations

FIRST_STEP_BYTES = 256 * 2**10
"""Size of the first data file; the largest size may be smaller."""

STEP_FACTOR = 4
"""How many times as large the file behind a full one is."""

LEAST_BYTES = 128 * 2**10
"""Size of the smallest file on a full disk: as small as serves, and not one for each message."""

_UNIT_BYTES = 16 * 2**10
"""A larger one is a multiple of this."""


def step_holding(size_bytes: int, largest_bytes: int) -> int:
    """Return the smallest step that holds so many bytes; ``size_bytes`` if that is more than the largest step."""
    step = min(FIRST_STEP_BYTES, largest_bytes)
    while step < size_bytes and step < largest_bytes:
        step = min(step * STEP_FACTOR, largest_bytes)
    return max(step, size_bytes)


def least_holding(size_bytes: int, largest_bytes: int) -> int:
    """Return the smallest size that a file is made in to hold so many bytes, for a full disk."""
    least = max(-(-size_bytes // _UNIT_BYTES) * _UNIT_BYTES, LEAST_BYTES)
    return max(min(least, largest_bytes), size_bytes)


def step_after(full_bytes: int, largest_bytes: int) -> int:
    """Return the step behind a full file of ``full_bytes``."""
    return step_holding(min(full_bytes * STEP_FACTOR, largest_bytes), largest_bytes)
