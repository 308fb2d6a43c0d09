"""A small ext4 of its own in an image file, whose power can be cut: it takes root on Linux, and loop devices.

A cut is ``EXT4_IOC_SHUTDOWN``: the file system stops at once, and what it had not written to its device is gone. The
next mount replays the journal. What is not tried: the cache of a drive, and drives that lie about it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

IMAGE_BYTES = 64 * 2**20
PAGE_BYTES = 4096

_SHUTDOWN = 0x8004587D
LOSES_JOURNAL, KEEPS_JOURNAL, KEEPS_ALL = 2, 1, 0
"""What a cut leaves: not even what the journal has in memory; the journal; everything, as after a sync."""

BUSY_SECONDS_MAX = 10.0


class LoopDiskError(Exception):
    """The disk cannot be had: says what did not work."""


class LoopDisk:
    """An ext4 in the file ``image``, mounted at ``root`` or not; see :func:`loop_disk` for the rest."""

    def __init__(self, image: Path, root: Path, *, one_page_each: bool) -> None:
        self.image = image
        self.root = root
        self._one_page_each = one_page_each

    def mount(self) -> None:
        """Make what is on it readable; after a cut its journal is replayed."""
        _run("mount", "-o", "loop,noatime", str(self.image), str(self.root))
        if self._one_page_each:
            self._write_one_page_each()

    def _write_one_page_each(self) -> None:
        mounts = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
        device = next(Path(source) for source, root, *_ in mounts if root == str(self.root))
        try:
            (Path("/sys/block") / device.name / "queue" / "max_sectors_kb").write_text(str(PAGE_BYTES // 1024))
        except OSError as error:
            raise LoopDiskError(f"the size of writes of {device} cannot be set: {error}") from error

    def unmount(self) -> None:
        """Take it away; who has files open there must have ended. What was not lost before is written first."""
        deadline = time.monotonic() + BUSY_SECONDS_MAX
        while True:
            try:
                _run("umount", str(self.root))
            except LoopDiskError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
            else:
                return

    def cut(self, leaves: int = LOSES_JOURNAL) -> None:
        """Cut the power: from here on every call on its files fails, and unsynced bytes are lost."""
        fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(fd, _SHUTDOWN, struct.pack("I", leaves))
        finally:
            os.close(fd)


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise LoopDiskError(f"{command[0]} is not installed") from error
    if done.returncode:
        raise LoopDiskError(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()}")


@contextmanager
def loop_disk(
    place: Path, *, size_bytes: int = IMAGE_BYTES, image_in: Path | None = None, one_page_each: bool = False
) -> Iterator[LoopDisk]:
    """Make one and mount it; it is unmounted however the block ends. Raises LoopDiskError where that is not possible.

    Parameters
    ----------
    place : Path
        An empty directory.
    size_bytes : int
        How large it says it is; the image is sparse.
    image_in : Path or None
        Where the image stands; None: in ``place``.
    one_page_each : bool
        Whether each write to the image is one page. The loop driver of Linux takes a write of which a part found no
        room for a whole one, and says that all is well (seen with 6.18): a medium that runs full has to be asked so.
    """
    if sys.platform != "linux" or os.geteuid() != 0:
        raise LoopDiskError("mounting a file system of one's own takes root on Linux")
    image, root = (image_in or place) / "disk.ext4", place / "disk"
    root.mkdir()
    with image.open("wb") as file:
        file.truncate(size_bytes)
    _run("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=1,lazy_journal_init=1", "-b", str(PAGE_BYTES), str(image))
    disk = LoopDisk(image, root, one_page_each=one_page_each)
    try:
        disk.mount()
        yield disk
    finally:
        if os.path.ismount(root):  # whatever the disk knows of itself: this may be an interruption
            _take_away(root)


def _take_away(root: Path) -> None:
    """Unmount, whatever still uses it: the loop device goes with the last of them."""
    try:
        _run("umount", str(root))
    except LoopDiskError:
        _run("umount", "--lazy", str(root))


def cannot_be_cut(disk: LoopDisk) -> str | None:
    """Return why a cut does not work here, or None; the disk is as before."""
    try:
        disk.cut()
    except OSError as error:
        return f"EXT4_IOC_SHUTDOWN: {os.strerror(error.errno or errno.EIO)}"
    disk.unmount()
    disk.mount()
    return None
