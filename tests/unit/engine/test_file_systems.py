"""File systems that several computers share, or that nobody knows, are refused unless somebody says otherwise."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from holdfast import ConfigError, PersistentQueue, QueueNotFoundError, QueueService, StorageError, verify
from support.storages.faults import FaultPlan
from support.storages.simulated_storage import SimulatedStorage

ROOT = Path("/above/queue")
REFUSED = ["nfs", "nfs4", "cifs", "smb3", "9p", "afs", "ceph", "lustre", "gpfs", "fuse", "fuse.sshfs", "virtiofs"]
LOCAL = ["", "ext4", "xfs", "btrfs", "tmpfs", "zfs", "f2fs", "overlay", "fuseblk", "fuse.fuse-overlayfs", "new-one"]
MODES = ["exclusive", "produce", "consume", "submit"]


def storage_of(kind: str) -> SimulatedStorage:
    """Return a disk that says it is of a kind."""
    storage = SimulatedStorage()
    storage.kind = kind
    return storage


@pytest.mark.parametrize("kind", REFUSED)
def test_a_shared_or_unknown_file_system_is_refused_before_anything_is_made(kind: str) -> None:
    """The error names the kind, and what to do."""
    storage = storage_of(kind)
    with pytest.raises(ConfigError, match=rf"of the kind {kind}, .* local disk; .* any_file_system=True") as caught:
        PersistentQueue(ROOT, storage=storage)
    assert caught.value.file_system == kind
    assert storage.mutation_count == 0


@pytest.mark.parametrize("kind", LOCAL)
def test_a_local_file_system_is_not_asked_about(kind: str) -> None:
    """Neither is one of which the system says nothing, or a kind that is new."""
    with PersistentQueue(ROOT, storage=storage_of(kind)) as queue:
        assert queue.put(b"kept") == 0


@pytest.mark.parametrize("mode", MODES)
def test_a_queue_that_was_moved_there_is_refused_in_each_mode_that_writes(mode: str) -> None:
    """Whatever is in it stays as it is, and can be looked at and verified."""
    storage = SimulatedStorage()
    with PersistentQueue(ROOT, storage=storage) as queue:
        queue.put(b"kept")
    storage.kind = "nfs4"
    before = storage.mutation_count
    with pytest.raises(ConfigError, match="nfs4"):
        PersistentQueue(ROOT, mode=mode, storage=storage)
    with PersistentQueue(ROOT, mode="read_only", storage=storage) as queue:
        assert [message.payload for message in queue.peek(1)] == [b"kept"]
    assert verify(ROOT, storage=storage).ok
    assert storage.mutation_count == before


@pytest.mark.parametrize("mode", MODES)
def test_whoever_means_it_may(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By an option, or by a variable of the environment that is ``true``."""
    storage = storage_of("fuse.sshfs")
    with PersistentQueue(ROOT, storage=storage, any_file_system=True) as queue:
        queue.put(b"kept")
    monkeypatch.setenv("HOLDFAST_ANY_FILE_SYSTEM", "false")
    with pytest.raises(ConfigError, match="HOLDFAST_ANY_FILE_SYSTEM=true"):
        PersistentQueue(ROOT, mode=mode, storage=storage)
    monkeypatch.setenv("HOLDFAST_ANY_FILE_SYSTEM", "true")
    PersistentQueue(ROOT, mode=mode, storage=storage).close()


def test_who_submits_has_a_visitor_that_may_too() -> None:
    """It takes the write side for a moment, with the same options."""
    storage = storage_of("fuse.sshfs")
    with PersistentQueue(ROOT, mode="submit", storage=storage, any_file_system=True) as queue:
        assert queue.put(b"kept", timeout=60) == 0


def test_an_operator_may_say_it_for_a_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In ``holdfast.toml``."""
    monkeypatch.setattr("holdfast.persistence.filesystem.storage.OsStorage.file_system", lambda self, path: "nfs")
    with QueueService(tmp_path) as service, pytest.raises(ConfigError, match="of the kind nfs"):
        service.queue("orders")
    (tmp_path / "holdfast.toml").write_text("[queues.orders]\nany_file_system = true\n")
    with QueueService(tmp_path) as service:
        service.queue("orders").put({"id": 1})


def test_a_disk_that_refuses_to_say_it_fails_the_opening() -> None:
    """As any other error of the disk; a directory that is not there yet is asked about above."""
    storage = storage_of("ext4")
    storage.faults = FaultPlan(1, errno.EIO, verbs=frozenset({"file_system"}))
    with pytest.raises(StorageError, match="opening the queue"):
        PersistentQueue(ROOT, storage=storage)
    storage.faults = FaultPlan(1, errno.ENOENT, forever=True, verbs=frozenset({"file_system"}))
    PersistentQueue(ROOT, storage=storage).close()
    with pytest.raises(QueueNotFoundError):
        PersistentQueue(Path("/none"), mode="read_only", storage=storage)
