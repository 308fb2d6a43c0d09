"""The dead letters of a queue, for tasks."""

from __future__ import annotations

import os

from holdfast.queue.inspect.dead_letters import DeadLetters, Letters, Offsets, Which
from holdfast.service.aio.async_threads import Threads


class AsyncDeadLetters:
    """The dead letters of an :class:`AsyncQueue`: the verbs of :class:`DeadLetters`, awaited."""

    def __init__(self, sync: DeadLetters, threads: Threads) -> None:
        self._sync = sync
        self._threads = threads

    async def list(self, *, reason: str | None = None, limit: int | None = None) -> Letters:
        """Return dead letters in offset order; as :meth:`DeadLetters.list`."""
        return await self._threads.run(self._sync.list, reason=reason, limit=limit)

    async def offsets(self, *, reason: str | None = None) -> Offsets:
        """Return the offsets of dead letters, in order; as :meth:`DeadLetters.offsets`."""
        return await self._threads.run(self._sync.offsets, reason=reason)

    async def retry(self, which: Which | None = None, *, reason: str | None = None) -> int:
        """Hand dead letters out again; return how many of these there were; as :meth:`DeadLetters.retry`."""
        return await self._threads.run_patiently(self._sync.retry, which, reason=reason)

    async def discard(self, which: Which | None = None, *, reason: str | None = None) -> int:
        """Finish dead letters for good; return how many of these there were; as :meth:`DeadLetters.discard`."""
        return await self._threads.run_patiently(self._sync.discard, which, reason=reason)

    async def export(
        self, path: str | os.PathLike[str], which: Which | None = None, *, reason: str | None = None
    ) -> int:
        """Write dead letters into a new file; return how many; as :meth:`DeadLetters.export`."""
        return await self._threads.run(self._sync.export, path, which, reason=reason)
