"""How often a programme called the C extension: its own process, and those that it began and that ended by themselves.

Each process appends its number to one file as it ends. A process that is killed cannot: its calls are missing.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from itertools import count
from multiprocessing import util
from pathlib import Path

from holdfast.compiled import call_count

_VARIABLE = "HOLDFAST_TEST_CALLS"
"""Where the file is; processes inherit it."""


class _Process:
    """What this process has called; a forked one begins anew."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Count from here on, and tell at the end."""
        self.restart()
        util.Finalize(None, self.tell, exitpriority=1)

    def restart(self) -> None:
        """Count from here on."""
        self._before = call_count()

    def count(self) -> int:
        """Return how many calls were counted."""
        return call_count() - self._before

    def tell(self) -> None:
        """Append the number of calls to the file, if there is one."""
        path = os.environ.get(_VARIABLE)
        if path and Path(path).exists():
            with Path(path).open("a") as file:
                file.write(f"{self.count()}\n")


_process = _Process()
util.register_after_fork(_process, _Process.begin)


def telling(do: Callable[[bytes], None], every: int = 1000) -> Callable[[bytes], None]:
    """Return what does the same, and tells the calls after so many times: for a process that is ended from outside."""
    turns = count(1)

    def told(given: bytes) -> None:
        do(given)
        if next(turns) % every == 0:
            _process.tell()
            _process.restart()

    return told


def begin() -> Path:
    """Begin to count, and return the file; :func:`total` removes it."""
    descriptor, name = tempfile.mkstemp(prefix="holdfast-calls-")
    os.close(descriptor)
    os.environ[_VARIABLE] = name
    _process.restart()
    return Path(name)


def total(path: Path) -> int:
    """Return how many calls were told, and those of this process since it began to count."""
    told = [int(line) for line in path.read_text().splitlines()]
    path.unlink()
    return sum(told) + _process.count()
