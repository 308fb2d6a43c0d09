"""Changes the settings of a queue and of its groups, while it is open here or closed, and shows what is stored."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from holdfast.clock import Clock
from holdfast.errors import ConfigError, StorageError
from holdfast.persistence.filesystem import locks
from holdfast.persistence.filesystem.layout import (
    QueueDirectory,
    open_directory,
    read_settings,
    rebuild_identity,
    write_settings,
)
from holdfast.persistence.filesystem.locks import Owned
from holdfast.persistence.filesystem.poison import commit_unknown
from holdfast.persistence.filesystem.storage import Storage, storage_errors
from holdfast.persistence.groups.group_files import (
    DEFAULT_GROUP,
    change_group,
    find_group,
    groups_locked,
    repair_group,
    require_group,
)
from holdfast.persistence.log.log_files import LogFiles
from holdfast.queue.engine.handle_settings import Document, only, settings_lost, without_begun
from holdfast.queue.engine.queue_handle import QueueHandle
from holdfast.queue.options.settings import (
    DEFAULTS,
    FILTER,
    GROUP_SETTINGS,
    QUEUE_SETTINGS,
    Settings,
    checked,
    read_stored,
    stored,
)

logger = logging.getLogger("holdfast")


class StoredSetting(NamedTuple):
    """One setting of a queue, or of a group.

    Attributes
    ----------
    name, value
        As :class:`PersistentQueue` takes them; if it was lost, the value is the default.
    group : str or None
        Whose it is; None: the queue's.
    state : "set", "default" or "lost"
        Whether it was set; "lost": not known any more.
    """

    name: str
    value: Any
    group: str | None
    state: Literal["set", "default", "lost"]


def stored_settings(storage: Storage, root: Path, group: str) -> list[StoredSetting]:
    """Return all settings of a queue and one group, as the disk has them. It takes no lock, and changes nothing.

    Raises
    ------
    QueueNotFoundError, GroupNotFoundError
        There is none; a default group that has not begun has the defaults.
    UnsupportedVersionError, StorageError
        A later version has set them, or the disk refuses.
    """
    directory, _, _ = open_directory(storage, root, create=False, writable=False)
    with storage_errors("reading the settings", root):
        info = find_group(storage, directory, group)
        if info is None and group != DEFAULT_GROUP:
            info = require_group(storage, directory, group)
        document = read_settings(storage, directory)
        of_queue = _listed(document, QUEUE_SETTINGS, None, directory.identity)
        of_group = document if info is None else info.settings  # what a default group gets when it begins
        return of_queue + _listed(of_group, GROUP_SETTINGS, group, directory.group_document(group))


def _listed(document: Document | None, names: frozenset[str], group: str | None, path: Path) -> list[StoredSetting]:
    known = read_stored(document or {}, path)
    unset: Literal["default", "lost"] = "default" if document is not None else "lost"
    found = [
        StoredSetting(name, known.get(name, default), group, "set" if name in known else unset)
        for name, default in DEFAULTS.items()
        if name in names
    ]
    if document is not None and FILTER in document:
        found.append(StoredSetting(FILTER, document[FILTER], group, "set"))
    return found


def configure(
    handle: QueueHandle, settings: Settings, reset: Collection[str], check_open: Callable[[], object]
) -> None:
    """Change settings of a queue that is open here; see :meth:`PersistentQueue.configure`.

    One thread at a time: each keeps what the one before has changed. Closing waits for it, as it gives the locks back.
    """
    handle.settings.check_outside("configure")
    changers, thread = handle.settings.changers, threading.get_ident()
    try:
        changers.add(thread)
        with handle.settings.changing, storage_errors("changing settings", handle.path):
            check_open()
            handle.settings.catch_up()
            _configure(handle, settings, reset)
    finally:
        changers.discard(thread)


def _configure(handle: QueueHandle, settings: Settings, reset: Collection[str]) -> None:
    handle.settings.check_may_change([*settings, *reset])
    changes = _changes(handle.settings.values, settings, reset)
    storage, directory = handle.storage, handle.directory
    of_queue, of_group = (QUEUE_SETTINGS & changes.keys(), GROUP_SETTINGS & changes.keys())
    write_side = handle.write_side if of_queue else None
    read_side = handle.read_side if of_group else None
    if of_queue and write_side is None:
        raise handle.lacks("change settings of the queue")
    if of_group and read_side is None:
        raise handle.lacks("change settings of the group")
    if read_side is not None:
        read_side.begin()
    if write_side is not None:
        changed = _changed(_settings_of(storage, directory), changes, QUEUE_SETTINGS, reset)
        write_settings(storage, directory, changed)
        handle.settings.change(changes, QUEUE_SETTINGS)
        values = handle.settings.values
        handle.capacity.change(values["maxsize"], values["max_bytes"])
        write_side.change(values)
    if read_side is not None:
        name = handle.options.group
        with _behind_the_queue(directory, is_changed=write_side is not None):
            found = require_group(storage, directory, name).settings
            handle.group.change(_changed(_known(found, None, directory, name), changes, GROUP_SETTINGS, reset))
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
    """Change settings of a queue that is not open, durably.

    Parameters
    ----------
    storage, clock, root
        The queue.
    settings, reset
        As :meth:`PersistentQueue.configure`.
    group : str
        Whose settings they are, as far as they belong to a group. The default group gets them when it begins.
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
    directory, queue_id, _ = open_directory(storage, root, create=False, is_rebuilt=is_rebuilt)
    names, reset = {*settings, *reset}, list(reset)
    written: list[tuple[Path, Document]] = []
    with storage_errors("changing settings", root), ExitStack() as held:
        held.callback(_tell, written)  # the last thing done: without the locks
        is_there = find_group(storage, directory, group) is not None
        waits = group == DEFAULT_GROUP and not is_there
        in_queue = QUEUE_SETTINGS | GROUP_SETTINGS if waits else QUEUE_SETTINGS
        of_queue = names & in_queue or is_rebuilt
        of_group = names & GROUP_SETTINGS - in_queue or (is_rebuilt and is_there)
        if of_queue:
            held.callback(_locked(storage, clock, directory, None).release)
        if is_rebuilt:
            rebuild_identity(storage, directory)
        if of_group and is_there:  # else there is no directory for a lock
            held.callback(_locked(storage, clock, directory, group).release)
        info = require_group(storage, directory, group) if of_group else None
        known: Document | None = {} if is_rebuilt else None
        for_queue = _known(read_settings(storage, directory), known, directory)
        for_group = _known(info.settings, known, directory, group) if info is not None else {}
        mine = only(for_queue, in_queue)
        values = {**DEFAULTS, **read_stored({**mine, **for_group}, root)}
        changes = _changes(cast(Settings, values), settings, reset)
        if of_queue:
            new = _changed(without_begun(storage, directory, for_queue), changes, in_queue, reset)
            write_settings(storage, directory, new)
            written.append((root, new))
        if info is not None:
            changed = _changed(for_group, changes, GROUP_SETTINGS, reset)
            with _behind_the_queue(directory, is_changed=bool(of_queue)):
                if info.damage:
                    info = repair_group(storage, directory, info, LogFiles(storage, directory, queue_id))
                change_group(storage, directory, info, changed)
            written.append((directory.group(group), changed))


def _tell(written: Sequence[tuple[Path, Document]]) -> None:
    for path, document in written:
        logger.info("%s: its settings are %s from now on", path, document)


@contextmanager
def _behind_the_queue(directory: QueueDirectory, *, is_changed: bool) -> Iterator[None]:
    """Change the settings of a group; where those of the queue are changed already, a failure is not all or nothing."""
    try:
        yield
    except (OSError, StorageError) as error:
        if not is_changed:
            raise
        what = "changing settings of the group, behind those of the queue,"
        raise commit_unknown(what, directory.root, error) from error


def _locked(storage: Storage, clock: Clock, directory: QueueDirectory, group: str | None) -> locks.SideLock:
    path = directory.write_lock if group is None else directory.group_lock(group)
    owned = Owned(
        f"the write side of {directory.root}" if group is None else f"group {group!r} of {directory.root}",
        here="call configure() of the open queue, or close it first",
        elsewhere="open it with mode='shared' there; or call configure() in that process, or stop it first",
    )
    guard = partial(groups_locked, storage, directory, clock)
    return locks.acquire(storage, path, clock, timeout=0, owned=owned, guard=guard, is_visitor=True)


def _settings_of(storage: Storage, directory: QueueDirectory) -> Document:
    return _known(read_settings(storage, directory), None, directory)


def _known(
    document: Document | None, otherwise: Document | None, directory: QueueDirectory, group: str | None = None
) -> Document:
    """Return stored settings, or what counts instead of those that were lost."""
    found = document if document is not None else otherwise
    if found is None:
        path = directory.identity if group is None else directory.group_document(group)
        raise settings_lost(path, directory.root, group or DEFAULT_GROUP)
    return found


def _changes(values: Settings, settings: Settings, reset: Iterable[str]) -> Settings:
    """Return the new values of what changes; raises ConfigError if they cannot work together with the others."""
    for name in reset:
        if name in settings:
            raise ConfigError(f"{name} is to be set and to be reset: choose one of them", key=name)
    again = {name: DEFAULTS[name] for name in reset}  # type: ignore[literal-required]
    every = checked({**values, **settings, **again})
    return cast(Settings, {name: every[name] for name in (*settings, *again)})  # type: ignore[literal-required]


def _changed(document: Document | None, changes: Settings, names: frozenset[str], reset: Iterable[str]) -> Document:
    """Return the stored settings after a change of those with some names."""
    known, gone = {**(document or {}), **stored(changes, names)}, names.intersection(reset)
    return {name: value for name, value in known.items() if name not in gone}
