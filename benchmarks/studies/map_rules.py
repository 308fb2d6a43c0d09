"""What each rule for memory maps costs by itself, in a file of its own: ``mapped_positions.py`` prints it. Linux."""

from __future__ import annotations

import itertools
import mmap
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from holdfast.persistence.filesystem.storage import OsStorage
from holdfast.persistence.format.constants import ENTRY, ENTRY_DONE
from holdfast.persistence.groups.position_entry import decode_entry, pack_entry, run_flags

FILE_BYTES, WINDOW_BYTES, PAGE = 2**20, 2**16, mmap.PAGESIZE
SALT, NUMBER = 7, 3
ENTRY_BYTES = pack_entry(SALT, ENTRY_DONE, run_flags(0, 1), 0, NUMBER, 0, 1, 9, 1, 1, 0, 4608, 1)


def microseconds(step: Callable[[int], object], count: int, rounds: int = 5) -> float:
    """Return the microseconds of one step on the clock: the median of the rounds."""
    means = []
    for _ in range(rounds):
        start = time.perf_counter()
        for number in range(count):
            step(number)
        means.append((time.perf_counter() - start) / count * 1e6)
    return median(means)


def costs(fd: int, folder: Path) -> list[tuple[str, float]]:
    """Return microseconds by what was done, in an empty file of this folder."""
    slots, size = FILE_BYTES // ENTRY.size, ENTRY.size
    os.posix_fallocate(fd, 0, FILE_BYTES)
    os.pwrite(fd, bytes(FILE_BYTES), 0)
    view = mmap.mmap(fd, FILE_BYTES)

    def store(number: int) -> None:
        at = number * size
        view[at : at + size] = ENTRY_BYTES

    def store_in_order(number: int) -> None:
        at = number * size
        view[at + 8 : at + size] = ENTRY_BYTES[8:]
        view[at : at + 8] = ENTRY_BYTES[:8]

    def in_windows(number: int) -> None:
        with mmap.mmap(fd, WINDOW_BYTES, offset=number * WINDOW_BYTES) as window:
            for at in range(0, WINDOW_BYTES, PAGE):
                window[at] = 1

    def fork() -> None:
        child = os.fork()
        if not child:
            os._exit(0)
        os.waitpid(child, 0)

    def touch_after_sync(number: int) -> float:
        os.fdatasync(fd)
        start = time.perf_counter()
        view[number * PAGE] = 1
        return (time.perf_counter() - start) * 1e6

    burst = bytes(PAGE * 16)
    rows = [
        ("an entry by pwritev", microseconds(lambda number: os.pwritev(fd, (ENTRY_BYTES,), number * size), slots)),
        ("an entry stored, its page touched before", microseconds(store, slots)),
        ("an entry stored in two parts, its checksum last", microseconds(store_in_order, slots)),
        ("the first store to a page behind a sync", median([touch_after_sync(number) for number in range(40)])),
        ("fallocate of a file that has its space", microseconds(lambda _: os.posix_fallocate(fd, 0, FILE_BYTES), 200)),
        ("map and unmap 1 MiB", microseconds(lambda _: mmap.mmap(fd, FILE_BYTES).close(), 200)),
        ("a window of 64 KiB, mapped and touched", microseconds(in_windows, FILE_BYTES // WINDOW_BYTES)),
        ("publish 64 KiB by pwritev", microseconds(lambda _: os.pwritev(fd, (burst,), 0), 200)),
        ("a second read of an entry", microseconds(lambda _: os.pread(fd, size, 0), 2_000)),
        ("a fork with the map", microseconds(lambda _: fork(), 20)),
        ("keep the map out of children (MADV_DONTFORK)", microseconds(lambda _: view.madvise(mmap.MADV_DONTFORK), 200)),
        ("a fork without it", microseconds(lambda _: fork(), 20)),
        ("the kind of the file system", microseconds(lambda _: OsStorage().file_system(folder), 50)),
    ]
    view.close()
    return rows


def torn_entries() -> tuple[int, int]:
    """Return how many half-stored slots there can be, by pieces of 8 bytes, and how many of them count as an entry."""
    olds = bytes(ENTRY.size), pack_entry(SALT + 1, ENTRY_DONE, run_flags(0, 1), 1, NUMBER, 2, 2, 8, 2, 2, 1, 5000, 2)
    pieces = range(0, ENTRY.size, 8)
    mixes = {
        b"".join((ENTRY_BYTES if new else old)[at : at + 8] for new, at in zip(chosen, pieces, strict=True))
        for old in olds
        for chosen in itertools.product((False, True), repeat=len(pieces))
    } - {ENTRY_BYTES}
    return len(mixes), sum(decode_entry(mix, 0, SALT, NUMBER) is not None for mix in mixes)


def killed_by(path: Path) -> str:
    """Store into a file that was shortened, in a child; return what ends it."""
    child = os.fork()
    if not child:
        with path.open("r+b") as file, mmap.mmap(file.fileno(), FILE_BYTES) as view:
            os.truncate(path, PAGE)
            view[2 * PAGE] = 1
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else "nothing"
