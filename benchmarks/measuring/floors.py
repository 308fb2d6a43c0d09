"""What the disk and the interpreter allow with no queue at all: the same bytes in files of the same size.

No checksum, no frame, no lock, no name that has to last. Nobody can be faster in Python with one call for each record.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.measuring.contestant import Body, Contestant
from benchmarks.measuring.load import BATCH, DATA_FILE_BYTES, Load
from holdfast.persistence.format.constants import FRAME_HEADER_BYTES, FRAMES_START

READ_BYTES = 2**20
"""Of one read of the slicing floor."""

sync_data = getattr(os, "fdatasync", os.fsync)  # macOS has only the latter


@contextmanager
def _fresh_files(folder: Path) -> Iterator[Callable[[], int]]:
    """Yield what opens one empty file after the other; all are removed at the end."""
    place = folder / "floor"
    place.mkdir()
    with ExitStack() as handles:

        def open_next() -> int:
            path = place / str(len(os.listdir(place)))
            fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND)
            handles.callback(os.close, fd)
            return fd

        yield open_next
    shutil.rmtree(place)


def write_one_by_one(load: Load) -> Contestant:
    """Append each record with one ``os.write``."""

    @contextmanager
    def stage(folder: Path) -> Iterator[Body]:
        with _fresh_files(folder) as open_next:

            def body() -> None:
                write, payload, left = os.write, load.payload, load.count
                while left:
                    fd, here = open_next(), min(left, DATA_FILE_BYTES // load.size)
                    for _ in range(here):
                        write(fd, payload)
                    left -= here

            yield body

    return Contestant("os.write", stage)


def write_batches(load: Load) -> Contestant:
    """Append a hundred records with one ``os.writev``."""

    @contextmanager
    def stage(folder: Path) -> Iterator[Body]:
        with _fresh_files(folder) as open_next:

            def body() -> None:
                writev, batch, left = os.writev, [load.payload] * BATCH, load.batches
                while left:
                    fd, here = open_next(), min(left, DATA_FILE_BYTES // (load.size * BATCH))
                    for _ in range(here):
                        writev(fd, batch)
                    left -= here

            yield body

    return Contestant(f"os.writev of {BATCH}", stage)


def write_and_sync(load: Load, threads: int = 1, *, apart: bool = False) -> Contestant:
    """Append each record with ``os.write`` and sync it, from one thread, or several on one file or ``apart``."""

    @contextmanager
    def stage(folder: Path) -> Iterator[Body]:
        with _fresh_files(folder) as open_next, ThreadPoolExecutor(threads) as pool:
            first = open_next()
            left = [first, *(open_next() if apart else first for _ in range(threads - 1))]

            def write(count: int) -> None:
                fd = left.pop()
                for _ in range(count):
                    os.write(fd, load.payload)
                    sync_data(fd)

            yield in_threads(pool, threads, load.count, write)

    label = "write + fdatasync" if threads == 1 else f"{threads} threads, each write + fdatasync"
    return Contestant(f"{label} of a file of its own" if apart else label, stage)


def overwrite_and_sync(load: Load) -> Contestant:
    """Write each record over blocks that were written before, and sync it: no new blocks, no new size."""

    @contextmanager
    def stage(folder: Path) -> Iterator[Body]:
        with _fresh_files(folder) as open_next:
            os.close(os.dup(open_next()))  # makes the file; O_APPEND would ignore positions, so open it once more
            fd = os.open(folder / "floor" / "0", os.O_WRONLY)
            try:
                os.pwrite(fd, bytes(load.count * load.size), 0)
                os.fsync(fd)

                def body() -> None:
                    for number in range(load.count):
                        os.pwrite(fd, load.payload, number * load.size)
                        sync_data(fd)

                yield body
            finally:
                os.close(fd)

    return Contestant("overwrite + fdatasync", stage)


def slice_reads(load: Load) -> Contestant:
    """Slice the payloads of the round's filled queue out of reads of 1 MiB, at places that are known beforehand."""

    @contextmanager
    def stage(folder: Path) -> Iterator[Body]:
        stride, sliced = FRAME_HEADER_BYTES + load.size, 0
        per_read = READ_BYTES // stride
        with ExitStack() as handles:
            files = []
            for path, count in _message_counts(folder / "queue" / "data", load.count):
                files.append((os.open(path, os.O_RDONLY), count))
                handles.callback(os.close, files[-1][0])

            def body() -> None:
                nonlocal sliced
                for fd, count in files:
                    position, left = FRAMES_START, count
                    while left:
                        data = os.pread(fd, READ_BYTES, position)
                        here = min(left, per_read)
                        starts = range(FRAME_HEADER_BYTES, here * stride, stride)
                        sliced += len([data[at : at + load.size] for at in starts])
                        position += here * stride
                        left -= here

            yield body
        assert sliced == load.count

    return Contestant("slices of 1 MiB reads", stage)


def in_threads(pool: ThreadPoolExecutor, threads: int, count: int, work: Callable[[int], None]) -> Body:
    """Return a body that shares ``count`` equally between threads; one thread needs no pool."""
    if threads == 1:
        return lambda: work(count)

    def body() -> None:
        for share in [pool.submit(work, count // threads) for _ in range(threads)]:
            share.result()

    return body


def _message_counts(data: Path, count: int) -> list[tuple[Path, int]]:
    """Return the data files of a queue in order, each with its number of messages, which their names tell."""
    paths = sorted(data.iterdir())
    firsts = [int(path.stem.split("-")[1]) for path in paths] + [count]
    return [(path, after - first) for path, first, after in zip(paths, firsts, firsts[1:], strict=False)]
