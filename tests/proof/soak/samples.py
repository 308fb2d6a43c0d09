"""What is looked at every second: memory, descriptors and threads of both processes, and what stands on the disk."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from array import array
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import overload

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it


@dataclass(frozen=True, slots=True)
class Sample:
    """One look. Figures of the owner come before those of the second process.

    Attributes
    ----------
    seconds : float
        Since the load began.
    owner_rss_bytes, second_rss_bytes, owner_files, second_files, owner_threads, second_threads : float
        Memory, open descriptors and threads.
    block_count : float
        Blocks that Python has allocated in the owner: no allocator's habits blur that.
    data_bytes, data_count : float
        Data files, the spares among them.
    position_bytes, position_count : float
        Position files.
    prepared_count, other_count : float
        Files in ``prepared/``, and all others.
    """

    seconds: float
    owner_rss_bytes: float
    second_rss_bytes: float
    owner_files: float
    second_files: float
    owner_threads: float
    second_threads: float
    block_count: float
    data_bytes: float
    data_count: float
    position_bytes: float
    position_count: float
    prepared_count: float
    other_count: float


class Samples(Sequence[Sample]):
    """Many of them in one block of memory, because the process that keeps them is one that is looked at."""

    def __init__(self) -> None:
        self._figures = array("d")
        self._width = len(fields(Sample))

    def add(self, sample: Sample) -> None:
        """Keep one more."""
        self._figures.extend(astuple(sample))

    def __len__(self) -> int:
        return len(self._figures) // self._width

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> list[Sample]: ...
    def __getitem__(self, index: int | slice) -> Sample | list[Sample]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        return Sample(*self._figures[index * self._width : (index + 1) * self._width])


def tidy() -> None:
    """Give back what nobody refers to and what the allocator keeps for later, so that what is left is in use."""
    gc.collect()
    if _malloc_trim is not None:
        _malloc_trim(0)


def can_look() -> bool:
    """Whether the system tells of other processes what is looked at."""
    return Path("/proc/self/statm").exists()


def look(seconds: float, owner: int, second: int, queues: Iterable[Path]) -> Sample:
    """Return what there is now of two processes, the first of which is the caller, and of their queues."""
    counts = dict.fromkeys(("data", "position", "prepared", "other"), 0)
    sizes = dict(counts)
    for queue in queues:
        for folder, _, names in os.walk(queue):
            for name in names:
                with suppress(FileNotFoundError):  # gone meanwhile
                    kind = _kind(os.path.relpath(folder, queue), name)
                    sizes[kind] += os.stat(os.path.join(folder, name)).st_blocks * 512
                    counts[kind] += 1
    tidy()
    return Sample(
        seconds,
        _rss_bytes(owner),
        _rss_bytes(second),
        _entry_count(owner, "fd"),
        _entry_count(second, "fd"),
        _entry_count(owner, "task"),
        _entry_count(second, "task"),
        sys.getallocatedblocks(),
        sizes["data"],
        counts["data"],
        sizes["position"],
        counts["position"],
        counts["prepared"],
        counts["other"],
    )


def _kind(folder: str, name: str) -> str:
    top = folder.split(os.sep, maxsplit=1)[0]
    if top in ("data", "spare"):
        return "data"
    if top == "prepared":
        return top
    return "position" if name.endswith(".position") else "other"


def _rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES


def _entry_count(pid: int, what: str) -> int:
    return len(os.listdir(f"/proc/{pid}/{what}"))
