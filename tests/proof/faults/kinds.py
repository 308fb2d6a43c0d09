"""The six faults, and at which calls each of them can strike.

A read that fails gives its caller an error, whichever: EIO stands for all of them there. A call that changes nothing
cannot run out of room, nor be refused by a disk that is read-only; and only what opens something needs a handle.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass

from support.faults import FAILING_VERBS, FaultPlan

READING = frozenset({"read_at", "size", "link_count", "list", "directory_status", "owner", "try_lock"})
CHANGING = FAILING_VERBS - READING
OPENING = frozenset({"open", "list", "sync_directory"})
WRITING = frozenset({"write_at"})
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""What has to be told as a full disk; written out here, so that the source cannot forget one."""


@dataclass(frozen=True)
class Fault:
    """One way to fail: an errno, or a write that takes half of its bytes; and the verbs that can fail so."""

    name: str
    error: int
    verbs: frozenset[str]
    is_forever: bool = False

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
    )
    for is_forever in (False, True)
)
