"""Waits for the Spark of a drain that was killed: its JVM outlives the driver's Python, for a moment or for longer.

That JVM still writes, and when it notices, it clears away what it began: the directory ``_temporary`` of its output,
which is that of the next drain too, whose rows then are missing without a word. So the JVM of a drain holds a lock of
its own. Nothing is written into the locked file.

Drains of one process share a JVM. A process locks a file once, and closing any of its handles releases the lock. So the
holder in this process is remembered here, and other drains do not open the file.

A batch that was interrupted in Python may still run in the JVM, and nothing tells when it is over. Then the lock is
kept until the process ends.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.arrow.draining import driver_wait
from holdfast.errors import QueueLockedError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_holders: dict[str, DriverLock] = {}
"""Who of this process has which file. Claimed and noted in one step, so nothing is left claimed by an interrupt."""


class DriverLock:
    """The lock of a drain's JVM on a file in the directory of its group; a Spark without its own JVM has none."""

    def __init__(self, spark: SparkSession) -> None:
        self._jvm: Any = getattr(spark, "_jvm", None)
        self._file: Any = None
        self._path = ""
        self._is_kept = False

    def take(self, path: Path) -> None:
        """Take it, unless it is held already; wait for the process that has it.

        Raises
        ------
        QueueLockedError
            That JVM does not end, or another drain of this process still runs.
        """
        if self._jvm is None or self._file is not None:
            return
        self._path = os.path.realpath(path)
        end = time.monotonic() + driver_wait.DRIVER_SECONDS
        try:
            while not self._is_taken():
                if time.monotonic() > end or _holders[self._path]._is_kept:
                    raise self._locked(path)
                time.sleep(driver_wait.DRIVER_POLL_SECONDS)
        except BaseException:
            self.release()
            raise

    def _is_taken(self) -> bool:
        if _holders.setdefault(self._path, self) is not self:
            return False
        if self._file is None:
            self._file = self._jvm.java.io.RandomAccessFile(self._path, "rw")
        return self._file.getChannel().tryLock() is not None

    def _locked(self, path: Path) -> QueueLockedError:
        if _holders[self._path]._is_kept:
            return QueueLockedError(
                f"a batch of an earlier drain of {path.parent} was interrupted, and Spark may still write it: end this "
                "process, and drain in a new one",
                path=str(path),
            )
        if self._file is None:
            return QueueLockedError(f"another drain of {path.parent} runs in this process: let it end", path=str(path))
        return driver_wait.driver_runs(path)

    def keep(self) -> None:
        """Let no one in before the process ends."""
        self._is_kept = True

    def release(self) -> None:
        """Let the next one in."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if _holders.get(self._path) is self:
            del _holders[self._path]
