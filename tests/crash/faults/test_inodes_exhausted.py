"""A file system that has room and no more files to give: a group that has not begun begins all the same."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import Empty, PersistentQueue
from support.owners.machine_link import machine_links
from support.storages.simulated_storage import SimulatedFile, SimulatedStorage
from support.storages.small_disk import small_disk, take_all_inodes

DISK_BYTES = 8 * 2**20
INODES = 200
FILE_BYTES = 64 * 2**10
COUNT = 300


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 200 files."""
    with small_disk(tmp_path / "disk", DISK_BYTES, INODES) as place:
        yield place


def drained(queue: PersistentQueue) -> int:
    """Take and acknowledge everything, one by one; return how much that was."""
    count = 0
    while True:
        try:
            with queue.receive(timeout=0):
                count += 1
        except Empty:
            return count


@pytest.mark.parametrize("is_reopened", [False, True])
@pytest.mark.parametrize("group", ["default", "audit"])
def test_a_group_begins_and_drains_where_no_file_can_be_made(disk: Path, group: str, is_reopened: bool) -> None:
    """More acknowledgements than one position file holds; and again, with nothing set aside any more."""
    root = disk / "queue"
    queue = PersistentQueue(root, mode="exclusive", data_file_bytes=FILE_BYTES, group="default")
    queue.put_many([b"x"] * COUNT)
    if group != "default":
        queue.groups.create(group)
    if is_reopened or group != "default":
        queue.close()
        take_all_inodes(disk)
        queue = PersistentQueue(root, mode="exclusive", data_file_bytes=FILE_BYTES, group=group)
    else:
        take_all_inodes(disk)
    with queue:
        assert drained(queue) == COUNT
    with PersistentQueue(root, mode="exclusive", data_file_bytes=FILE_BYTES, group=group) as again:
        assert again.recovery.clean
        assert again.qsize() == 0


class FewFiles(SimulatedStorage):
    """A disk that has room, and can hold no more files than it has when ``is_full`` is set, but for those removed."""

    def __init__(self) -> None:
        super().__init__()
        self.is_full = False
        self.free_count = 0

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> SimulatedFile:
        """Open, and refuse to make one more."""
        if create and path not in self.tree():
            self._take(path)
        return super().open(path, create=create, writable=writable)

    def make_directory(self, path: Path) -> None:
        """Make one, if there may be one more."""
        if path not in self.tree():
            self._take(path)
        super().make_directory(path)

    def remove(self, path: Path) -> None:
        """Remove, which makes room for another."""
        super().remove(path)
        self.free_count += self.is_full

    def _take(self, path: Path) -> None:
        if self.is_full:
            if not self.free_count:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            self.free_count -= 1


@pytest.mark.parametrize("mode", ["exclusive", "shared"])
def test_what_is_set_aside_is_as_many_files_as_a_group_needs_to_begin(mode: str) -> None:
    """Through the storage port, everywhere."""
    storage, root = FewFiles(), Path("/queue")
    with PersistentQueue(root, storage=storage, mode="exclusive", data_file_bytes=FILE_BYTES) as queue:
        queue.put_many([b"x"] * COUNT)
    storage.is_full = True
    with machine_links(), PersistentQueue(root, storage=storage, mode=mode, data_file_bytes=FILE_BYTES) as queue:
        assert drained(queue) == COUNT
