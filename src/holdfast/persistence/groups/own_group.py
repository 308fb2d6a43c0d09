"""The consumer group that a handle is for: found, begun if it is the default one, and opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from holdfast.clock import Clock
from holdfast.persistence.filesystem.layout import QueueDirectory
from holdfast.persistence.filesystem.poison import Poison, commit_unknown
from holdfast.persistence.filesystem.storage import Storage, storage_error
from holdfast.persistence.format.report import Damage
from holdfast.persistence.groups.group_files import (
    DEFAULT_GROUP,
    GroupInfo,
    change_group,
    find_group,
    groups_locked,
    is_life_durable,
    make_life_durable,
    next_life,
    progress_reader,
    repair_group,
    replace_group,
    require_group,
    sync_group,
    write_group,
)
from holdfast.persistence.groups.position_file_reader import PositionFileReader
from holdfast.persistence.groups.position_file_writer import PositionFileWriter
from holdfast.persistence.groups.progress import GroupProgress
from holdfast.persistence.log.log_files import LogFiles
from holdfast.persistence.log.sealed_file import retired_ranges


class OwnGroup:
    """One group of one queue.

    Parameters
    ----------
    storage, clock, directory, queue_id, files
        The queue.
    name : str
        The group.
    is_new : bool
        Whether the queue was made just now: then the group is made with it.

    Attributes
    ----------
    poison : Poison
        Set when creating, deleting or pausing a group has failed and could not be undone.
    """

    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        directory: QueueDirectory,
        queue_id: bytes,
        files: LogFiles,
        name: str,
        is_new: bool,
    ) -> None:
        self._storage = storage
        self._clock = clock
        self._directory = directory
        self._queue_id = queue_id
        self._files = files
        self.name = name
        self._is_new = is_new
        self._made_id: bytes | None = None  # of the life that this object has begun, durably
        self._opened: GroupInfo | None = None
        self._writer: PositionFileWriter | None = None
        self._recovered: tuple[GroupInfo, PositionFileReader] | None = None
        self.poison = Poison("the making, deleting and pausing of groups", directory.groups)

    def recover(self, group: GroupInfo) -> GroupProgress:
        """Return the progress of any group, synced; if it is this one, :meth:`open` reads on from there.

        The caller holds the groups lock. Raises ``OSError``.
        """
        reader = self._reader(group)
        if group.name == self.name:
            self._recovered = (group, reader)
        if not is_life_durable(self._storage, self._directory, group.name, reader):
            sync_group(self._storage, self._directory, group.name)
        return reader.progress

    def _reader(self, group: GroupInfo) -> PositionFileReader:
        return progress_reader(self._storage, self._directory, self._queue_id, group)

    def find(self, settings: Mapping[str, Any]) -> GroupInfo | None:
        """Return the group; None for a default group that was never used. Raises GroupNotFoundError.

        If the queue was made just now, the group is made with it, with these settings.
        """
        if self.name != DEFAULT_GROUP and self._is_new:
            with groups_locked(self._storage, self._directory, self._clock):
                return find_group(self._storage, self._directory, self.name) or self._make(0, settings)
        if self.name != DEFAULT_GROUP:
            return require_group(self._storage, self._directory, self.name)
        return find_group(self._storage, self._directory, self.name)

    def unused(self) -> GroupInfo:
        """Return the default group as if it began now."""
        retired = tuple(retired_ranges(self._files))
        return GroupInfo(DEFAULT_GROUP, bytes(16), self._files.first_offset, retired)

    def begin_default(self, settings: Mapping[str, Any]) -> GroupInfo:
        """Make the default group at its first use: it starts at the oldest message that is still there."""

        def begin() -> GroupInfo:
            self._files.refresh()
            group = find_group(self._storage, self._directory, DEFAULT_GROUP)  # ``groups.create`` has made it
            return group or self._make(self._files.first_offset, settings, self.poison)

        self.poison.check()
        try:
            return groups_locked(self._storage, self._directory, self._clock).run(begin)
        except OSError as error:
            if self.poison.cause is not None:
                raise commit_unknown("beginning the default group", self._directory.groups, error) from error
            raise storage_error(error, "beginning the default group", self._directory.groups) from error

    def _make(self, start: int, settings: Mapping[str, Any], poison: Poison | None = None) -> GroupInfo:
        group = write_group(self._storage, self._directory, self.name, self._files, start, settings, poison=poison)
        self._made_id = group.group_id
        return group

    def repaired(self, group: GroupInfo) -> GroupInfo:
        """Return the group with a ``group.json`` that is whole; this handle has its lock."""
        return repair_group(self._storage, self._directory, group, self._files) if group.damage else group

    def open(self, group: GroupInfo, file_bytes: int) -> tuple[PositionFileWriter, tuple[Damage, ...]]:
        """Return what notes the group's progress from here on, and the damage that was read past."""
        self._opened = group
        recovered, self._recovered = self._recovered, None
        reader = recovered[1] if recovered is not None and recovered[0] == group else self._reader(group)
        if group.group_id != self._made_id:
            make_life_durable(self._storage, self._directory, group, reader)
        self._writer = PositionFileWriter(
            self._storage,
            self._directory.group(group.name),
            self._clock,
            reader,
            file_bytes=file_bytes,
        )
        return self._writer, (*group.damage, *reader.damage)

    def change(self, settings: Mapping[str, Any]) -> None:
        """Replace the settings of the group, which is open here, durably. Raises ``OSError``, StorageError."""

        def change() -> None:
            self._opened = change_group(self._storage, self._directory, self.require(), settings)

        groups_locked(self._storage, self._directory, self._clock).run(change)  # else it may be of the life before

    def begin_life(self, find_start: Callable[[], int]) -> None:
        """Have the group, which is open here, start anew at an offset, durably; its progress is another one then.

        ``find_start`` looks at the data files, while none is retired.

        Raises
        ------
        CommitUnknownError, PoisonedError
            Either life may be the one that counts, and the read side is poisoned; or it had been before.
        StorageError, OSError
            The life before continues.
        """
        writer = self._writer
        assert writer is not None, "it is open"

        def begin() -> None:
            group = self._with_stored_settings(self.require())
            start = find_start()
            gaps = retired_ranges(self._files, min([start, *writer.progress.dead]))
            begun, progress = next_life(group, writer.progress, start, gaps)
            publish = partial(replace_group, self._storage, self._directory, group, begun)
            try:
                writer.begin_life(begun.group_id, progress, publish)
            finally:  # interrupted behind its end, too
                self._opened = begun if writer.group_id == begun.group_id else group

        groups_locked(self._storage, self._directory, self._clock).run(begin)

    def _with_stored_settings(self, group: GroupInfo) -> GroupInfo:
        """Return the group with the settings that it has on the disk: another program may have said more."""
        stored = find_group(self._storage, self._directory, self.name)
        return group if stored is None or stored.damage else replace(group, settings=stored.settings)

    def sync(self) -> None:
        """Put on the disk what was noted of the group by now. Raises as :meth:`PositionFileWriter.sync`."""
        if self._writer is not None:
            self._writer.sync()

    def positions(self) -> tuple[PositionFileReader, bool]:
        """Return the progress to show, and whether the group has begun; until then it starts at the oldest."""
        group = find_group(self._storage, self._directory, self.name)
        if group is None and self.name != DEFAULT_GROUP:
            group = require_group(self._storage, self._directory, self.name)
        if group is None:
            self._files.refresh()
        return self._reader(group or self.unused()), group is not None

    def require(self) -> GroupInfo:
        """Return the group, which has begun; while this handle owns it, it stays the same one."""
        return self._opened or require_group(self._storage, self._directory, self.name)
