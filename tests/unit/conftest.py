"""Unit tests keep their files in memory, where the machine has room for that: most of their time were syncs of a disk.

What a disk does and what a kill leaves on one is the matter of tests/contract, tests/crash and tests/spark, which keep
theirs. With ``HOLDFAST_TEST_ON_DISK=1`` unit tests do too; then pytest also keeps the files of its last runs.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.builders.log_parts import LogParts
from support.processes.threads import Threads
from support.storages.simulated_storage import SimulatedStorage

MEMORY = Path("/dev/shm")  # Linux; elsewhere, and in containers that get little of it, a disk will do
FREE_BYTES_MIN = 4 * 2**30  # one test opens twenty queues with data files of 64 MiB; two may run at once


@pytest.fixture(scope="session")
def has_room_in_memory() -> bool:
    """Whether there is a directory in memory for tests, with enough room for whatever one of them puts there."""
    if os.environ.get("HOLDFAST_TEST_ON_DISK") == "1" or not os.access(MEMORY, os.W_OK | os.X_OK):
        return False
    return shutil.disk_usage(MEMORY).free >= FREE_BYTES_MIN


@pytest.fixture
def tmp_path(tmp_path: Path, has_room_in_memory: bool) -> Iterator[Path]:
    """Return an empty directory, as pytest does; it goes when the test ends."""
    if not has_room_in_memory:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-test-", dir=MEMORY) as place:
        yield Path(place)


@pytest.fixture
def threads() -> Iterator[Threads]:
    """Threads that have to end well."""
    group = Threads()
    yield group
    group.join()


@pytest.fixture
def storage() -> SimulatedStorage:
    """A disk."""
    return SimulatedStorage()


@pytest.fixture
def parts() -> LogParts:
    """Return the parts of an empty queue, in a simulated storage."""
    return LogParts()
