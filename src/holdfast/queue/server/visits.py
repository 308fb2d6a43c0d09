"""Decides when a client without an owner to ask may take the side for a moment."""

from __future__ import annotations

from pathlib import Path

from holdfast.persistence.filesystem import locks
from holdfast.persistence.filesystem.storage import storage_errors
from holdfast.persistence.groups.group_files import groups_locked
from holdfast.queue.engine.queue_handle import QueueHandle


def may_visit(asking: QueueHandle, lock_path: Path) -> bool:
    """Whether the side with that lock has no owner, and no permanent owner waits for it."""
    with storage_errors("looking for an owner", lock_path):
        if locks.is_awaited(asking.storage, lock_path, asking.clock):
            return False
        with groups_locked(asking.storage, asking.directory, asking.clock):
            return locks.is_free(asking.storage, lock_path)
