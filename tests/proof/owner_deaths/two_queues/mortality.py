"""Processes that die: each change of the disk, each request and each answer of any of them may be its last one.

All run in one thread, on one disk. What a dead process would still do behind its death, as its stack unwinds, has no
effect: each further call of it raises, too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from holdfast.clock import Clock
from holdfast.persistence.filesystem import locks
from holdfast.persistence.filesystem.storage import Storage
from holdfast.queue.client.link import LinkLostError
from support.owners.machine_link import Machine
from support.owners.served import Served
from support.storages.simulated_storage import SimulatedStorage

Found = TypeVar("Found")

OF_CLIENTS = ("prepared", ".joint")
"""Directories of files that clients lock."""

READS = frozenset(
    {
        "close",
        "directory_status",
        "file_system",
        "identity",
        "link_count",
        "list",
        "open",
        "read_at",
        "size",
        "try_lock",
    }
)
"""Calls that leave the disk as it is, or make an empty file: a death at one leaves the same as at the next change."""


class DeathError(BaseException):
    """The process that works now is killed."""


class Mortality:
    """Counts what processes do, and kills some of them.

    Parameters
    ----------
    storage : SimulatedStorage
        What all of them use.
    kills : collection of int
        Before which events the process dies that is about to do them; they are counted from 1.

    Attributes
    ----------
    count : int
        Events so far.
    is_on : bool
        Whether they are counted.
    """

    def __init__(self, storage: SimulatedStorage, kills: Collection[int] = ()) -> None:
        self.count = 0
        self.is_on = False
        self._kills = kills
        self._working: object | None = None
        self._dead: list[object] = []
        storage.before_verb = lambda verb, path: self.event(counts=verb not in READS)

    def event(self, *, counts: bool = True) -> None:
        """Note that a process does something; raises DeathError if it dies before that, or has died.

        If it ``counts``, it may be the one to die at.
        """
        working = self._working
        if working is None or not self.is_on:
            return
        if self.has_died(working):
            raise DeathError
        self.count += counts
        if counts and self.count in self._kills:
            self._dead.append(working)
            raise DeathError

    def has_died(self, process: object) -> bool:
        """Whether a process was killed."""
        return any(process is each for each in self._dead)

    @contextmanager
    def working(self, process: object | None) -> Iterator[None]:
        """Have a process do what is done inside; None: no process, and nothing is counted."""
        before, self._working = self._working, process
        try:
            yield
        finally:
            self._working = before


class MortalMachine(Machine):
    """An owner that may die; another one succeeds at once, which may die as well.

    Parameters
    ----------
    mortality : Mortality
        Kills it.
    storage, clock, path, numbers
        As of :class:`Machine`.

    Attributes
    ----------
    death_count : int
        How many owners have died.
    """

    def __init__(
        self, mortality: Mortality, storage: Storage, clock: Clock, path: Path, numbers: Iterator[int]
    ) -> None:
        self._mortality = mortality
        self._process = object()
        self.death_count = 0
        with mortality.working(self._process):
            super().__init__(storage, clock, path, numbers)

    def work(self, do: Callable[[], Found]) -> Found:
        """Have the owner do something for a client; either may die before the request, and before its answer."""
        mortality, process = self._mortality, self._process
        mortality.event()
        try:
            with mortality.working(process):
                found = do()
                mortality.event()
        except DeathError:
            self._be_succeeded()
            raise LinkLostError("the owner was killed", was_sent=True) from None
        mortality.event()
        return found

    def notice_deaths(self) -> None:
        """Have the owner look which sessions live."""
        with self.lock, suppress(LinkLostError), self._mortality.working(None):
            self.work(self.served.sweep)

    def _be_succeeded(self) -> None:
        before = self.served
        self.death_count += 1
        with self._mortality.working(self._process), suppress(DeathError):
            before.close()
        while True:
            release_locks(
                before.disk, lambda path: path.is_relative_to(self.path) and path.parent.name not in OF_CLIENTS
            )
            self._process = object()
            try:
                with self._mortality.working(self._process):
                    self.served = Served(before.storage, before.clock, before.sessions, self.path)
            except DeathError:
                self.death_count += 1
            else:
                return

    def _is_its_own(self, path: Path) -> bool:
        return path.is_relative_to(self.path) and path.parent.name not in OF_CLIENTS


def release_locks(storage: SimulatedStorage, is_of_dead: Callable[[Path], bool]) -> None:
    """Release the locks of files that a dead process had open; this one, which lives, forgets them."""
    with storage._mutex:
        held = {id(file): file for holders in storage._locks.values() for file in holders if is_of_dead(file._path)}
    storage.before_verb, before = None, storage.before_verb
    for file in held.values():
        file.close()
    for lock in list(locks._open_locks):
        if id(lock.file) in held:
            lock.forget()
    storage.before_verb = before
