"""Consumer groups on the disk: lists, creates and deletes them, and reads where each one started.

A group exists once its ``group.json`` does. The default group gets one when it is first used, and pins nothing before.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from holdfast.clock import Clock
from holdfast.errors import CorruptionError, GroupNotFoundError
from holdfast.persistence.filesystem import locks
from holdfast.persistence.filesystem.document import (
    keep_damaged,
    read_document,
    replace_document,
    sync_document,
    undone,
    write_document,
)
from holdfast.persistence.filesystem.layout import (
    QueueDirectory,
    list_generations,
    open_if_there,
    position_file,
    settings_in,
)
from holdfast.persistence.filesystem.locks import Guard, Owned
from holdfast.persistence.filesystem.poison import Poison, undoing
from holdfast.persistence.filesystem.storage import MISSING, Storage
from holdfast.persistence.format.constants import FORMAT_VERSION, FRAMES_START, LARGE_DOCUMENT_BYTES_MAX
from holdfast.persistence.format.file_header import PositionFileHeader, block_copies, random_id
from holdfast.persistence.format.json_object import as_id, as_number
from holdfast.persistence.format.report import DAMAGED, Damage
from holdfast.persistence.groups.position_file_reader import PositionFileReader
from holdfast.persistence.groups.progress import GroupProgress
from holdfast.persistence.groups.reach import Reach
from holdfast.persistence.log.log_files import LogFiles
from holdfast.persistence.log.sealed_file import retired_ranges

DEFAULT_GROUP = "default"
_LOCK_SECONDS = 60.0

_DELETED = "group.json.removed"
"""What ``group.json`` of a group is called while the group is deleted."""

_RESTORED = "group.json.restored"
"""Empty; it is there from the time at which a deletion is taken back until the name of ``group.json`` is durable."""

_KEPT = frozenset({"read.lock"})
"""Never deleted: two owners could lock two files of one name."""

_KEPT_OF_DEFAULT = _KEPT | {"pause.json", "drain.lock", "drain.jvm"}
"""The default group may be paused before it begins, and a drain holds its lock then."""


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """The contents of ``group.json``: the name, the id of this life of the group, and its start.

    The start is an offset, and ranges of offsets above it that had been retired before: the group ignores them.

    If the file is damaged, ``damage`` tells it, and the other fields come from the group's position files. The
    settings are what the group was given; None: they were lost, because the file was rebuilt.
    """

    name: str
    group_id: bytes
    start_offset: int
    retired: tuple[range, ...] = ()
    damage: tuple[Damage, ...] = ()
    settings: Mapping[str, Any] | None = None

    def initial_progress(self) -> GroupProgress:
        """Return the progress of a group that has just started: retired offsets count as finished."""
        progress = GroupProgress(self.start_offset)
        for offsets in self.retired:
            progress.finish(offsets.start, len(offsets))
        return progress


def groups_locked(storage: Storage, directory: QueueDirectory, clock: Clock) -> Guard:
    """Return the lock for creating and deleting groups and for retiring data files."""
    owned = Owned(f"the list of groups of {directory.root}")
    return Guard(lambda: locks.acquire(storage, directory.groups_lock, clock, timeout=_LOCK_SECONDS, owned=owned))


def set_command(root: Path, *words: str, group: str = DEFAULT_GROUP) -> str:
    """Return the command line that changes settings of a queue, as a person copies it from an error into a shell."""
    return shlex.join(["holdfast", "set", str(root), *(["--group", group] if group != DEFAULT_GROUP else []), *words])


def find_group(storage: Storage, directory: QueueDirectory, name: str) -> GroupInfo | None:
    """Return the start of a group, or None if it does not exist."""
    try:
        try:
            return _read_group(storage, directory, name)
        except MISSING:
            if not _has_progress(storage, directory.group(name)):
                return None
            return _read_group(storage, directory, name)  # made meanwhile
    except MISSING:
        return _rebuild_group(storage, directory, name, "it is missing, and the group was not deleted")


def _has_progress(storage: Storage, path: Path) -> bool:
    """Whether there are position files without ``group.json``, and the group is not being deleted."""
    file = open_if_there(storage, path / _DELETED)  # first: it goes once the position files are gone
    if file is not None:
        file.close()
        return False
    return bool(list_generations(storage, path))


def _read_group(storage: Storage, directory: QueueDirectory, name: str) -> GroupInfo:
    try:
        document = read_document(storage, directory.group_document(name), LARGE_DOCUMENT_BYTES_MAX)
        retired = tuple(range(as_number(first), as_number(end)) for first, end in document["retired"])
        start = as_number(document["start_offset"])
        if not Reach(storage, directory).covers(max([start, *(offsets.stop for offsets in retired)])):
            raise ValueError("it names offsets beyond the log")
        settings = settings_in(document, directory.group_document(name))
        return GroupInfo(name, as_id(document["group_id"]), start, retired, settings=settings)
    except (CorruptionError, KeyError, ValueError, TypeError) as error:
        return _rebuild_group(storage, directory, name, str(error))


def _rebuild_group(storage: Storage, directory: QueueDirectory, name: str, reason: str) -> GroupInfo:
    """Return a group whose ``group.json`` is damaged or lost: its position files hold its id and its progress.

    There are files of several lives after a seek, also after one that was cut off. Which life counted is not known: the
    one that has finished least skips no message if the others have finished all that it has.
    """
    path = directory.group(name)
    lives: dict[bytes, bytes] = {}  # ids of the group, the latest one last, and the queue's
    for generation in list_generations(storage, path):
        with suppress(CorruptionError, *MISSING), storage.open(position_file(path, generation), writable=False) as file:
            header = PositionFileHeader.decode(block_copies(file.read_at(FRAMES_START, 0)), str(path))
            lives.pop(header.group_id, None)
            lives[header.group_id] = header.queue_id
    group_id = next(reversed(lives), bytes(16))
    if len(lives) > 1:
        reason = f"{reason}; of {len(lives)} lives of the group, the one that has finished least counts"
        finished: dict[bytes, int] = {}
        for each, queue_id in reversed(lives.items()):
            reader = progress_reader(storage, directory, queue_id, GroupInfo(name, each, 0))
            count = reader.refresh().finished_count
            if reader.generation:
                finished[each] = count
        group_id = min(finished, key=finished.__getitem__, default=group_id)
    return GroupInfo(name, group_id, 0, damage=(Damage(path / "group.json", 0, 0, range(0), DAMAGED, reason),))


def repair_group(storage: Storage, directory: QueueDirectory, group: GroupInfo, files: LogFiles) -> GroupInfo:
    """Rewrite a damaged ``group.json``, and keep what is left of it beside it; the caller holds the group's lock.

    If no position file is left, the group starts over, at the oldest message that is still there.
    """
    keep_damaged(storage, directory.group_document(group.name), LARGE_DOCUMENT_BYTES_MAX)
    repaired = replace(group, start_offset=files.first_offset, retired=tuple(retired_ranges(files)))
    _write(storage, directory, repaired)
    return repaired


def list_groups(storage: Storage, directory: QueueDirectory, *, but: Collection[str] = ()) -> list[GroupInfo]:
    """Return the groups that exist, by name, without those named ``but``."""
    names = (name for name in storage.list(directory.groups) if not name.startswith(".") and name not in but)
    return [group for name in names if (group := find_group(storage, directory, name)) is not None]


def require_group(storage: Storage, directory: QueueDirectory, name: str) -> GroupInfo:
    """Return a group; raises GroupNotFoundError with the names of those that exist."""
    group = find_group(storage, directory, name)
    if group is None:
        names = [known.name for known in list_groups(storage, directory)]
        raise GroupNotFoundError(
            f"no group {name!r} in {directory.root} (there are: {', '.join(names) or 'none'}); "
            f"make it with queue.groups.create({name!r})",
            group=name,
            groups=names,
        )
    return group


def write_group(
    storage: Storage,
    directory: QueueDirectory,
    name: str,
    files: LogFiles,
    start_offset: int,
    settings: Mapping[str, Any],
    *,
    poison: Poison | None = None,
) -> GroupInfo:
    """Make a group, durably; the caller holds the groups lock, so nothing is retired meanwhile.

    A failure is undone, so that the next attempt starts anew. If the undoing fails too, ``poison`` is set.
    """
    path = directory.group(name)
    storage.make_directory(path)
    try:
        storage.sync_directory(directory.groups)
    except OSError:  # a second sync could succeed over a lost name: a rename is a new one for the next attempt to sync
        with undoing(poison):
            for each in _unsynced(storage, directory, name):
                storage.rename(directory.group(each), path.with_name(f".{each}.new"))
                storage.rename(path.with_name(f".{each}.new"), directory.group(each))
        raise
    is_deleted = _DELETED in storage.list(path)  # and that was cut off
    if is_deleted:
        storage.sync_directory(path)  # or the group comes back, and its progress does not
    if is_deleted or name != DEFAULT_GROUP:
        _remove_contents(storage, path, _KEPT if name != DEFAULT_GROUP else _KEPT_OF_DEFAULT)
    group = GroupInfo(name, random_id(), start_offset, tuple(retired_ranges(files, start_offset)), settings=settings)
    with undone(storage, path / "group.json", poison):
        _write(storage, directory, group)
    return group


def _unsynced(storage: Storage, directory: QueueDirectory, name: str) -> set[str]:
    """Return the groups whose directories may have no durable name: the one that is made, and an unused default one."""
    default = directory.group(DEFAULT_GROUP)
    has_default = default.name in storage.list(directory.groups)
    return {name, DEFAULT_GROUP} if has_default and "group.json" not in storage.list(default) else {name}


def _write(storage: Storage, directory: QueueDirectory, group: GroupInfo) -> None:
    write_document(storage, directory.group_document(group.name), _fields(group), LARGE_DOCUMENT_BYTES_MAX)


def _fields(group: GroupInfo) -> dict[str, Any]:
    return {
        "format": FORMAT_VERSION,
        "group_id": group.group_id.hex(),
        "start_offset": group.start_offset,
        "retired": [[offsets.start, offsets.stop] for offsets in group.retired],
        "settings": group.settings if group.settings is None else dict(group.settings),
    }


def next_life(
    group: GroupInfo, progress: GroupProgress, start: int, retired: Iterable[range]
) -> tuple[GroupInfo, GroupProgress]:
    """Return a group as it is when it starts anew at an offset, and its progress then. Pure.

    Each life has an id of its own, which its position files and the commit records about it carry. So no file, no
    commit record and no reservation of an earlier life counts in a later one.

    Dead letters stay, and so does what sessions have to be told: that their deliveries were taken away. Delivery
    counts, delays and what was finished go.

    Parameters
    ----------
    group, progress
        The life before, without votes.
    start : int
        Everything before it is finished, but for dead letters.
    retired : iterable of range
        The offsets between data files, which are not there any more.
    """
    assert not progress.votes, "a vote is of its life"
    dead = sorted(progress.dead)
    life = GroupProgress(min([start, *dead]))
    for before, behind in pairwise([*(offset for offset in dead if offset < start), start]):
        life.finish(before + 1, behind - before - 1)
    for gap in retired:
        life.finish(gap.start, len(gap))
    gone = tuple(range(first, end) for first, end, _ in life.runs())
    begun = replace(group, group_id=random_id(), start_offset=life.floor, retired=gone)
    life.lost_count, life.skipped_count = progress.lost_count, progress.skipped_count
    for offset, mark in progress.dead.items():
        life.bury(offset, mark)
    for number, offsets in progress.taken_away.items():
        for offset in offsets:
            life.take_away(number, offset, 1)
    for offset, number in progress.numbers.items():
        life.take_away(number, offset, 1)
    return begun, life


def change_group(
    storage: Storage, directory: QueueDirectory, group: GroupInfo, settings: Mapping[str, Any]
) -> GroupInfo:
    """Replace the settings of a group, durably; as :func:`replace_group`."""
    changed = replace(group, settings=settings)
    replace_group(storage, directory, group, changed)
    return changed


def replace_group(storage: Storage, directory: QueueDirectory, group: GroupInfo, changed: GroupInfo) -> None:
    """Replace the document of a group, durably; the caller holds the group's lock.

    Raises as :func:`replace_document`.
    """
    path = directory.group_document(group.name)
    replace_document(storage, path, _fields(group), _fields(changed), LARGE_DOCUMENT_BYTES_MAX)


def remove_group(
    storage: Storage, directory: QueueDirectory, group: GroupInfo, *, poison: Poison | None = None
) -> None:
    """Delete a group; it is gone once ``group.json`` has another name. The caller holds the groups lock and its own.

    That name goes last: position files alone are those of a group that has lost its document. ``poison`` is set as by
    :func:`write_group`.
    """
    path = directory.group(group.name)
    is_lost = False
    try:
        storage.rename(path / "group.json", path / _DELETED)
    except MISSING:
        storage.open(path / _DELETED, create=True).close()
        is_lost = True
    try:
        storage.sync_directory(path)
    except OSError:  # a second sync could succeed over a name that was lost: the next attempt makes a new one
        with undoing(poison):
            storage.open(path / _RESTORED, create=True).close()
            if is_lost:
                storage.remove(path / _DELETED)
            else:
                storage.rename(path / _DELETED, path / "group.json")
            storage.sync_directory(path)
            storage.remove(path / _RESTORED)
        raise
    _remove_contents(storage, path)


def _remove_contents(storage: Storage, path: Path, kept: Collection[str] = _KEPT) -> None:
    """Remove what a deletion has left, or all of it; durably, before what tells that the group was deleted."""
    entries = [entry for entry in storage.list(path) if entry not in kept]
    for entry in entries:
        if entry != _DELETED:
            storage.remove(path / entry)
    if _DELETED in entries:
        storage.sync_directory(path)
        storage.remove(path / _DELETED)


def sync_group(storage: Storage, directory: QueueDirectory, name: str) -> None:
    """Make durable what a group is: a killed process may have changed that.

    The caller has read it, and holds the groups lock. Raises ``OSError``.
    """
    sync_document(storage, directory.group_document(name), LARGE_DOCUMENT_BYTES_MAX)


def make_life_durable(
    storage: Storage, directory: QueueDirectory, group: GroupInfo, reader: PositionFileReader
) -> None:
    """Write ``group.json`` anew, unless the progress that ``reader`` finds proves that it is durable.

    The sync of a seek may have failed, and a second one could succeed over the lost name. A damaged one is synced: its
    owner repairs it. The caller holds the group's lock. Raises ``OSError``.
    """
    if is_life_durable(storage, directory, group.name, reader):
        return
    if group.damage:
        return sync_group(storage, directory, group.name)
    _write(storage, directory, group)
    with suppress(*MISSING):
        storage.remove(directory.group(group.name) / _RESTORED)


def is_life_durable(storage: Storage, directory: QueueDirectory, name: str, reader: PositionFileReader) -> bool:
    """Whether the progress that ``reader`` finds proves ``group.json`` durable: its life, and that it is not deleted.

    An owner appends to the progress of a life only once both have durable names. If a seek may have changed the life
    later, the next generation is of another one; if a deletion was taken back, there is a file that says so.
    """
    reader.refresh()
    return reader.has_appended and not reader.is_superseded and _RESTORED not in storage.list(directory.group(name))


def sync_deletions(storage: Storage, directory: QueueDirectory, groups: Sequence[GroupInfo]) -> None:
    """Make the absence of all groups but these durable: a group whose deletion was cut off must not come back."""
    known = {group.name for group in groups}
    for entry in storage.list(directory.groups):
        if not entry.startswith(".") and entry not in known:
            sync_absence(storage, directory, entry)


def sync_absence(storage: Storage, directory: QueueDirectory, name: str) -> None:
    """Make it durable that a group is not there; as :func:`sync_deletions`. Raises ``OSError``."""
    with suppress(*MISSING):
        storage.sync_directory(directory.group(name))


def progress_reader(
    storage: Storage, directory: QueueDirectory, queue_id: bytes, group: GroupInfo
) -> PositionFileReader:
    """Return a reader of a group's progress."""
    reach = Reach(storage, directory)
    path = directory.group(group.name)
    return PositionFileReader(storage, path, queue_id, group.group_id, reach, group.initial_progress)
