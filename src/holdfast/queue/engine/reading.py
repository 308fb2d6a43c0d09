"""Makes the read side of a consumer group whose lock is held, and spends the reserve of a full disk on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from holdfast.clock import Clock
from holdfast.errors import DiskFullError
from holdfast.persistence.filesystem.layout import QueueDirectory
from holdfast.persistence.filesystem.locks import SideLock
from holdfast.persistence.filesystem.reserve import spend_reserve
from holdfast.persistence.filesystem.storage import DISK_FULL_ERRNOS, Storage
from holdfast.persistence.groups.dead_letter_notes import DeadLetterNotes
from holdfast.persistence.groups.own_group import OwnGroup
from holdfast.queue.consumer.dead_letter_log import DeadLetterLog
from holdfast.queue.consumer.pausing import Pausing
from holdfast.queue.consumer.read_side import ReadSide
from holdfast.queue.consumer.redelivery import Redelivery
from holdfast.queue.dispatch.log_cursor import GroupLog
from holdfast.queue.engine.handle_settings import HandleSettings
from holdfast.queue.options.queue_options import Options
from holdfast.queue.threads.notifier import Notifier

Begun = TypeVar("Begun")


def make_read_side(
    storage: Storage,
    clock: Clock,
    directory: QueueDirectory,
    options: Options,
    settings: HandleSettings,
    own_group: OwnGroup,
    log: GroupLog,
    lock: SideLock,
    space_available: Notifier,
) -> ReadSide:
    """Return the read side of the group that ``options`` name; ``lock`` is held until that is closed."""
    notes = DeadLetterNotes(storage, log.path, is_synced=settings.flush.syncs_every_commit)
    if log.progress_store is not None:
        notes.keep(log.progress.dead)
    said = DeadLetterLog(directory.root.name, options.group, options.redact)
    redelivery = Redelivery(settings.retry, clock.time_ns, notes, said)
    pausing = Pausing(storage, log.path, clock.time_ns, own_group.poison)
    return ReadSide(log, lock, clock, redelivery, pausing, space_available)


def with_reserve(storage: Storage, directory: QueueDirectory, begin: Callable[[], Begun]) -> Begun:
    """Begin to read; on a full disk once more, with the space reserved for this."""
    try:
        return begin()
    except (OSError, DiskFullError) as error:
        full = isinstance(error, DiskFullError) or error.errno in DISK_FULL_ERRNOS
        if not full or not spend_reserve(storage, directory):
            raise
    return begin()
