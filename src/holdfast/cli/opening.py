"""Opens queues for commands, and defines the parameters that most commands share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from holdfast.errors import CorruptionError, QueueLockedError, QueueNotFoundError
from holdfast.persistence.filesystem.layout import open_directory
from holdfast.persistence.filesystem.storage import OsStorage
from holdfast.persistence.ownership.owner_lock import is_owned
from holdfast.queue.options.settings import Settings
from holdfast.queue.persistent_queue import PersistentQueue
from holdfast.service.configuration.config import load_config

queue_argument = click.argument("path", metavar="QUEUE", type=click.Path(path_type=Path))

json_option = click.option("--json", "as_json", is_flag=True, help="Write JSON; errors too, to standard error.")

group_option = click.option("--group", default="default", show_default=True, help="The consumer group.")


@contextmanager
def looking(path: Path, group: str = "default") -> Iterator[PersistentQueue]:
    """Open a queue to read, without a lock. Damage that was met is raised at the end, as CorruptionError."""
    require_queue(path)
    with PersistentQueue(path, mode="read_only", group=group) as queue:
        yield queue
        raise_damage(queue)


@contextmanager
def sharing(path: Path, group: str = "default", *, create: bool = False) -> Iterator[PersistentQueue]:
    """Open a queue beside the processes that share it, or own it for a while if there are none.

    In a service's directory the service's configuration applies.
    """
    if not create:
        require_queue(path)
    configured = load_config(path.absolute().parent, os.environ).chosen(path.absolute().name)
    with _open_shared(path, group, configured) as queue:
        yield queue


@contextmanager
def taking(path: Path, group: str) -> Iterator[PersistentQueue]:
    """Take messages of a queue. Damage that was met is raised at the end, as CorruptionError.

    The rules of the group count here as in the application.
    """
    require_queue(path)
    with _open_shared(path, group, {}) as queue:
        yield queue
        raise_damage(queue)


def _open_shared(path: Path, group: str, configured: Settings) -> PersistentQueue:
    """Return the queue, open; raises QueueLockedError with advice for people at a shell."""
    try:
        return PersistentQueue(path, mode="shared", group=group, configured=configured)
    except QueueLockedError as error:
        if is_owned(OsStorage(), path.absolute()):  # by one that does not answer
            raise
        owner = "another process" if error.pid is None else f"process {error.pid} on {error.host}"
        raise type(error)(
            f"{owner} has {path} open with mode='exclusive': open the queue there with mode='shared', stop that "
            "process, or look with `holdfast peek` and `holdfast stats`",
            **error.context,
        ) from None


def raise_damage(queue: PersistentQueue) -> None:
    """Raise CorruptionError if something was damaged on the way."""
    report = queue.recovery
    damage = (*report.damage, *report.progress_damage)
    if damage:
        raise CorruptionError(
            f"{queue.path} is damaged, {report.lost_count} messages are lost as far as was read: {damage[0]}; "
            "`holdfast verify` reads all of it",
            path=str(damage[0].path),
            position=damage[0].position,
            offsets=[each.offsets for each in damage if each.offsets],
        )


def require_queue(path: Path, *, is_rebuilt: bool = False) -> None:
    """Refuse a path without a queue: in words of the command line, and before a handle makes one.

    ``is_rebuilt``: accept one that has lost its ``queue.json``.
    """
    root = Path(os.path.abspath(path))
    try:
        open_directory(OsStorage(), root, create=False, writable=False, is_rebuilt=is_rebuilt)
    except QueueNotFoundError as error:
        raise QueueNotFoundError(f"no queue at {root}; `holdfast put --create` makes one", **error.context) from None
