"""Garbage collection in Spark's Python workers.

A worker that is reused collects all garbage behind each task, and so visits every object of every module: 35 to 40 ms,
in each of the four processes that a batch goes through. Imported modules stay; so it is taken out of that, once.
"""

from __future__ import annotations

import gc
import sys
from functools import cache

_WORKERS = ("pyspark.daemon", "pyspark.worker")


def keep_modules() -> None:
    """Exclude imported modules from all later collections, in a worker of Spark; elsewhere do nothing."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    if main is not None and main.name in _WORKERS:
        _freeze()


@cache
def _freeze() -> None:
    gc.collect()
    gc.freeze()
