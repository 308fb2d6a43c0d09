"""A real file system that is soon full: a small tmpfs, which takes root on Linux."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(place: Path, size_bytes: int, inode_count: int = 0) -> Iterator[Path]:
    """Mount a file system of this size at a new directory; skips the test where that is not possible.

    ``inode_count`` is how many files and directories it takes; 0: no bound.
    """
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs takes root on Linux")
    place.mkdir()
    options = f"size={size_bytes}" + (f",nr_inodes={inode_count}" if inode_count else "")
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def take_all_room(disk: Path) -> Path:
    """Fill what is left with somebody else's file, and return it: removing it makes room again."""
    path = disk / "somebody-elses"
    with path.open("wb", buffering=0) as file:
        for size in (2**16, 4096, 1):
            try:
                while file.write(bytes(size)):
                    pass
            except OSError:
                continue
    return path


def take_all_inodes(disk: Path) -> None:
    """Make files until there can be no more."""
    directory = disk / "many"
    directory.mkdir()
    for number in range(100_000):
        try:
            (directory / str(number)).touch()
        except OSError:
            return
    raise AssertionError("there is no end of inodes")
