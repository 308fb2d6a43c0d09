"""The state behind a simulated storage: files, names, and what of both a power loss could take.

Names are a flat table from (directory, name) to inode, once as a process sees it and once as the disk surely has it,
with the changes between the two in order. A change is settled by a sync of its *home* directory: the one that holds
the name, for a rename the one that holds the target. The model follows POSIX, not one file system: ext4 would often
keep more than is kept here, none keeps less.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from functools import lru_cache
from hashlib import blake2b
from operator import itemgetter
from pathlib import Path
from typing import Any

from support.models.crash_choices import CrashChoice
from support.storages.disk_operations import (
    Allocate,
    Create,
    FailedSync,
    FailedSyncDirectory,
    MakeDirectory,
    NameOperation,
    Operation,
    Remove,
    RemoveDirectory,
    Rename,
    Sync,
    SyncDirectory,
    Truncate,
    Write,
)
from support.storages.simulated_file_image import Fate, FileImage

ROOT = 0  # the inode of "/", which is always there
_ROOT_PATHS = {"/": ROOT, "": ROOT}  # the latter is what stands before the first slash of a path
Key = tuple[int, str]  # the inode of a directory and a name in it


class Names:
    """A table of names in which every inode has at most one."""

    __slots__ = ("entries", "homes")

    def __init__(self, entries: dict[Key, int], homes: dict[int, Key]) -> None:
        self.entries = entries
        self.homes = homes

    def copy(self) -> Names:
        """Return an independent table."""
        return Names(self.entries.copy(), self.homes.copy())

    def bind(self, key: Key, inode: int | None) -> None:
        """Give a name to an inode, which loses the one it had; None frees the name."""
        replaced = self.entries.pop(key, None)
        if replaced is not None:
            del self.homes[replaced]
        if inode is not None:
            moved_from = self.homes.pop(inode, None)
            if moved_from is not None:
                del self.entries[moved_from]
            self.entries[key] = inode
            self.homes[inode] = key

    def children(self, directory: int) -> list[str]:
        """Return the names in a directory, sorted."""
        return sorted(name for parent, name in self.entries if parent == directory)


class NameChange:
    """A change of directory entries that happens wholly or not at all."""

    __slots__ = ("bindings", "directory", "fate", "operation")

    def __init__(
        self, operation: NameOperation, directory: int, bindings: tuple[tuple[Key, int | None], ...], fate: Fate
    ) -> None:
        self.operation = operation
        self.directory = directory
        self.bindings = bindings
        self.fate = fate

    def copy(self) -> NameChange:
        """Return a twin whose fate can differ."""
        return NameChange(self.operation, self.directory, self.bindings, self.fate)

    def apply(self, names: Names) -> None:
        """Make the change in a table."""
        for key, inode in self.bindings:
            names.bind(key, inode)

    def touches(self) -> set[Key | int | None]:
        """Return the names and inodes whose order against other changes matters."""
        return {part for binding in self.bindings for part in binding if part is not None}


class Disk:
    """Files and names, changed by operations; every check is made before anything changes."""

    def __init__(self) -> None:
        self.names = Names({}, {})
        self.next_inode = ROOT + 1
        self._durable_names = Names({}, {})
        self._name_changes: list[NameChange] = []
        self._files: dict[int, FileImage] = {}
        self._own: set[int] = set()  # those files that no other disk shares; the others are copied when written to
        self._directories: set[int] = {ROOT}
        self._found: dict[str, int | None] = dict(_ROOT_PATHS)  # inodes by absolute path, until that name changes
        self._listed: dict[str, list[str]] = {}  # names by absolute path of a directory, until one of them changes
        self._paths: list[tuple[int, bytes]] | None = None  # of all inodes, until any name changes

    def apply(self, operation: Operation) -> None:
        """Do one operation or raise the ``OSError`` a kernel would."""
        _APPLY[type(operation)](self, operation)

    def image(self, inode: int) -> FileImage:
        """Return the contents of a file, named or not. For reading."""
        return self._files[inode]

    def _own_image(self, inode: int) -> FileImage:
        """Return the contents of a file that is about to change."""
        image = self._files[inode]
        if inode not in self._own:
            image = self._files[inode] = image.copy()
            self._own.add(inode)
        return image

    def find(self, path: Path) -> int | None:
        """Return the inode at a path, None where the last name is missing."""
        text = str(path)
        if text in self._found:
            return self._found[text]
        above, _, name = text.rpartition("/")
        parent = self._found.get(above)
        if parent is None or parent not in self._directories:
            return self._walk(path)
        inode = self._found[text] = self.names.entries.get((parent, name))
        return inode

    def _walk(self, path: Path) -> int | None:
        inode: int | None = ROOT
        passed = ""
        for name in path.parts[1:] if path.is_absolute() else path.parts:
            if inode is None:
                raise os_error(errno.ENOENT, path)
            if inode not in self._directories:
                raise os_error(errno.ENOTDIR, path)
            inode = self.names.entries.get((inode, name))
            passed = f"{passed}/{name}"
            self._found[passed] = inode
        return inode

    def find_existing(self, path: Path) -> int:
        """Return the inode at a path that has to be there."""
        inode = self.find(path)
        if inode is None:
            raise os_error(errno.ENOENT, path)
        return inode

    def find_directory(self, path: Path) -> int:
        """Return the inode of a directory that has to be there."""
        inode = self.find_existing(path)
        if inode not in self._directories:
            raise os_error(errno.ENOTDIR, path)
        return inode

    def list(self, path: Path) -> list[str]:
        """Return the names in a directory, sorted."""
        names = self._listed.get(str(path))
        if names is None:
            names = self.names.children(self.find_directory(path))
            if path.is_absolute():
                self._listed[str(path)] = names
        return names.copy()

    def is_directory(self, inode: int) -> bool:
        """Return whether an inode is a directory."""
        return inode in self._directories

    def tree(self) -> dict[Path, bytes | None]:
        """Return everything a process sees by absolute path; None stands for a directory."""
        found: dict[Path, bytes | None] = {}
        for inode in self.names.homes:
            parts: list[str] = []
            at = inode
            while at != ROOT:
                at, name = self.names.homes[at]
                parts.append(name)
            image = self._files.get(inode)
            found[Path("/", *reversed(parts))] = None if image is None else image.read(len(image), 0)
        return dict(sorted(found.items()))

    def digest(self) -> bytes:
        """Return 16 bytes that tell apart what processes see: names and contents, without what is unsynced of them."""
        if self._paths is None:
            known = {ROOT: b"/"}
            self._paths = [
                (inode, self._path(at, known) + name.encode()) for inode, (at, name) in self.names.homes.items()
            ]
            self._paths.sort(key=itemgetter(1))
        hashed = blake2b(digest_size=16)
        for inode, path in self._paths:
            image = self._files.get(inode)
            hashed.update(path + (b"/\n" if image is None else b" " + image.digest()))
        return hashed.digest()

    def _path(self, directory: int, paths: dict[int, bytes]) -> bytes:
        """Return the path of a directory with a slash behind it, and keep it in ``paths``."""
        if directory not in paths:
            parent, name = self.names.homes[directory]
            paths[directory] = b"%s%s/" % (self._path(parent, paths), name.encode())
        return paths[directory]

    def undecided_count(self) -> int:
        """Return how many pieces :meth:`after_power_loss` asks about if it keeps all names."""
        names = sum(change.fate is not Fate.SYNCED for change in self._name_changes)
        return names + sum(self._files[inode].undecided_count() for inode in self.names.homes if inode in self._files)

    def after_power_loss(self, choice: CrashChoice) -> Disk:
        """Return what the disk could hold; all of it is durable, since nobody has touched it yet."""
        after = Disk()
        after.next_inode = self.next_inode
        if self._name_changes:
            names = self._durable_names.copy()
            for change in self._name_changes:
                if change.fate is Fate.SYNCED or choice.keep_name(change.operation):
                    change.apply(names)
            homes = {inode: names.homes[inode] for inode in self._reachable(names)}
            after.names = Names({key: inode for inode, key in homes.items()}, homes)
        else:
            after.names = self.names.copy()
            self._share_what_was_found(after)
        after._durable_names = after.names.copy()
        after._directories.update(self._directories.intersection(after.names.homes))
        for inode in sorted(after.names.homes.keys() - after._directories):
            image = self._files[inode]
            if image.is_settled:
                self._own.discard(inode)
            else:
                image = image.after_power_loss(inode, choice)
                after._own.add(inode)
            after._files[inode] = image
        return after

    def copy(self) -> Disk:
        """Return a twin with the same undecided changes; files without any name are left out."""
        twin = Disk()
        twin.names = self.names.copy()
        twin.next_inode = self.next_inode
        twin._durable_names = self._durable_names.copy()
        twin._name_changes = [change.copy() for change in self._name_changes]
        alive = {ROOT, *self.names.homes, *self._durable_names.homes}
        alive.update(inode for change in self._name_changes for _, inode in change.bindings if inode is not None)
        twin._directories = self._directories & alive
        twin._files = {inode: image for inode, image in self._files.items() if inode in alive}
        self._own.clear()
        self._share_what_was_found(twin)
        return twin

    def _share_what_was_found(self, twin: Disk) -> None:
        """Spare another disk that has the same names to find them anew."""
        twin._found = self._found.copy()
        twin._listed = self._listed.copy()
        twin._paths = self._paths

    def _reachable(self, names: Names) -> set[int]:
        """Return the inodes under the root: a directory that lost its name takes along what was in it."""
        by_directory: dict[int, list[int]] = {}
        for (directory, _), inode in names.entries.items():
            by_directory.setdefault(directory, []).append(inode)
        found: set[int] = set()
        to_visit = [ROOT]
        while to_visit:
            for inode in by_directory.get(to_visit.pop(), ()):
                found.add(inode)
                to_visit.append(inode)
        return found

    def _key(self, path: Path) -> Key:
        if not path.name:
            raise os_error(errno.EBUSY, path)
        return self.find_directory(_parent(path)), path.name

    def _change_names(self, operation: NameOperation, home: Key, *bindings: tuple[Key, int | None]) -> None:
        self._forget(operation)
        self._paths = None
        change = NameChange(operation, home[0], bindings, Fate.UNSYNCED)
        change.apply(self.names)
        self._name_changes.append(change)

    def _forget(self, operation: NameOperation) -> None:
        """Find what this changes anew: two paths where it is about a file, and any where it is about a directory."""
        paths = (operation.source, operation.target) if isinstance(operation, Rename) else (operation.path,)
        is_directory = not isinstance(operation, Create) and self.find(paths[0]) in self._directories
        if isinstance(operation, MakeDirectory) or is_directory or not all(path.is_absolute() for path in paths):
            self._found = dict(_ROOT_PATHS)
            self._listed.clear()
        for path in paths:
            self._found.pop(str(path), None)
            self._listed.pop(str(_parent(path)), None)

    def _create(self, operation: Create) -> None:
        key = self._key(operation.path)
        self._files[operation.inode] = FileImage()
        self._own.add(operation.inode)
        self.next_inode = operation.inode + 1
        self._change_names(operation, key, (key, operation.inode))

    def _make_directory(self, operation: MakeDirectory) -> None:
        key = self._key(operation.path)
        self._directories.add(operation.inode)
        self.next_inode = operation.inode + 1
        self._change_names(operation, key, (key, operation.inode))

    def _rename(self, operation: Rename) -> None:
        source, target = self._key(operation.source), self._key(operation.target)
        moved = self.find_existing(operation.source)
        replaced = self.names.entries.get(target)
        if replaced is not None and self._is_inside(source[0], replaced):
            raise os_error(errno.ENOTEMPTY, operation.target)
        if moved in self._directories:
            if self._is_inside(target[0], moved):
                raise os_error(errno.EINVAL, operation.target)
            if replaced is not None and replaced not in self._directories:
                raise os_error(errno.ENOTDIR, operation.target)
            if replaced is not None and self.names.children(replaced):
                raise os_error(errno.ENOTEMPTY, operation.target)
        elif replaced in self._directories:
            raise os_error(errno.EISDIR, operation.target)
        self._change_names(operation, target, (source, None), (target, moved))

    def _is_inside(self, inode: int, directory: int) -> bool:
        while inode not in (directory, ROOT):
            inode = self.names.homes[inode][0]
        return inode == directory

    def _remove(self, operation: Remove) -> None:
        key = self._key(operation.path)
        if self.find_existing(operation.path) in self._directories:
            raise os_error(errno.EISDIR, operation.path)
        self._change_names(operation, key, (key, None))

    def _remove_directory(self, operation: RemoveDirectory) -> None:
        key = self._key(operation.path)
        if self.names.children(self.find_directory(operation.path)):
            raise os_error(errno.ENOTEMPTY, operation.path)
        self._change_names(operation, key, (key, None))

    def _sync_directory(self, operation: SyncDirectory) -> None:
        directory = self.find_directory(operation.path)
        waiting: list[NameChange] = []
        blocked: set[Key | int | None] = set()
        for change in self._name_changes:
            if change.directory == directory and change.fate is Fate.UNSYNCED:
                change.fate = Fate.SYNCED
            touched = change.touches()
            if change.fate is Fate.SYNCED and blocked.isdisjoint(touched):
                change.apply(self._durable_names)
            else:
                blocked |= touched
                waiting.append(change)
        self._name_changes = waiting

    def _fail_sync_directory(self, operation: FailedSyncDirectory) -> None:
        directory = self.find_directory(operation.path)
        for change in self._name_changes:
            if change.directory == directory and change.fate is Fate.UNSYNCED:
                change.fate = Fate.ABANDONED


_APPLY: dict[type, Callable[[Disk, Any], None]] = {
    Write: lambda disk, o: disk._own_image(o.inode).write(o.data, o.position),
    Truncate: lambda disk, o: disk._own_image(o.inode).resize(o.size),
    Allocate: lambda disk, o: disk._own_image(o.inode).resize(o.size),
    Sync: lambda disk, o: disk._own_image(o.inode).sync(o.later_count),
    FailedSync: lambda disk, o: disk._own_image(o.inode).fail_sync(),
    Create: Disk._create,
    MakeDirectory: Disk._make_directory,
    Rename: Disk._rename,
    Remove: Disk._remove,
    RemoveDirectory: Disk._remove_directory,
    SyncDirectory: Disk._sync_directory,
    FailedSyncDirectory: Disk._fail_sync_directory,
}


@lru_cache(maxsize=4096)
def _parent(path: Path) -> Path:
    """Return the directory that holds a name; the same few are asked for again and again."""
    return path.parent


def os_error(number: int, path: Path) -> OSError:
    """Return the error a kernel would raise, in the subclass that Python makes of it."""
    return OSError(number, os.strerror(number), str(path))
