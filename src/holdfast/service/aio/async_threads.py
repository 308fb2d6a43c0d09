"""The threads that do the work of a service for asyncio, so that an event loop never waits for a disk.

Two places: one for calls that end by themselves soon, one for calls that may have to wait for others. So a hundred puts
that wait for space never delay an acknowledgement that frees it.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from holdfast.errors import NO_ROOM, ClosedError, Full
from holdfast.queue.threads.lifecycle import forked_error
from holdfast.service.aio.thread_pool import ThreadPool, outcome_of

Result = TypeVar("Result")

THREADS_MAX = 16
"""In each place. Puts at the same time share a sync, so a few threads make many of them."""

SLICE_SECONDS = 0.25
"""A wait that nobody wants any more ends after so long. What is waited for is not found later for it."""


class Threads:
    """Runs calls for coroutines.

    Parameters
    ----------
    name : str
        Name of the service or queue, for errors.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._pid = os.getpid()
        self._is_closed = False
        self._brief = ThreadPool("holdfast-asyncio", THREADS_MAX)
        self._patient = ThreadPool("holdfast-asyncio-waiting", THREADS_MAX)

    def submit(self, call: Callable[[], Result]) -> Future[Result]:
        """Begin a call that ends soon; return its result to come."""
        return self._submit(self._brief, call)

    async def run(self, call: Callable[..., Result], *args: Any, cancelled: str = "", **options: Any) -> Result:
        """Return the result of a call that ends soon.

        Parameters
        ----------
        call, args, options
            What to call.
        cancelled : str
            What to tell who cancels it: the call continues, even if it has not begun. Empty: nothing.
        """
        return await self._wait(self.submit(partial(call, *args, **options)), cancelled)

    async def run_patiently(
        self, call: Callable[..., Result], *args: Any, cancelled: str = "", **options: Any
    ) -> Result:
        """Return the result of a call that may have to wait for others; as :meth:`run`."""
        return await self._wait(self._submit(self._patient, partial(call, *args, **options)), cancelled)

    async def run_put(self, put: Callable[[float | None], Result], timeout: float | None, cancelled: str) -> Result:
        """Return what ``put(timeout)`` returns: at once if there is space, else in slices until there is.

        Cancelled before it began, it is not begun.
        """
        with suppress(Full):
            return await self._wait_for_put(self.submit(partial(put, 0.0)), cancelled)
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = SLICE_SECONDS if deadline is None else min(SLICE_SECONDS, deadline - time.monotonic())
            if left <= 0:
                raise Full(NO_ROOM)
            with suppress(Full):
                return await self._wait_for_put(self._submit(self._patient, partial(put, left)), cancelled)

    def start(self, call: Callable[[], object]) -> None:
        """Run a call in the background; not if the service is closed, whose closing does it all."""
        with suppress(ClosedError):
            self.check()
            self._brief.submit_or_make(call)

    def check(self) -> None:
        """Raise ClosedError or ForkedError if nothing can run any more."""
        if os.getpid() != self._pid:  # before any lock: these threads are not there
            raise forked_error()
        if self._is_closed:
            raise ClosedError(f"the service of {self._name} is closed; make a new one")

    @property
    def is_forked(self) -> bool:
        """Whether this is a copy in a forked child."""
        return os.getpid() != self._pid

    def close(self) -> None:
        """Take nothing new, and wait for running calls."""
        self._is_closed = True
        self._brief.close()
        self._patient.close()

    def _submit(self, pool: ThreadPool, call: Callable[[], Result]) -> Future[Result]:
        self.check()
        try:
            return pool.submit(call)
        except ClosedError:  # it was closed just now
            self.check()
            raise

    async def _wait(self, future: Future[Result], cancelled: str) -> Result:
        try:
            return await outcome_of(future)  # else queued calls would be dropped
        except asyncio.CancelledError as error:
            if cancelled:
                error.add_note(cancelled)
            raise

    async def _wait_for_put(self, future: Future[Result], cancelled: str) -> Result:
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError as error:
            error.add_note("cancelled before it began: nothing was written" if future.cancel() else cancelled)
            raise
