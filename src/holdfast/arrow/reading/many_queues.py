"""Finds queues by name: the directories of a service that a pattern names. Takes no lock."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from holdfast.arrow.reading.selection import Selection
from holdfast.arrow.reading.snapshot import Snapshot, take_snapshot
from holdfast.errors import ConfigError, HoldfastError, QueueNotFoundError
from holdfast.persistence.filesystem.layout import check_name, is_queue, open_directory, queue_directory
from holdfast.persistence.filesystem.storage import MISSING, Storage, storage_errors

_WILD = frozenset("*?[")
_SHOWN_MAX = 10


def check_patterns(text: str) -> tuple[str, ...]:
    """Return patterns of names, which commas separate.

    Raises
    ------
    ConfigError
        One is empty, or can match no queue: it has a slash, or begins with a dot.
    """
    patterns = tuple(dict.fromkeys(each.strip() for each in text.split(",")))
    for each in patterns:
        if "/" in each or each.startswith("."):
            raise ConfigError(f"queues are names in one directory, as orders-* or orders-a,orders-b; not {each!r}")
        if not _is_wild(each):
            check_name(each, "queue")
    return patterns


def take_snapshots(storage: Storage, selection: Selection, queues: str | None) -> list[Snapshot]:
    """Plan a read of one queue, or of the queues of a directory that patterns name.

    Raises as :func:`check_patterns`, :func:`queues_named` and :func:`take_snapshot`; a queue that is deleted meanwhile
    is an error, too.
    """
    if queues is None:
        return [take_snapshot(storage, selection)]
    roots = queues_named(storage, selection.path, check_patterns(queues))
    return [take_snapshot(storage, replace(selection, path=root)) for root in roots]


def queues_named(
    storage: Storage, directory: Path, patterns: tuple[str, ...], *, may_be_gone: bool = False
) -> list[Path]:
    """Return the queues that patterns name, ordered by name.

    A pattern with ``*``, ``?`` or ``[`` names the queues that it matches, and none of the other files; without one it
    is the name of a queue, which has to be there, unless it ``may_be_gone``.

    Raises
    ------
    QueueNotFoundError
        A name is that of no queue, or nothing matches; it says what is there. Or there is no such directory.
    StorageError
        The disk refuses.
    """
    with storage_errors("looking for queues", directory):
        try:
            names = sorted(storage.list(directory))
        except MISSING:
            raise QueueNotFoundError(f"there is no directory {directory}", path=str(directory)) from None
        found = [name for name in names if _may_be(name, patterns) and _is_queue(storage, directory / name)]
        missing = [each for each in patterns if not any(fnmatchcase(name, each) for name in found)]
        exact = [each for each in missing if not _is_wild(each)]
        if not may_be_gone and (exact or not found):
            wanted = (exact or missing)[0]
            there = [name for name in names if not name.startswith(".") and _is_queue(storage, directory / name)]
            raise QueueNotFoundError(
                f"no queue of {directory} is called {wanted!r}: {_listed(there)}", path=str(directory / wanted)
            )
    return [directory / name for name in found]


def copies_among(storage: Storage, paths: Sequence[Path]) -> dict[str, str]:
    """Return for each of these queues that has the id of another one the name of that: one is a copy of the other.

    A queue that cannot be opened is none of them.
    """
    names: dict[bytes, list[str]] = {}
    for path in paths:
        with suppress(HoldfastError):
            _, queue_id, _ = open_directory(storage, path, create=False, writable=False)
            names.setdefault(queue_id, []).append(path.name)
    same = [each for each in names.values() if len(each) > 1]
    return {name: next(other for other in each if other != name) for each in same for name in each}


def _may_be(name: str, patterns: tuple[str, ...]) -> bool:
    return not name.startswith(".") and any(fnmatchcase(name, each) for each in patterns)


def _is_wild(pattern: str) -> bool:
    return not _WILD.isdisjoint(pattern)


def _is_queue(storage: Storage, path: Path) -> bool:
    """Whether there is a queue, maybe one that cannot be read: reading it says why."""
    try:
        return queue_directory(path).identity.name in storage.list(path) or is_queue(storage, path)
    except MISSING:
        return False


def _listed(names: list[str]) -> str:
    if not names:
        return "there is no queue"
    more = f" and {len(names) - _SHOWN_MAX} more" if len(names) > _SHOWN_MAX else ""
    return f"there are {', '.join(names[:_SHOWN_MAX])}{more}"
