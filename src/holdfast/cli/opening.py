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
def submitting(path: Path, *, create: bool = False) -> Iterator[PersistentQueue]:
    """Open a queue to send requests to its owner, or to perform them here if there is no owner.

    In a service's directory the service's configuration applies.
    """
    if not create:
        require_queue(path)
    configured = load_config(path.absolute().parent, os.environ).chosen(path.absolute().name)
    with PersistentQueue(path, mode="submit", configured=configured) as queue:
        yield queue


@contextmanager
def taking(path: Path, group: str) -> Iterator[PersistentQueue]:
    """Own the read side for a while. Damage that was met is raised at the end, as CorruptionError.

    The rules of the group count here as in the application.
    """
    require_queue(path)
    try:
        queue = PersistentQueue(path, mode="consume", group=group)
    except QueueLockedError as error:
        owner = "another process" if error.pid is None else f"process {error.pid} on {error.host}"
        raise type(error)(
            f"{owner} takes the messages of group {group!r} of {path}, and one process does at a time: stop it, or "
            "look with `holdfast peek`",
            **error.context,
        ) from None
    with queue:
        yield queue
        raise_damage(queue)


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


def require_queue(path: Path) -> None:
    """Refuse a path without a queue: in words of the command line, and before a handle that submits makes one."""
    root = Path(os.path.abspath(path))
    try:
        open_directory(OsStorage(), root, create=False, writable=False)
    except QueueNotFoundError as error:
        raise QueueNotFoundError(f"no queue at {root}; `holdfast put --create` makes one", **error.context) from None
