"""Moves a consumer group to another place in the log, while it is read: it begins another life there."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.persistence.filesystem.storage import storage_errors
from holdfast.queue.engine.log_starts import GroupStart, find_start
from holdfast.queue.engine.queue_handle import QueueHandle
from holdfast.queue.engine.reading import with_reserve
from holdfast.queue.options.log_start import LogStart
from holdfast.queue.verbs.verb_log import Asker, logged


@dataclass(frozen=True, slots=True)
class Moved:
    """What a seek has done.

    Attributes
    ----------
    started : GroupStart
        Where the group continues.
    task_change : int
        How many more messages than before its consumers will report done.
    """

    started: GroupStart
    task_change: int


def seek(handle: QueueHandle, start: LogStart, asker: Asker) -> Moved:
    """Have the group of a handle with its read side continue at a start; that is logged.

    Raises
    ------
    TransactionStateError
        The group has prepared transactions or reservations; nothing was done.
    ConfigError, StorageError
        As :func:`find_start`; or the disk refuses, and the group is where it was.
    CommitUnknownError, PoisonedError
        It may have moved or not, or an earlier failure has poisoned the read side: reopen the queue and check.
    """
    details = {"group": handle.options.group, "start": str(start)}
    return logged(handle.path, "groups.seek", details, asker, lambda: _seek(handle, start))


def _seek(handle: QueueHandle, start: LogStart) -> Moved:
    side = handle.require_read_side()
    found: list[GroupStart] = []

    def offset() -> int:
        found.append(find_start(handle, start))
        return found[-1].offset

    def begin() -> int:
        with storage_errors("moving a group", handle.directory.group(handle.options.group)):
            return side.seek(lambda: handle.group.begin_life(offset))

    task_change = with_reserve(handle.storage, handle.directory, begin)
    return Moved(found[-1], task_change)
