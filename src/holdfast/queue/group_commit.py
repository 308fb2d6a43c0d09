"""Threads that commit at the same time share one sync.

The first to ask leads: it notes the end, syncs, and releases those whose commit lies at or below what it noted. The
others wait, and one of those left over leads next. A leader that shared the last sync gives the others a moment to
arrive again, a fraction of what a sync takes; alone, a thread waits for nobody and hands its work to nobody.

A sync that fails answers everybody the same: nobody knows. One that is interrupted poisons the writer, so the next one
fails. There is one leader at a time: a write error is reported once per open file, so of two syncs at once on one
handle the second could succeed over lost data (docs/adr, group commit).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from holdfast.errors import CommitUnknownError, HoldfastError

_GATHER_SHARE = 0.25
"""How long a leader waits for those who shared the last sync, as a share of what that sync took."""


class GroupCommit:
    """Makes tickets durable.

    Parameters
    ----------
    sync : callable
        Syncs what was appended before the call; returns the ticket that this covers.
    """

    def __init__(self, sync: Callable[[], int]) -> None:
        self._sync = sync
        self._condition = threading.Condition(threading.Lock())
        self._leader: int | None = None
        self._waiting = 0
        self._shared = 1
        self._sync_seconds = 0.0
        self._durable = 0
        self._failure: HoldfastError | None = None

    def wait(self, ticket: int) -> None:
        """Return once everything up to ``ticket`` is on the disk.

        Raises
        ------
        CommitUnknownError
            The sync that should have covered it failed: reopen the queue and look.
        """
        if self._durable >= ticket:
            return
        with self._condition:
            self._waiting += 1
        try:
            while self._is_pending(ticket):
                self._lead()
        finally:
            with self._condition:
                self._waiting -= 1
                self._resign()

    def _is_pending(self, ticket: int) -> bool:
        """Wait until ``ticket`` is durable (False) or it is this thread's turn to lead (True)."""
        with self._condition:
            while self._durable < ticket:
                if self._failure is not None:
                    raise CommitUnknownError(
                        f"the sync that this commit shared failed ({self._failure}); nobody knows what is on the disk: "
                        "reopen the queue and look"
                    ) from self._failure
                if self._leader is None:
                    self._leader = threading.get_ident()
                    return True
                self._condition.wait()
            return False

    def _lead(self) -> None:
        """Sync for everybody. A failure is left for all to find; an interruption hits one, and the next one leads."""
        failure: HoldfastError | None = None
        covered = 0
        try:
            if self._shared > 1:
                self._gather()
            shared, started = self._waiting, time.perf_counter()
            covered = self._sync()
            self._shared, self._sync_seconds = shared, time.perf_counter() - started
        except HoldfastError as error:
            failure = error
        finally:
            with self._condition:
                self._durable = max(self._durable, covered)
                self._failure = self._failure or failure
                self._resign()

    def _resign(self) -> None:
        """Let somebody else lead, if this thread does; also where it was interrupted before it had begun."""
        if self._leader == threading.get_ident():
            self._leader = None
            self._condition.notify_all()

    def _gather(self) -> None:
        """Give the threads that shared the last sync a moment to commit again."""
        deadline = time.perf_counter() + self._sync_seconds * _GATHER_SHARE
        while self._waiting < self._shared and time.perf_counter() < deadline:
            time.sleep(0)
