"""Where a run keeps its files: in memory, where kills and cuts leave what they leave on a disk, and syncs are quick."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MEMORY = Path("/dev/shm")
FREE_BYTES_MIN = 2**29

SKIPPED = 77
"""Exit code of a programme that could not test anything here; automake's for a test that was skipped."""


@contextmanager
def workplace(on_disk: bool) -> Iterator[Path]:
    """Make an empty directory, in memory if there is room and nobody wants it elsewhere; it goes with the block."""
    logging.getLogger("holdfast").addHandler(logging.NullHandler())  # what recovery finds is judged, not printed
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that it goes then, too, and what is mounted there
    has_space = os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= FREE_BYTES_MIN
    folder = MEMORY if has_space and not on_disk else None
    with tempfile.TemporaryDirectory(prefix="holdfast-proof-", dir=folder) as place:
        yield Path(place)
