"""Waits for the Spark of a drain that was killed: its JVM outlives the driver's Python, for a moment or for longer.

That JVM still writes, and when it notices, it clears away what it began: the directory ``_temporary`` of its output,
which is that of the next drain too, whose rows then are missing without a word. So the JVM of a drain holds a lock of
its own. Nothing is written into the locked file.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import QueueLockedError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SECONDS = 60.0
"""By far longer than a JVM takes to end that has lost its driver."""

_POLL_SECONDS = 0.01


class DriverLock:
    """The lock of a drain's JVM on the file that describes its group; a Spark without a JVM of its own has none."""

    def __init__(self, spark: SparkSession) -> None:
        self._jvm: Any = getattr(spark, "_jvm", None)
        self._file: Any = None

    def take(self, path: Path) -> None:
        """Take it, unless it is held already; wait for the JVM that has it.

        Raises
        ------
        QueueLockedError
            That JVM does not end.
        """
        if self._jvm is None or self._file is not None:
            return
        file = self._jvm.java.io.RandomAccessFile(str(path), "rw")
        end = time.monotonic() + _SECONDS
        while file.getChannel().tryLock() is None:
            if time.monotonic() > end:
                file.close()
                raise QueueLockedError(
                    f"the Spark of a drain of {path.parent} still runs, though its driver was killed: end that JVM",
                    path=str(path),
                )
            time.sleep(_POLL_SECONDS)
        self._file = file

    def release(self) -> None:
        """Let the next one in."""
        file, self._file = self._file, None
        if file is not None:
            file.close()
