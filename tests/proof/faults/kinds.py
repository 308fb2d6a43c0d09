"""The faults of a storage, and at which calls each of them can strike; and threads that cannot be started.

A read that fails gives its caller an error, whichever: EIO stands for all of them there. A call that changes nothing
cannot run out of room, nor be refused by a disk that is read-only; and only what opens something needs a handle.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from support.processes.thread_starts import StartFaults, starting
from support.storages.faults import FAILING_VERBS, FaultPlan
from support.storages.simulated_storage import SimulatedStorage

READING = frozenset(
    {"read_at", "size", "link_count", "list", "directory_status", "file_system", "identity", "try_lock"}
)
CHANGING = FAILING_VERBS - READING
OPENING = frozenset({"open", "list", "sync_directory"})
WRITING = frozenset({"write_at"})
STARTING = frozenset({"start"})
"""Of a thread. No call may fail for want of one."""

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""What has to be told as a full disk; written out here, so that the source cannot forget one."""


@dataclass(frozen=True)
class Fault:
    """One way to fail: an errno, a write that takes half of its bytes, a start; and the verbs that can fail so."""

    name: str
    error: int
    verbs: frozenset[str]
    is_forever: bool = False

    @property
    def is_of_storage(self) -> bool:
        """Whether a call may fail because of it."""
        return self.verbs is not STARTING

    @contextmanager
    def striking(self, storage: SimulatedStorage, call: int) -> Iterator[Callable[[], int]]:
        """Have it strike inside, at the given call of its verbs; yield what says how often it did."""
        if not self.is_of_storage:
            with starting(StartFaults(call, self.is_forever)) as starts:
                yield lambda: len(starts.failed)
            return
        plan = storage.faults = self.plan(call)
        try:
            yield lambda: plan.fired_count
        finally:
            storage.faults = None

    def plan(self, call: int) -> FaultPlan:
        """Return a plan that strikes at the given call of these verbs, counted from 1."""
        short = self.verbs is WRITING
        return FaultPlan(call, self.error, forever=self.is_forever, short_write=short, verbs=self.verbs)

    def __str__(self) -> str:
        return f"{self.name} {'for ever' if self.is_forever else 'once'}"


FAULTS = tuple(
    Fault(name, error, verbs, is_forever)
    for name, error, verbs in (
        ("EIO", errno.EIO, FAILING_VERBS),
        ("ENOSPC", errno.ENOSPC, CHANGING),
        ("EDQUOT", errno.EDQUOT, CHANGING),
        ("EROFS", errno.EROFS, CHANGING),
        ("EMFILE", errno.EMFILE, OPENING),
        ("short write", errno.ENOSPC, WRITING),
        ("no thread", errno.EAGAIN, STARTING),
    )
    for is_forever in (False, True)
)
