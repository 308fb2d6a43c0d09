"""The output of Spark's JVM on standard error: shown while it works, but not when it is stopped.

Its Python workers complain then of broken pipes, in tracebacks behind the result of a run that succeeded.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from holdfast.threads import start_thread

_READ_BYTES = 2**16


class SparkOutput:
    """Standard error of the processes that are started inside of :meth:`taken`; passed on until :meth:`drop`."""

    def __init__(self) -> None:
        self._is_dropping = False

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

    def drop(self) -> None:
        """Pass on nothing more."""
        self._is_dropping = True

    def _pass_on(self, reading: int, own: int) -> None:
        while data := os.read(reading, _READ_BYTES):  # to the end: a pipe that is full would stop who writes
            if not self._is_dropping:
                os.write(own, data)
        os.close(reading)
        os.close(own)
