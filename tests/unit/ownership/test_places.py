"""To which directory a queue belongs, and where the owner's files are."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from holdfast import ConfigError, PersistentQueue, verify
from holdfast.persistence.filesystem.storage import OsStorage
from holdfast.persistence.ownership.owner_lock import OwnerLock
from holdfast.persistence.ownership.places import ownership_root
from holdfast.persistence.ownership.sessions import SessionFile
from holdfast.service.queue_service import QueueService
from support.storages.refusals import refusing
from support.storages.simulated_storage import SimulatedStorage

SERVICE = Path("/service")
QUEUE = SERVICE / "orders"
OS = OsStorage()


@pytest.fixture
def storage() -> SimulatedStorage:
    """Return a disk with the directory of a queue in another one."""
    storage = SimulatedStorage()
    storage.make_directory(SERVICE)
    storage.make_directory(QUEUE)
    return storage


def test_a_queue_alone_owns_itself(storage: SimulatedStorage) -> None:
    """Its own files do not count, nor that it is missing."""
    assert ownership_root(storage, QUEUE) == QUEUE
    assert OwnerLock.try_take(storage, QUEUE) is not None
    assert ownership_root(storage, QUEUE) == QUEUE
    assert ownership_root(storage, Path("/missing/queue")) == Path("/missing/queue")


def test_a_queue_of_a_service_belongs_to_the_service(storage: SimulatedStorage) -> None:
    """Also one that is not made yet, and one with an owner's files of its own from before."""
    assert OwnerLock.try_take(storage, QUEUE) is not None
    assert OwnerLock.try_take(storage, SERVICE) is not None
    assert ownership_root(storage, QUEUE) == SERVICE
    assert ownership_root(storage, SERVICE / "new") == SERVICE


def test_a_queue_inside_another_queue_is_not_of_a_service(storage: SimulatedStorage) -> None:
    """The parent has ``.owner/`` because it is a queue itself."""
    assert OwnerLock.try_take(storage, SERVICE) is not None
    storage.open(SERVICE / "queue.json", create=True).close()
    assert ownership_root(storage, QUEUE) == QUEUE


def test_what_another_user_has_put_beside_a_queue_says_nothing(storage: SimulatedStorage) -> None:
    """In /tmp everybody can make it."""
    storage.make_directory(SERVICE / ".owner")
    storage.owner = os.geteuid() + 1
    assert ownership_root(storage, QUEUE) == QUEUE


@pytest.mark.parametrize("kind", ["link", "file"])
def test_a_name_that_is_no_directory_says_nothing(tmp_path: Path, kind: str) -> None:
    """Only an owner makes the directory."""
    if kind == "link":
        (tmp_path / ".owner").symlink_to(tmp_path)
    else:
        (tmp_path / ".owner").touch()
    assert ownership_root(OS, tmp_path / "queue") == tmp_path / "queue"


@pytest.mark.parametrize("verb", ["directory_status", "open"])
def test_a_disk_that_refuses_is_an_error(storage: SimulatedStorage, verb: str) -> None:
    """A guess could give two owners."""
    storage.make_directory(SERVICE / ".owner")
    with refusing(storage, verb, error=errno.EIO), pytest.raises(OSError, match="Input/output"):
        ownership_root(storage, QUEUE)


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
        with PersistentQueue(root) as queue:
            queue.put(b"x")
        assert verify(root).ok
        lock.release()
        service.delete_queue("orders")
        assert not root.exists()
        assert not [name for name in os.listdir(tmp_path) if "orders" in name]
