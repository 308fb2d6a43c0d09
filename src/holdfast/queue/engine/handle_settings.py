"""The settings that count in one handle: what the disk has, compared with what the program asks for."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from holdfast.errors import ConfigError, CorruptionError, UsageError
from holdfast.persistence.filesystem.layout import QueueDirectory, read_settings, write_settings
from holdfast.persistence.filesystem.storage import Storage
from holdfast.persistence.groups.group_files import DEFAULT_GROUP, GroupInfo, change_group, find_group, set_command
from holdfast.persistence.groups.position_file_writer import POSITION_FILE_BYTES_MIN
from holdfast.persistence.groups.retention import Bounds, Retention
from holdfast.persistence.log.flush_policy import FlushPolicy
from holdfast.queue.options.queue_options import Options
from holdfast.queue.options.retention import retention_of
from holdfast.queue.options.retry_policy import RetryPolicy
from holdfast.queue.options.settings import (
    DEFAULTS,
    GROUP_SETTINGS,
    QUEUE_SETTINGS,
    Settings,
    checked,
    read_stored,
    retry_of,
    shown,
    stored,
)
from holdfast.threads import log_later

Document = Mapping[str, Any]

_EVERY = QUEUE_SETTINGS | GROUP_SETTINGS

POSITION_FILE_BYTES_MAX = 2**20
"""16,000 acknowledgements between two checkpoints; each group keeps two such files. They begin smaller."""

SPILL_BYTES_MAX = 16 * 2**20
"""A transaction that puts more continues in a file."""


class HandleSettings:
    """The settings of one queue and one group.

    Parameters
    ----------
    root : Path
        The queue.
    options : Options
        Its ``settings`` must agree with the disk; to its ``configured`` ones the owner changes the disk.
    beside : HandleSettings or None
        Those of the handle with the write side, if it is another one: both change the same queue.

    Attributes
    ----------
    values : Settings
        What counts: all of them.
    changing : threading.Lock
        Held while these handles change them on the disk.
    changers : set of int
        The threads that do, or wait for that.
    """

    def __init__(self, root: Path, options: Options, beside: HandleSettings | None = None) -> None:
        self._root = root
        self._group = options.group
        self._beside = beside
        self.changing: threading.Lock = threading.Lock() if beside is None else beside.changing
        self.changers: set[int] = set() if beside is None else beside.changers
        self._is_reader = options.mode == "read_only"
        self._given = given = options.settings
        self._configured = configured = options.configured
        self.values: Settings = {**DEFAULTS, **given, **configured}
        for name in given.keys() & configured.keys():
            self._check_fits(name, configured[name])  # type: ignore[literal-required]

    @property
    def flush(self) -> FlushPolicy:
        """The durability of this handle: at least that of the queue."""
        return self._given.get("flush", self.values["flush"])

    @property
    def retry(self) -> RetryPolicy:
        """The rules of the group."""
        return retry_of(self.values)

    @property
    def position_file_bytes(self) -> int:
        """The size of the largest position files."""
        return min(POSITION_FILE_BYTES_MAX, max(POSITION_FILE_BYTES_MIN, self.values["data_file_bytes"] // 8))

    @property
    def spill_bytes(self) -> int:
        """Payloads of one transaction that are kept in memory."""
        return min(self.values["data_file_bytes"] // 4, SPILL_BYTES_MAX)

    def of_new_queue(self) -> dict[str, Any]:
        """Return what a queue that this handle makes gets. The settings of the default group wait there.

        Raises
        ------
        ConfigError
            They cannot work together.
        """
        checked(self.values)
        names = _EVERY if self._group == DEFAULT_GROUP else QUEUE_SETTINGS
        return stored({**self._given, **self._configured}, names)

    def of_new_group(self) -> Document:
        """Return what a group gets that this handle makes together with the queue."""
        return stored({**self._given, **self._configured}, GROUP_SETTINGS)

    def of_default_group(self, storage: Storage, directory: QueueDirectory) -> Document:
        """Return what the default group gets, which begins now; another handle may have said more since the opening.

        Raises as :meth:`adopt_queue`.
        """
        document = read_settings(storage, directory)
        return only(self._adopt(document, GROUP_SETTINGS, directory.identity), GROUP_SETTINGS)

    def adopt_queue(self, storage: Storage, directory: QueueDirectory, *, is_owner: bool) -> None:
        """Take over the settings of the queue. An owner, who has the write lock, stores what the operator has chosen.

        It also stores what this program is the first to ask for, so that programs may start in any order.

        Raises
        ------
        ConfigError
            The program asks for another value.
        CorruptionError
            They were lost, and the mode is not "read_only".
        UnsupportedVersionError
            A later version has set them.
        OSError
            The disk refuses.
        """
        document = read_settings(storage, directory)
        if document is None and self._is_reader:
            return
        group = find_group(storage, directory, self._group)
        waits = group is None and self._group == DEFAULT_GROUP
        changed = self._adopt(document, _EVERY if waits else QUEUE_SETTINGS, directory.identity)
        if group is not None and group.settings is not None:  # lost ones stop only who takes
            self._adopt(group.settings, GROUP_SETTINGS, directory.group_document(group.name))
        is_refused = group is None and not waits  # it takes from a group that is not there
        if not is_owner or is_refused:  # a handle changes all that it asks for, or nothing
            return
        changed = without_begun(storage, directory, changed)
        if changed != document:
            write_settings(storage, directory, changed)
            log_later(logging.INFO, "%s: its settings are %s from now on", self._root, changed)

    def adopt_group(self, storage: Storage, directory: QueueDirectory, group: GroupInfo) -> GroupInfo:
        """Take over the settings of a group whose lock this handle has, as :meth:`adopt_queue`; return it."""
        path = directory.group_document(group.name)
        changed = self._adopt(group.settings, GROUP_SETTINGS, path)
        if changed == group.settings:
            return group
        group = change_group(storage, directory, group, changed)
        log_later(logging.INFO, "%s: its settings are %s from now on", path.parent, changed)
        return group

    def refresh(self, storage: Storage, directory: QueueDirectory) -> None:
        """Take over what the owner has changed; what the program has asked for at its opening counts no more.

        Its own ``flush`` stays its own until the queue asks for more. Raises as :meth:`adopt_queue`.
        """
        self._given = cast(Settings, {name: value for name, value in self._given.items() if name == "flush"})
        try:
            self.adopt_queue(storage, directory, is_owner=False)
        except ConfigError:
            self._given = Settings()
            self.adopt_queue(storage, directory, is_owner=False)

    def catch_up(self) -> None:
        """Take over what another handle has changed of the queue beside this one. The caller holds ``changing``."""
        if self._beside is not None:
            self.values = cast(Settings, {**self.values, **only(self._beside.values, QUEUE_SETTINGS)})

    def change(self, settings: Settings, names: frozenset[str]) -> None:
        """Take over those settings of some names, which this handle has written."""
        if self._beside is not None and names is QUEUE_SETTINGS:
            self._beside.change(settings, names)
        changed = {name: value for name, value in settings.items() if name in names}
        self._given = cast(Settings, {name: value for name, value in self._given.items() if name not in changed})
        self.values = cast(Settings, {**self.values, **changed})

    def check_outside(self, verb: str) -> None:
        """Refuse a verb inside of a change by the same thread, which would wait for itself; raises UsageError."""
        if threading.get_ident() in self.changers:
            raise UsageError(
                f"{verb}() of {self._root} inside of its configure(), as by a signal handler: set a flag there, and "
                f"call {verb}() behind it"
            )

    def check_may_change(self, names: Iterable[str]) -> None:
        """Refuse to change what the operator has chosen; raises ConfigError."""
        for name in names:
            if name in self._configured:
                raise ConfigError(f"{name} of {self._root} is set in the configuration: change it there", key=name)

    def _adopt(self, document: Document | None, names: frozenset[str], path: Path) -> Document:
        """Take over settings of some names; return the document that has what was configured or given too."""
        if document is None:
            raise settings_lost(path, self._root, self._group_of(names))
        known = {**only(read_stored(document, path), names), **only(self._configured, names)}
        for name, asked in self._given.items():
            if name not in names:
                continue
            if name not in known and name != "flush":  # others may rely on the syncs of the default
                known[name] = asked
            self._check_fits(name, known.get(name, DEFAULTS[name]), is_default=name not in known)  # type: ignore[literal-required]
        values = {name: known.get(name, DEFAULTS[name]) for name in names}  # type: ignore[literal-required]
        self.values = cast(Settings, {**self.values, **values})
        changed = {**document, **stored(known, names)}
        if changed != document:
            checked(self.values)  # together
        return changed

    def _check_fits(self, name: str, value: Any, *, is_default: bool = False) -> None:
        """Refuse what the program asks for, if it is not what the queue has; raises ConfigError with both."""
        asked = self._given[name]  # type: ignore[literal-required]
        if _fits(asked, value):
            return
        if name in self._configured:
            place, change = "in the configuration", "change it there"
        else:
            group = self._group_of(GROUP_SETTINGS if name in GROUP_SETTINGS else QUEUE_SETTINGS)
            command = set_command(self._root, f"{name}={shown(asked)}", group=group)
            place = "the default" if is_default else "as it was set"
            change = f"change it with `{command}` or queue.configure()"
        raise ConfigError(
            f"{self._root} has {name}={shown(value)} ({place}), not {shown(asked)}: leave {name} out to take that, or "
            f"{change}",
            key=name,
        )

    def _group_of(self, names: frozenset[str]) -> str:
        """Return the group that settings belong to; those of a queue belong to any."""
        return self._group if names is GROUP_SETTINGS else DEFAULT_GROUP


def stored_retention(storage: Storage, directory: QueueDirectory, wanted_bytes: int = 0) -> Retention:
    """Return what a queue keeps, as the disk has it; everything, if its settings were lost.

    ``wanted_bytes`` as for :func:`retention_of`. Raises UnsupportedVersionError, StorageError.
    """
    document = read_settings(storage, directory)
    return Retention(kept=Bounds()) if document is None else retention_of(_completed(document, directory), wanted_bytes)


def stored_queue_settings(storage: Storage, directory: QueueDirectory) -> Settings:
    """Return the settings of a queue, as the disk has them; the defaults, if they were lost.

    Another handle of this process may have changed them. Raises UnsupportedVersionError, StorageError.
    """
    return _completed(read_settings(storage, directory) or {}, directory)


def _completed(document: Document, directory: QueueDirectory) -> Settings:
    return {**DEFAULTS, **read_stored(document, directory.identity)}


def without_begun(storage: Storage, directory: QueueDirectory, of_queue: Document) -> Document:
    """Return the settings of a queue without those of its default group, if that has begun, durably: it has its own.

    Until then they wait there, whichever group a handle is for. Raises UnsupportedVersionError, ``OSError``.
    """
    if GROUP_SETTINGS.isdisjoint(of_queue) or find_group(storage, directory, DEFAULT_GROUP) is None:
        return of_queue
    storage.sync_directory(directory.group(DEFAULT_GROUP))  # its maker may have been killed before that
    return only(of_queue, QUEUE_SETTINGS)


def settings_lost(path: Path, root: Path, group: str) -> CorruptionError:
    """Return the error for a document of a queue, or of this group, that has no settings any more."""
    return CorruptionError(
        f"{path} is damaged, or was rebuilt without its settings, and the defaults could drop what they keep: set them "
        f"with `{set_command(root, '--rebuilt', group=group)}`, with those that are not the default behind it",
        path=str(path),
    )


def only(settings: Mapping[str, Any], names: frozenset[str]) -> dict[str, Any]:
    """Return those settings that have one of some names."""
    return {name: value for name, value in settings.items() if name in names}


def _fits(asked: Any, value: Any) -> bool:
    """Whether a handle may ask for a value: more durability than the queue's is its own business."""
    if isinstance(asked, FlushPolicy):
        return asked.covers(cast(FlushPolicy, value))
    return bool(asked == value)
