"""Threads that commit at the same time share one sync.

The first to ask leads: it notes the end, syncs, and wakes those whose commit lies at or below what it noted. Of those
left over it wakes one to lead next, before the others, so that the disk is not kept waiting. Alone, a thread waits for
nobody and hands its work to nobody. Everybody waits at a lock of their own: to wake a thread costs no queue at a door.

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


class _Waiter:
    """A thread that waits for somebody else's sync, or for its turn to lead."""

    __slots__ = ("bell", "leads", "ticket")

    def __init__(self, ticket: int) -> None:
        self.ticket = ticket
        self.leads = False
        self.bell = threading.Lock()
        self.bell.acquire()


class GroupCommit:
    """Makes tickets durable.

    Parameters
    ----------
    sync : callable
        Syncs what was appended before the call; returns the ticket that this covers.
    """

    def __init__(self, sync: Callable[[], int]) -> None:
        self._sync = sync
        self._lock = threading.Lock()
        self._waiters: list[_Waiter] = []
        self._has_leader = False
        self._shared = 0
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
        waiter = _Waiter(ticket)
        try:
            while self._durable < ticket and self._failure is None:
                if self._enter(waiter):
                    self._lead(waiter)
                else:
                    waiter.bell.acquire()
        finally:
            self._leave(waiter)
        if self._durable < ticket:
            raise CommitUnknownError(
                f"the sync that this commit shared failed ({self._failure}); nobody knows what is on the disk: "
                "reopen the queue and look"
            ) from self._failure

    def _enter(self, waiter: _Waiter) -> bool:
        """Line up; return whether it is this thread's turn to lead."""
        with self._lock:
            if not self._has_leader:
                self._has_leader = waiter.leads = True
            elif not waiter.leads and waiter not in self._waiters:
                self._waiters.append(waiter)
            return waiter.leads

    def _lead(self, waiter: _Waiter) -> None:
        """Sync for everybody; a failure is left for all to find."""
        if self._shared:
            self._gather()
        shared, started = len(self._waiters), time.perf_counter()
        try:
            self._durable = max(self._durable, self._sync())
            self._shared, self._sync_seconds = shared, time.perf_counter() - started
        except HoldfastError as error:
            self._failure = self._failure or error

    def _gather(self) -> None:
        """Give the threads that shared the last sync a moment to commit again."""
        deadline = time.perf_counter() + self._sync_seconds * _GATHER_SHARE
        while len(self._waiters) < self._shared and time.perf_counter() < deadline:
            time.sleep(0)

    def _leave(self, waiter: _Waiter) -> None:
        """Stop waiting; a leader wakes the next one and those who are done, however it came here."""
        with self._lock:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            if not waiter.leads:
                return
            waiter.leads = False
            left = [other for other in self._waiters if other.ticket > self._durable]
            done = [other for other in self._waiters if other.ticket <= self._durable]
            self._waiters = left
            self._has_leader = bool(left)
            if left:
                left[0].leads = True
                done.insert(0, left.pop(0))
        for other in done:
            other.bell.release()
