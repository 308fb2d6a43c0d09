"""Storages whose locks keep nobody out, as on some network file systems: everything else is as it is."""

from __future__ import annotations

from pathlib import Path

from holdfast.persistence.filesystem.storage import OsFile, OsStorage
from support.storages.simulated_storage import SimulatedFile, SimulatedStorage


class UnlockedFile(SimulatedFile):
    """A file whose lock everybody gets."""

    __slots__ = ()

    def try_lock(self, *, shared: bool = False) -> bool:
        return True


class UnlockedStorage(SimulatedStorage):
    """A storage in memory, without locks that hold."""

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> UnlockedFile:
        file = super().open(path, create=create, writable=writable)
        return UnlockedFile(self, file.inode, path, writable)


class UnlockedOsFile(OsFile):
    """A file of the operating system whose lock everybody gets."""

    __slots__ = ()

    def try_lock(self, *, shared: bool = False) -> bool:
        return True


class UnlockedOsStorage(OsStorage):
    """The storage of the operating system, without locks that hold."""

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> UnlockedOsFile:
        file = super().open(path, create=create, writable=writable)
        unlocked, file._fd = UnlockedOsFile(file._fd), -1
        return unlocked
