"""``queue.groups``: consumer groups, each with its own progress through the same messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Unpack

from holdfast.errors import ConfigError, QueueLockedError, StorageError
from holdfast.persistence.filesystem import locks
from holdfast.persistence.filesystem.layout import check_name
from holdfast.persistence.filesystem.locks import Owned, SideLock
from holdfast.persistence.filesystem.poison import commit_unknown
from holdfast.persistence.filesystem.storage import storage_error, storage_errors
from holdfast.persistence.groups.group_files import (
    DEFAULT_GROUP,
    find_group,
    list_groups,
    remove_group,
    require_group,
    sync_group,
    write_group,
)
from holdfast.queue.engine.log_starts import GroupStart, find_start
from holdfast.queue.engine.queue_handle import QueueHandle
from holdfast.queue.options.filter_expression import check_filter
from holdfast.queue.options.log_start import LogStart, Start
from holdfast.queue.options.settings import FILTER, GROUP_SETTINGS, GroupSettings, check_names, checked, stored
from holdfast.queue.verbs.verb_log import logged, own_process

_CLOSINGS_MAX = 20
"""Each wakes those that wait for messages of the group, and one of them may be faster to have it opened again."""


class Groups:
    """Makes, lists, moves and deletes the consumer groups of one queue. Reached as ``queue.groups``.

    A group keeps every message that it has not finished on the disk, also while no consumer reads for it.
    """

    def __init__(
        self,
        handle: QueueHandle,
        *,
        check_open: Callable[[], None],
        close_group: Callable[[str], object] = lambda name: None,
        seek: Callable[[str, LogStart], GroupStart] | None = None,
    ) -> None:
        self._handle = handle
        self._storage = handle.storage
        self._directory = handle.directory
        self._files = handle.files
        self._poison = handle.group.poison
        self._check_open = check_open
        self._close_group = close_group
        self._seek = seek

    def create(
        self,
        name: str,
        start: Start = "earliest",
        *,
        filter: str | None = None,  # as in pyarrow and pandas
        **settings: Unpack[GroupSettings],
    ) -> int:
        """Make a group; return the offset where it starts. Nothing happens if it exists.

        Parameters
        ----------
        name : str
            1 to 100 of the characters A-Z a-z 0-9 . _ - without a leading dot.
        start : "earliest", "latest", int, datetime or timedelta
            The oldest message that is still there, the next one to be put, an offset, or -n for the last n messages. A
            time with a zone, or how long ago: the first message put then or later. What is not there any more means
            the oldest one behind it.
        filter : str or None
            An expression in the Common Expression Language: the group gets only messages that match it, and finishes
            the others unread. docs/filters.md. It never changes. None: the group gets all.
        **settings : GroupSettings
            ``max_deliveries``, ``backoff``, ``lease_seconds``, ``dead_letter_seconds`` and ``expired`` of the group;
            docs/settings.md. A group that exists keeps its own.

        Raises
        ------
        ConfigError
            The name, the start, the filter or a setting is invalid; the extra ``filter`` is missing; or the group
            exists with another filter.
        UsageError
            The queue was opened with ``mode="read_only"``.
        DiskFullError, StorageError
            Nothing was made.
        CommitUnknownError, PoisonedError
            It may have happened or not, or an earlier failure has poisoned this side: reopen the queue and check.
        """
        self._check_open()
        check_name(name, "group")
        self._check_may_change()
        check_names(settings, "groups.create", "name", "start", FILTER, known=GROUP_SETTINGS)
        first = stored(checked(settings), GROUP_SETTINGS)
        if filter is not None:
            if name == DEFAULT_GROUP:
                raise ConfigError(f"group {name!r} gets all messages: give the filter to a group of another name")
            first[FILTER] = check_filter(filter)
        place = LogStart.of(start, self._handle.clock.time_ns())
        details = {"group": name, "start": str(place), **first}
        return logged(
            self._directory.root, "groups.create", details, own_process(), lambda: self._create(name, place, first)
        )

    def _create(self, name: str, start: LogStart, settings: Mapping[str, Any]) -> int:
        self._poison.check()
        try:
            with self._handle.groups_locked():
                group = find_group(self._storage, self._directory, name)
                if group is None:
                    first = find_start(self._handle, start).offset
                    group = write_group(
                        self._storage, self._directory, name, self._files, first, settings, poison=self._poison
                    )
                elif FILTER in settings and (has := (group.settings or {}).get(FILTER)) != settings[FILTER]:
                    raise ConfigError(
                        f"group {name!r} of {self._directory.root} has {'no filter' if has is None else repr(has)}, "
                        "and that never changes: leave filter out to take it, or make a group of another name"
                    )
                else:
                    sync_group(self._storage, self._directory, name)
                return group.start_offset
        except OSError as error:
            raise self._error(error, "making a group", name) from error

    def seek(self, name: str, start: Start) -> GroupStart:
        """Move a group to another place in the log, back or ahead, while its consumers run.

        All that it had finished is forgotten, with delivery counts and delays. Messages in hand are taken away: their
        deliveries raise LeaseExpiredError. Dead letters, the settings and a pause stay.

        Parameters
        ----------
        name : str
            The group; the default one begins here if it has not.
        start : "earliest", "latest", int, datetime or timedelta
            As for :meth:`create`.

        Returns
        -------
        GroupStart
            Where it continues. Its ``is_complete`` is False if the log is not kept back to the start that was asked
            for, or has gaps behind it.

        Raises
        ------
        TransactionStateError
            The group has prepared transactions or reservations: they are decided first. Nothing was done.
        GroupNotFoundError, ConfigError, UsageError
            There is no such group, or no such start; or the mode does not change groups.
        DiskFullError, StorageError
            The group is where it was.
        CommitUnknownError, PoisonedError
            It may have moved or not, or an earlier failure has poisoned the read side: reopen the queue and check.

        Notes
        -----
        Durability: power loss. Cost: four syncs; and what finding a time costs, a few reads and at most one data file.
        """
        self._check_open()
        check_name(name, "group")
        self._check_may_change()
        assert self._seek is not None, "the groups of an owner's inside are moved by its verb"
        return self._seek(name, LogStart.of(start, self._handle.clock.time_ns()))

    def list(self) -> list[str]:
        """Return the names of the groups, sorted; the default group is among them once it was used."""
        self._check_open()
        with storage_errors("listing groups", self._directory.groups):
            return [group.name for group in list_groups(self._storage, self._directory)]

    def delete(self, name: str) -> None:
        """Delete a group and its progress; messages that only this group had not finished are deleted with it.

        Raises
        ------
        GroupNotFoundError
            There is none of that name.
        QueueLockedError
            This handle reads for it, or another one has messages of it in hand. One that has none meets
            GroupNotFoundError at its next call.
        DiskFullError, StorageError
            It may be gone all the same: check ``list``, and delete it again if it is there.
        CommitUnknownError, PoisonedError
            As for :meth:`create`.
        """
        self._check_open()
        check_name(name, "group")
        self._check_may_change()
        logged(self._directory.root, "groups.delete", {"group": name}, own_process(), lambda: self._delete(name))

    def _delete(self, name: str) -> None:
        self._poison.check()
        try:
            require_group(self._storage, self._directory, name)
            lock = self._lock_closed(name)
            try:
                with self._handle.groups_locked():
                    group = require_group(self._storage, self._directory, name)
                    remove_group(self._storage, self._directory, group, poison=self._poison)
                self._handle.reclaim()
            finally:
                lock.release()
        except OSError as error:
            raise self._error(error, "deleting a group", name) from error

    def _lock_closed(self, name: str) -> SideLock:
        """Have a group closed, and take its lock; a handle that waits for messages may have it opened in between."""
        owned = Owned(
            f"group {name!r} of {self._directory.root}",
            here="close the queue that reads for it, then delete it",
            elsewhere="stop the program that reads for it, then delete it",
        )
        path, guard = self._directory.group_lock(name), self._handle.groups_locked
        take = partial(locks.acquire, self._storage, path, self._handle.clock, timeout=0, owned=owned, guard=guard)
        for _ in range(_CLOSINGS_MAX):
            self._close_group(name)
            with suppress(QueueLockedError):
                return take()
        return take()

    def _error(self, error: OSError, what: str, name: str) -> StorageError:
        path = self._directory.group(name)
        return commit_unknown(what, path, error) if self._poison.cause is not None else storage_error(error, what, path)

    def _check_may_change(self) -> None:
        if self._handle.options.mode == "read_only":
            raise self._handle.lacks("change groups")
