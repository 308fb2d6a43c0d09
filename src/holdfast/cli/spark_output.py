"""The output of Spark's JVM on standard error: kept while it works, and shown if it fails.

A drain that succeeds says nothing. Spark has warnings for every run, and its Python workers complain of broken pipes
when they are stopped, in tracebacks behind the result.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from holdfast.threads import start_thread

_READ_BYTES = 2**16


_KEPT_BYTES = 2**20
"""The end of it has the cause."""


class SparkOutput:
    """Standard error of the processes that are started inside of :meth:`taken`.

    Parameters
    ----------
    is_shown : bool
        Whether it is passed on as it comes; else its end is kept for :meth:`show`.
    """

    def __init__(self, *, is_shown: bool) -> None:
        self._is_shown = is_shown
        self._is_over = False
        self._kept = bytearray()

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Give processes that are started here another standard error, if there can be a thread that passes it on."""
        reading, writing = os.pipe()
        own = os.dup(2)
        if start_thread(partial(self._pass_on, reading, own), "holdfast-spark-output") is None:
            for each in (reading, writing, own):
                os.close(each)
            yield
            return
        sys.stderr.flush()
        os.dup2(writing, 2)
        os.close(writing)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(own, 2)

    def end(self) -> None:
        """Neither keep nor pass on what comes from now on."""
        self._is_over = True

    def show(self) -> None:
        """Write what was kept."""
        self.end()
        sys.stderr.flush()
        while self._kept:
            del self._kept[: os.write(2, self._kept)]

    def _pass_on(self, reading: int, own: int) -> None:
        while data := os.read(reading, _READ_BYTES):  # to the end: a pipe that is full would stop who writes
            if self._is_over:
                continue
            if self._is_shown:
                os.write(own, data)
            else:
                self._kept += data
                del self._kept[:-_KEPT_BYTES]
        os.close(reading)
        os.close(own)
