"""Faults that a simulated storage raises at a chosen verb: once or for ever, as an error or as a short write."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field
from pathlib import Path

FILE_VERBS = (
    "write_at",
    "read_at",
    "truncate",
    "allocate",
    "sync",
    "size",
    "link_count",
    "identity",
    "try_lock",
    "close",
)
STORAGE_VERBS = (
    "open",
    "directory_status",
    "file_system",
    "make_directory",
    "list",
    "rename",
    "remove",
    "remove_directory",
    "sync_directory",
)
FAILING_VERBS = frozenset(FILE_VERBS + STORAGE_VERBS) - {"close"}  # a local file system never fails a close


@dataclass
class FaultPlan:
    """Which call fails, and how. Put a fresh one into ``SimulatedStorage.faults``; it counts from there.

    A verb that fails does nothing, with one exception: a failed ``sync`` or ``sync_directory`` leaves what it should
    have written undecided for good, so that trying again is caught.

    Attributes
    ----------
    fail_at : int
        The call that fails, counted from 1 over the calls of ``verbs``.
    error : int or BaseException
        An errno, an ``OSError`` of one, or any exception to raise (``KeyboardInterrupt``).
    forever : bool
        Whether every later call of ``verbs`` fails too.
    short_write : bool
        The call takes the first half of the bytes and says so, without an error; with ``forever`` the later ones
        raise ``error``: a disk that fills up. ``verbs`` is then ``write_at`` alone unless given.
    verbs : frozenset of str or None
        The verbs that are counted and fail; None means all but ``close``.
    fired_count : int
        How often it struck: a test whose plan never did has tested nothing.
    """

    fail_at: int
    error: int | BaseException = errno.EIO
    forever: bool = False
    short_write: bool = False
    verbs: frozenset[str] | None = None
    call_count: int = field(default=0, init=False)
    fired_count: int = field(default=0, init=False)

    def strike(self, verb: str, path: Path) -> bool:
        """Raise if this call is to fail; return whether it is a write that has to be short."""
        default = frozenset({"write_at"}) if self.short_write else FAILING_VERBS
        if verb not in (default if self.verbs is None else self.verbs):
            return False
        self.call_count += 1
        if self.call_count < self.fail_at or (self.call_count > self.fail_at and not self.forever):
            return False
        first = self.fired_count == 0
        self.fired_count += 1
        if self.short_write and first and verb == "write_at":
            return True
        raise self._exception(path)

    def _exception(self, path: Path) -> BaseException:
        error = self.error
        if isinstance(error, OSError):
            number = error.errno if error.errno is not None else error.args[0] if error.args else errno.EIO
            return OSError(number, os.strerror(number), str(path))  # afresh: a raised one collects tracebacks
        return OSError(error, os.strerror(error), str(path)) if isinstance(error, int) else error
