"""A verb of a simulated storage that fails on chosen paths, for as long as a block runs."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.storages.simulated_storage import SimulatedStorage


@contextmanager
def refusing(
    storage: SimulatedStorage,
    verb: str,
    name: str = "",
    error: int | BaseException = errno.EIO,
    *,
    count: int | None = None,
) -> Iterator[list[Path]]:
    """Let ``verb`` fail on every path that ends in ``name``; yield the paths it failed on.

    Parameters
    ----------
    storage
        Its ``before_verb`` comes first, and is given back.
    verb : str
        As :class:`SimulatedStorage` calls it.
    name : str
        How paths end; all do in nothing.
    error : int or BaseException
        An errno, or what is raised.
    count : int or None
        How many calls fail; None: all.

    A block in which it never failed has tested nothing, and fails.
    """
    failed: list[Path] = []
    before = storage.before_verb

    def fail(called: str, path: Path) -> None:
        if before is not None:
            before(called, path)
        if called == verb and str(path).endswith(name) and (count is None or len(failed) < count):
            failed.append(path)
            raise OSError(error, os.strerror(error), str(path)) if isinstance(error, int) else error

    storage.before_verb = fail
    try:
        yield failed
    finally:
        storage.before_verb = before
    assert failed, f"no {verb} on {name!r}"
