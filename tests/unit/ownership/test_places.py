"""The owner's files beside those of the queue."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast import ConfigError, PersistentQueue, verify
from holdfast.persistence.filesystem.storage import OsStorage
from holdfast.persistence.ownership.owner_lock import OwnerLock
from holdfast.persistence.ownership.sessions import SessionFile
from holdfast.service.queue_service import QueueService

OS = OsStorage()


def test_the_owners_files_are_no_queue_of_a_service(tmp_path: Path) -> None:
    """Neither in its list nor by name, and a queue that is opened beside them is whole."""
    assert OwnerLock.try_take(OS, tmp_path) is not None
    (tmp_path / ".owner" / "queue.json").write_text("{}")
    with QueueService(tmp_path) as service:
        service.queue("orders").put({"a": 1})
        assert list(service.queues) == ["orders"]
        with pytest.raises(ConfigError, match=r"\.owner"):
            service.queue(".owner")


def test_a_queue_with_an_owner_is_verified_and_deleted_as_any_other(tmp_path: Path) -> None:
    """Its lock, its session files and its socket go with it; a queue whose making was cut off there is made."""
    with QueueService(tmp_path) as service:
        root = tmp_path / "orders"
        root.mkdir()
        lock = OwnerLock.try_take(OS, root)
        assert lock is not None
        SessionFile.begin(OS, root).end()
        with PersistentQueue(root, mode="exclusive") as queue:
            queue.put(b"x")
        assert verify(root).ok
        lock.release()
        service.delete_queue("orders")
        assert not root.exists()
        assert not [name for name in os.listdir(tmp_path) if "orders" in name]
