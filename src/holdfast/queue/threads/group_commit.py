"""Threads that commit at the same time share one sync.

The first to ask leads: it notes the end and syncs. Threads with a commit at or below the noted ticket are done; one of
those left over leads next. The next leader is woken first, and wakes the threads that are done when it begins its own
sync. So they commit again while the disk works, and the disk never waits. Each thread waits at its own lock, so that no
crowd waits at one. A thread alone neither waits nor hands its work over.

A failed sync gives all threads the same answer: the outcome is unknown. One that is interrupted poisons the writer, so
the next one fails. There is one leader at a time: a write error is reported once per open file, so the second of two
concurrent syncs on one handle could succeed over lost data (docs/adr, group commit).
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from holdfast.errors import CommitUnknownError, HoldfastError


class _Waiter:
    """A thread that waits for another thread's sync, or for its turn to lead."""

    __slots__ = ("leads", "owed", "ticket", "wake")

    def __init__(self, ticket: int) -> None:
        self.ticket = ticket
        self.leads = False
        self.owed: list[_Waiter] = []
        self.wake = threading.Lock()
        self.wake.acquire()


class GroupCommit:
    """Makes tickets durable.

    Parameters
    ----------
    sync : callable
        Syncs everything appended before the call; returns the ticket that this covers.
    """

    def __init__(self, sync: Callable[[], int]) -> None:
        self._sync = sync
        self._lock = threading.Lock()
        self._waiters: list[_Waiter] = []
        self._has_leader = False
        self._durable = 0
        self._failure: HoldfastError | None = None

    def wait(self, ticket: int) -> None:
        """Return once everything up to ``ticket`` is on the disk.

        Raises
        ------
        CommitUnknownError
            The sync that should have covered it failed: reopen the queue and check.
        """
        waiter = _Waiter(ticket)
        try:
            while self._durable < ticket and self._failure is None:
                if self._enter(waiter):
                    self._lead(waiter)
                else:
                    waiter.wake.acquire()
        finally:
            interruption: BaseException | None = None
            has_left = False
            while not has_left:  # a leader that left without handing over would stop all others for ever
                try:
                    self._leave(waiter)
                    _wake(waiter)
                    has_left = True
                except BaseException as error:  # of a signal's handler, which may raise anything, or memory is short
                    interruption = error
            if interruption is not None:
                raise interruption
        if self._durable < ticket:
            raise CommitUnknownError(
                f"the sync that this commit shared failed, so its outcome is unknown: {self._failure}"
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
        """Wake the threads that are done since the last sync, and sync for all; a failure is left for all to find."""
        _wake(waiter)
        try:
            self._durable = max(self._durable, self._sync())
        except HoldfastError as error:
            self._failure = self._failure or error

    def _leave(self, waiter: _Waiter) -> None:
        """Stop waiting; a leader hands over to the next one and to those who are done, on every path.

        This calls no function of ours, nor does :func:`_wake`: a stack that was not too deep for lining up is not for
        these. All is worked out first, and nothing interrupts the assignments behind it.
        """
        with self._lock:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            if not waiter.leads:
                return
            owed = list(waiter.owed)
            first: list[_Waiter] = []
            rest: list[_Waiter] = []
            for other in self._waiters:  # a comprehension would be a function
                if other.ticket <= self._durable:
                    owed.append(other)
                else:
                    (rest if first else first).append(other)
            if first:
                following = first[0]
                following.leads, following.owed = True, owed
                waiter.owed = first
            else:
                waiter.owed = owed
                self._has_leader = False
            self._waiters = rest
            waiter.leads = False


def _wake(waiter: _Waiter) -> None:
    """Wake those whom ``waiter`` owes it; one may be woken twice if this was interrupted, and looks again."""
    while waiter.owed:
        if waiter.owed[-1].wake.locked():
            waiter.owed[-1].wake.release()
        waiter.owed.pop()
