"""Steps of data files and position files that are so small that short workloads go from one into the next."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from holdfast.persistence.format.constants import ENTRY, FRAMES_START
from holdfast.persistence.groups import position_file_writer
from holdfast.persistence.log import file_steps

FIRST_STEP_BYTES, STEP_FACTOR = 6 * 2**10, 2
"""Steps of 6, 12 and 16 KiB up to the smallest ``data_file_bytes``: two messages of 600 bytes fill the first one."""

POSITION_FILE_BYTES_MIN = FRAMES_START + 8 * ENTRY.size
"""Eight entries; two steps behind it are the 16 KiB that position files have at most beside such data files."""


@contextmanager
def small_steps() -> Iterator[None]:
    """Make files in these steps inside."""
    with (
        patch.object(file_steps, "FIRST_STEP_BYTES", FIRST_STEP_BYTES),
        patch.object(file_steps, "STEP_FACTOR", STEP_FACTOR),
        patch.object(position_file_writer, "POSITION_FILE_BYTES_MIN", POSITION_FILE_BYTES_MIN),
    ):
        yield
