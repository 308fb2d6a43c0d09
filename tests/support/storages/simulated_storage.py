"""A storage in memory that knows what a power loss could take: the stand-in for ``OsStorage`` in crash tests.

It behaves as the real one towards a running process (one contract suite runs on both), records every change, and can
be crashed at any point: each crash returns a new storage, and the old one stays unharmed. A *kill* keeps the page
cache with all its unsynced changes; a *power loss* leaves what the crash choice lets through, all of it durable.

What is not modelled: permissions, links, several names of one file, and running out of space other than by a fault.
"""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self

from holdfast.persistence.filesystem.storage import DIRECTORY_MODE, DirectoryStatus, FileIdentity
from support.models.crash_choices import CrashChoice, Odometer, RandomChoice, SameForAll
from support.storages.disk_operations import (
    Allocate,
    Create,
    FailedSync,
    FailedSyncDirectory,
    MakeDirectory,
    Operation,
    Remove,
    RemoveDirectory,
    Rename,
    Sync,
    SyncDirectory,
    Truncate,
    Write,
)
from support.storages.faults import FaultPlan
from support.storages.simulated_disk import Disk, os_error

WRITE_BUFFERS_MAX = 1024  # IOV_MAX of Linux and macOS: pwritev refuses more

BeforeVerb = Callable[[str, Path], None]


class PrefixCrash(NamedTuple):
    """What is left when a run stops after its first operations."""

    operation_count: int
    kept: bool
    storage: SimulatedStorage


class SimulatedFile:
    """An open file of a simulated storage; it sees its file even after the name is gone."""

    __slots__ = ("_closed", "_inode", "_path", "_storage", "_writable")

    def __init__(self, storage: SimulatedStorage, inode: int, path: Path, writable: bool) -> None:
        self._storage = storage
        self._inode = inode
        self._path = path
        self._writable = writable
        self._closed = False

    @property
    def inode(self) -> int:
        """The number under which the log speaks of this file."""
        return self._inode

    def write_at(self, buffers: Sequence[bytes], position: int) -> int:
        short = self._enter("write_at")
        if not self._writable:
            raise os_error(errno.EBADF, self._path)
        if position < 0 or len(buffers) > WRITE_BUFFERS_MAX:
            raise os_error(errno.EINVAL, self._path)
        data = b"".join(buffers)
        if short:
            data = data[: len(data) // 2]
        if data:
            self._storage._record(Write(self._inode, position, data))
        return len(data)

    def read_at(self, size: int, position: int) -> bytes:
        self._enter("read_at")
        if size < 0 or position < 0:
            raise os_error(errno.EINVAL, self._path)
        with self._storage._mutex:
            return self._storage._disk.image(self._inode).read(size, position)

    def truncate(self, size: int) -> None:
        self._enter("truncate")
        if size < 0 or not self._writable:
            raise os_error(errno.EINVAL, self._path)
        storage = self._storage
        with storage._mutex:
            if size != len(storage._disk.image(self._inode)):
                storage._record(Truncate(self._inode, size))

    def allocate(self, size: int) -> None:
        self._enter("allocate")
        storage = self._storage
        with storage._mutex:
            if size <= len(storage._disk.image(self._inode)):
                return
            if not self._writable:
                raise os_error(errno.EBADF, self._path)
            storage._record(Allocate(self._inode, size))

    def sync(self) -> None:
        begun_at = self._change_count()
        try:
            self._enter("sync")  # may take a while: what is written meanwhile it does not cover
        except OSError:
            if not self._closed:
                self._storage._record(FailedSync(self._inode))
            raise
        with self._storage._mutex:
            self._storage._record(Sync(self._inode, self._change_count() - begun_at))

    def _change_count(self) -> int:
        with self._storage._mutex:
            return self._storage._disk.image(self._inode).change_count

    def size(self) -> int:
        self._enter("size")
        with self._storage._mutex:
            return len(self._storage._disk.image(self._inode))

    def link_count(self) -> int:
        self._enter("link_count")
        with self._storage._mutex:
            return int(self._inode in self._storage._disk.names.homes)

    def identity(self) -> FileIdentity:
        self._enter("identity")
        return FileIdentity(0, self._inode)

    def try_lock(self, *, shared: bool = False) -> bool:
        self._enter("try_lock")
        with self._storage._mutex:
            locks = self._storage._locks.setdefault(self._inode, {})
            others = [is_shared for holder, is_shared in locks.items() if holder is not self]
            if others and not (shared and all(others)):
                return False
            locks[self] = shared
            return True

    def close(self) -> None:
        if self._closed:
            return
        try:
            self._enter("close")
        finally:
            with self._storage._mutex:
                self._closed = True
                locks = self._storage._locks.get(self._inode, {})
                locks.pop(self, None)
                if not locks:
                    self._storage._locks.pop(self._inode, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _enter(self, verb: str) -> bool:
        if self._closed:
            raise os_error(errno.EBADF, self._path)
        return self._storage._enter(verb, self._path)


class SimulatedStorage:
    """A file system in memory; "/" is there, and relative paths start there.

    Attributes
    ----------
    log : list of Operation
        Every change in order, syncs too; calls that changed nothing are left out. For reading.
    verb_count : int
        Calls so far, all verbs of the storage and of its files, failed ones too; exact where one thread calls.
    before_verb : callable or None
        Called with the verb and the path (for a file: the one it was opened by) before anything else happens, with
        no lock held: it may raise, block, or crash the storage it stands in. A sync covers what was written before
        it was called, and nothing that another thread writes while this blocks.
    faults : FaultPlan or None
        The fault to inject; see there.
    keeps_log : bool
        Whether changes are written down; who replays nothing saves the time.
    replayed_from : int
        The number of operations with which :meth:`replay` begins.
    kind : str
        The kind of file system that it says it is.
    owner : int
        The user who owns everything: who runs the test, unless it sets somebody else.
    """

    def __init__(self, disk: Disk | None = None) -> None:
        self.log: list[Operation] = []
        self.keeps_log = True
        self.replayed_from = 0
        self.verb_count = 0
        self.before_verb: BeforeVerb | None = None
        self.faults: FaultPlan | None = None
        self.owner = os.geteuid()
        self.kind = "simulated"
        self._disk = Disk() if disk is None else disk
        self._start: Disk | None = None  # the disk as replaying begins; until the first change, it is the disk itself
        self._locks: dict[int, dict[SimulatedFile, bool]] = {}  # by inode, each with whether it is shared
        self._mutex = threading.RLock()

    @property
    def mutation_count(self) -> int:
        """How many calls changed something: a reader that claims to change nothing leaves this as it was."""
        return len(self.log)

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> SimulatedFile:
        self._enter("open", path)
        with self._mutex:
            inode = self._disk.find(path)
            if inode is None:
                if not create:
                    raise os_error(errno.ENOENT, path)
                inode = self._disk.next_inode
                self._record(Create(path, inode))
            elif self._disk.is_directory(inode):
                raise os_error(errno.EISDIR if writable or create else errno.EINVAL, path)
            return SimulatedFile(self, inode, path, writable)

    def directory_status(self, path: Path) -> DirectoryStatus:
        self._enter("directory_status", path)
        with self._mutex:
            self._disk.find_directory(path)
            return DirectoryStatus(self.owner, DIRECTORY_MODE)

    def file_system(self, path: Path) -> str:
        self._enter("file_system", path)
        with self._mutex:
            self._disk.find_existing(path)
            return self.kind

    def make_directory(self, path: Path) -> None:
        self._enter("make_directory", path)
        with self._mutex:
            inode = self._disk.find(path)
            if inode is None:
                self._record(MakeDirectory(path, self._disk.next_inode))
            elif not self._disk.is_directory(inode):
                raise os_error(errno.EEXIST, path)

    def list(self, path: Path) -> list[str]:
        self._enter("list", path)
        with self._mutex:
            return self._disk.list(path)

    def rename(self, source: Path, target: Path) -> None:
        self._enter("rename", source)
        with self._mutex:
            if source != target:
                self._record(Rename(source, target))
            else:
                self._disk.find_existing(source)

    def remove(self, path: Path) -> None:
        self._enter("remove", path)
        self._record(Remove(path))

    def remove_directory(self, path: Path) -> None:
        self._enter("remove_directory", path)
        self._record(RemoveDirectory(path))

    def sync_directory(self, path: Path) -> None:
        try:
            self._enter("sync_directory", path)
        except OSError:
            with suppress(OSError):  # there may be no such directory: then nothing was left undecided
                self._record(FailedSyncDirectory(path))
            raise
        self._record(SyncDirectory(path))

    def tree(self) -> dict[Path, bytes | None]:
        """Return all that is there by absolute path, None for a directory; comparing states costs no verb."""
        with self._mutex:
            return self._disk.tree()

    def digest(self) -> bytes:
        """Return 16 bytes that differ where :meth:`tree` does."""
        with self._mutex:
            return self._disk.digest()

    def is_locked(self, path: Path) -> bool:
        """Whether somebody holds the lock of a file; asking costs no verb."""
        with self._mutex:
            inode = self._disk.find(path)
            return inode is not None and bool(self._locks.get(inode))

    def undecided_count(self) -> int:
        """Return how many unsynced pieces there are, if all names are kept."""
        with self._mutex:
            return self._disk.undecided_count()

    def crash(self, choice: CrashChoice) -> SimulatedStorage:
        """Return what a power loss now could leave, each unsynced piece kept or dropped as ``choice`` says."""
        with self._mutex:
            return SimulatedStorage(self._disk.after_power_loss(choice))

    def crash_keeping_all(self) -> SimulatedStorage:
        """Return what a kill of the process leaves: everything, still unsynced; handles and locks are gone."""
        with self._mutex:
            return SimulatedStorage(self._disk.copy())

    def crash_dropping_unsynced(self) -> SimulatedStorage:
        """Return what a power loss leaves that takes all it can."""
        return self.crash(SameForAll(keep=False))

    def random_crash(self, rng: random.Random, *, keep: float = 0.5) -> SimulatedStorage:
        """Return what a power loss leaves when a coin decides on each piece; ``keep`` is its bias."""
        return self.crash(RandomChoice(rng, keep))

    def crash_states(self) -> Iterator[SimulatedStorage]:
        """Yield what every possible power loss now leaves: 2 to the number of unsynced pieces, so slice it."""
        odometer = Odometer()
        yield self.crash(odometer)
        while odometer.advance():
            yield self.crash(odometer)

    def replay_from_here(self) -> None:
        """Let :meth:`replay` begin with what is there now."""
        with self._mutex:
            self._start, self.replayed_from = self._disk.copy(), len(self.log)

    def replay(self) -> Iterator[SimulatedStorage]:
        """Yield one storage as it was after each operation of the log, to be crashed where it stands.

        The first one is as it was after ``replayed_from`` operations, which is none unless said otherwise. It is the
        same object each time, moved on by one operation: crash it, do not write to it.
        """
        with self._mutex:
            storage = SimulatedStorage((self._start or self._disk).copy())
            storage._start = self._start
            operations = tuple(self.log[self.replayed_from :])
        yield storage
        for operation in operations:
            storage._record(operation)
            yield storage

    def prefix_crashes(self) -> Iterator[PrefixCrash]:
        """Yield, for each length of the log from 0 to all, a kill and a power loss that takes all it can."""
        for operation_count, storage in enumerate(self.replay()):
            yield PrefixCrash(operation_count, True, storage.crash_keeping_all())
            yield PrefixCrash(operation_count, False, storage.crash_dropping_unsynced())

    def _enter(self, verb: str, path: Path) -> bool:
        """Count the call and let hook and fault have it; return whether a write has to be short."""
        self.verb_count += 1
        if self.before_verb is not None:
            self.before_verb(verb, path)
        if self.faults is None:
            return False
        with self._mutex:
            return self.faults.strike(verb, path)

    def _record(self, operation: Operation) -> None:
        with self._mutex:
            if self._start is None and self.keeps_log:
                self._start = self._disk.copy()
            self._disk.apply(operation)
            if self.keeps_log:
                self.log.append(operation)
