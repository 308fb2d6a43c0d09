"""Changes the settings of a queue and of its groups: of one that is open here, or of one that nobody has open."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

from holdfast.clock import Clock
from holdfast.errors import CorruptionError, StorageError
from holdfast.persistence.filesystem import locks
from holdfast.persistence.filesystem.layout import QueueDirectory, open_directory, read_settings, write_settings
from holdfast.persistence.filesystem.locks import Owned
from holdfast.persistence.filesystem.poison import commit_unknown
from holdfast.persistence.filesystem.storage import Storage, storage_error, storage_errors
from holdfast.persistence.groups.group_files import change_group, find_group, repair_group, require_group
from holdfast.persistence.log.log_files import LogFiles
from holdfast.queue.engine.queue_handle import QueueHandle
from holdfast.queue.options.settings import (
    DEFAULTS,
    GROUP_SETTINGS,
    QUEUE_SETTINGS,
    Settings,
    checked,
    read_stored,
    stored,
)

Document = Mapping[str, Any]


def configure(
    handle: QueueHandle, settings: Settings, reset: Collection[str], check_open: Callable[[], object]
) -> None:
    """Change settings of a queue that is open here; see :meth:`PersistentQueue.configure`.

    One thread at a time: each keeps what the one before has changed. Closing waits for it, as it gives the locks back.
    """
    with handle.settings.changing:
        check_open()
        _configure(handle, settings, reset)


def _configure(handle: QueueHandle, settings: Settings, reset: Collection[str]) -> None:
    handle.settings.check_may_change([*settings, *reset])
    changes = _changes(handle.settings.values, settings, reset)
    storage, directory = handle.storage, handle.directory
    of_queue, of_group = (QUEUE_SETTINGS & changes.keys(), GROUP_SETTINGS & changes.keys())
    write_side = handle.require_write_side() if of_queue else None
    read_side = handle.require_read_side() if of_group else None
    if read_side is not None:
        read_side.begin()
    if write_side is not None:
        changed = _changed(_settings_of(storage, directory), changes, QUEUE_SETTINGS, reset)
        _write(storage, directory, None, changed, lambda: write_settings(storage, directory, changed))
        handle.settings.change(changes, QUEUE_SETTINGS)
        values = handle.settings.values
        handle.capacity.change(values["maxsize"], values["max_bytes"])
        write_side.change(values)
    if read_side is not None:
        name = handle.options.group
        try:
            found = require_group(storage, directory, name).settings
            changed = _changed(_known(found, None, directory.group_document(name)), changes, GROUP_SETTINGS, reset)
            _write(storage, directory, name, changed, lambda: handle.group.change(changed))
        except (OSError, StorageError) as error:
            if write_side is None:
                raise
            raise commit_unknown(
                "changing settings of the group, behind those of the queue,", directory.root, error
            ) from error
        handle.settings.change(changes, GROUP_SETTINGS)
        read_side.change(handle.settings.retry)


def configure_closed(
    storage: Storage,
    clock: Clock,
    root: Path,
    settings: Settings,
    reset: Iterable[str] = (),
    *,
    group: str = "default",
    is_rebuilt: bool = False,
) -> None:
    """Change settings of a queue that nobody has open, durably.

    Parameters
    ----------
    storage, clock, root
        The queue.
    settings, reset
        As :meth:`PersistentQueue.configure`.
    group : str
        Whose settings they are, as far as they belong to a group; it has begun.
    is_rebuilt : bool
        Whether settings that were lost are set anew: those that are not given get their defaults.

    Raises
    ------
    QueueNotFoundError, GroupNotFoundError
        There is none.
    QueueLockedError
        A handle has it open.
    CorruptionError
        They were lost, and ``is_rebuilt`` is false.
    ConfigError, StorageError
        As :meth:`PersistentQueue.configure`.
    """
    directory, queue_id, _ = open_directory(storage, root, create=False)
    with storage_errors("changing settings", root), ExitStack() as held:
        names, reset = {*settings, *reset}, list(reset)
        of_queue, of_group = names & QUEUE_SETTINGS or is_rebuilt, names & GROUP_SETTINGS or is_rebuilt
        if of_queue:
            held.callback(_locked(storage, clock, root, directory.write_lock).release)
            open_directory(storage, root, create=True)  # a damaged document is made whole first
        if of_group:
            held.callback(_locked(storage, clock, root, directory.group_lock(group)).release)
        known: Document | None = {} if is_rebuilt else None
        for_queue = _known(read_settings(storage, directory), known, directory.identity)
        info = find_group(storage, directory, group) if of_group and is_rebuilt else None
        if of_group and not is_rebuilt:
            info = require_group(storage, directory, group)
        for_group = _known(info.settings, known, directory.group_document(group)) if info is not None else {}
        values = {**DEFAULTS, **read_stored({**for_queue, **for_group}, root)}
        changes = _changes(cast(Settings, values), settings, reset)
        if of_queue:
            new = _changed(for_queue, changes, QUEUE_SETTINGS, reset)
            _write(storage, directory, None, new, lambda: write_settings(storage, directory, new))
        if info is not None:
            if info.damage:
                info = repair_group(storage, directory, info, LogFiles(storage, directory, queue_id))
            begun, changed = info, _changed(for_group, changes, GROUP_SETTINGS, reset)
            _write(storage, directory, group, changed, lambda: change_group(storage, directory, begun, changed))


def _locked(storage: Storage, clock: Clock, root: Path, path: Path) -> locks.SideLock:
    owned = Owned(
        f"the settings of {root}",
        here="call configure() of the open queue",
        elsewhere="call configure() of the queue in that process, or stop it first",
    )
    return locks.acquire(storage, path, clock, timeout=0, owned=owned)


def _settings_of(storage: Storage, directory: QueueDirectory) -> Document:
    return _known(read_settings(storage, directory), None, directory.identity)


def _known(document: Document | None, otherwise: Document | None, path: Path) -> Document:
    """Return stored settings, or what counts instead of those that were lost."""
    found = document if document is not None else otherwise
    if found is None:
        raise CorruptionError(
            f"{path} has lost its settings: say --rebuilt, and those that are not the default", path=str(path)
        )
    return found


def _changes(values: Settings, settings: Settings, reset: Iterable[str]) -> Settings:
    """Return the new values of what changes; raises ConfigError if they cannot work together with the others."""
    again = {name: DEFAULTS[name] for name in reset}  # type: ignore[literal-required]
    every = checked({**values, **settings, **again})
    return cast(Settings, {name: every[name] for name in (*settings, *again)})  # type: ignore[literal-required]


def _changed(document: Document | None, changes: Settings, names: frozenset[str], reset: Iterable[str]) -> Document:
    """Return the stored settings after a change."""
    known = {**(document or {}), **stored(changes, names)}
    return {name: value for name, value in known.items() if name not in reset}


def _write(
    storage: Storage, directory: QueueDirectory, group: str | None, new: Document, write: Callable[[], object]
) -> None:
    path = directory.identity if group is None else directory.group_document(group)
    try:
        write()
    except OSError as error:
        if _may_read_as(storage, directory, group, new):  # it has its name, which may not be durable
            raise commit_unknown("changing settings", path, error) from error
        raise storage_error(error, "changing settings", path) from error


def _may_read_as(storage: Storage, directory: QueueDirectory, group: str | None, new: Document) -> bool:
    """Whether a document has these settings, or cannot be read."""
    try:
        if group is None:
            return read_settings(storage, directory) in (new, None)
        found = find_group(storage, directory, group)
    except (OSError, StorageError):
        return True
    return found is not None and found.settings in (new, None)
