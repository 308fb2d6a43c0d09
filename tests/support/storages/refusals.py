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
    after: int = 0,
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
    after : int
        How many succeed before that.

    A block in which it never failed has tested nothing, and fails.
    """
    failed: list[Path] = []
    passed: list[Path] = []
    before = storage.before_verb

    def fail(called: str, path: Path) -> None:
        if before is not None:
            before(called, path)
        if called != verb or not str(path).endswith(name):
            return
        if len(passed) < after:
            passed.append(path)
        elif count is None or len(failed) < count:
            failed.append(path)
            raise OSError(error, os.strerror(error), str(path)) if isinstance(error, int) else error

    storage.before_verb = fail
    try:
        yield failed
    finally:
        storage.before_verb = before
    assert failed, f"no {verb} on {name!r}"


@contextmanager
def full_till_space_is_given_back(storage: SimulatedStorage) -> Iterator[list[Path]]:
    """Let the disk have no space for data files until a segment is cut; yield the segments that were.

    Each cut makes space for one data file. A block in which none was cut has tested nothing, and fails.
    """
    cut: list[Path] = []
    made: list[Path] = []

    def refuse(verb: str, path: Path) -> None:
        if verb == "truncate" and path.suffix == ".log":
            cut.append(path)
        if verb == "allocate" and path.name == "next.data":
            if len(made) == len(cut):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            made.append(path)

    storage.before_verb = refuse
    try:
        yield cut
    finally:
        storage.before_verb = None
    assert cut, "nothing was given back"
