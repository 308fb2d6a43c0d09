"""Memory of Spark's Python workers, and of a range server.

A worker that is reused collects all garbage behind each task, and so visits every object of every module: 35 to 40 ms,
in each of the four processes that a batch goes through. Imported modules stay; so it is taken out of that, once.

Chunks of a few MiB are new memory to a process each time, if the allocator gives them back when they are freed: the
system has to make pages of zeros again. That is a fifth of the time of a task that reads through a range server.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from functools import cache

_WORKERS = ("pyspark.daemon", "pyspark.worker")

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Of glibc's mallopt(3): they are set together, as setting one of them ends what adapts the other."""

_FREED_BYTES_MAX = 64 * 2**20
"""What the process keeps, at most, at the end of its heap."""

_HEAP_BYTES_MAX = 32 * 2**20
"""The largest block that comes from the heap; glibc allows no larger one."""


def is_worker() -> bool:
    """Whether this process is a Python worker of Spark."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return main is not None and main.name in _WORKERS


def keep_modules() -> None:
    """Exclude imported modules from all later collections, in a worker of Spark; elsewhere do nothing."""
    if is_worker():
        _freeze()


@cache
def _freeze() -> None:
    gc.collect()
    gc.freeze()


@cache
def keep_freed_memory() -> None:
    """Have this process use freed memory again, and not return it; without glibc do nothing."""
    adjust = getattr(ctypes.CDLL(None), "mallopt", None)
    if adjust is not None:
        adjust(_TRIM_THRESHOLD, _FREED_BYTES_MAX)
        adjust(_MMAP_THRESHOLD, _HEAP_BYTES_MAX)
