"""File systems that several computers share, or that nobody knows, are refused unless somebody says otherwise."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from holdfast import ConfigError, PersistentQueue, QueueNotFoundError, QueueService, StorageError, verify
from support.storages.faults import FaultPlan
from support.storages.real_trees import tree
from support.storages.simulated_storage import SimulatedStorage

ROOT = Path("/above/queue")
REFUSED = ["nfs", "nfs4", "cifs", "smb3", "9p", "afs", "ceph", "lustre", "gpfs", "fuse", "fuse.sshfs", "virtiofs"]
LOCAL = ["", "ext4", "xfs", "btrfs", "tmpfs", "zfs", "f2fs", "overlay", "fuseblk", "fuse.fuse-overlayfs", "new-one"]
MODES = ["exclusive", "shared"]


def storage_of(kind: str) -> SimulatedStorage:
    """Return a disk that says it is of a kind."""
    storage = SimulatedStorage()
    storage.kind = kind
    return storage


def disk_is(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Have the system say that all files are on a disk of a kind."""
    monkeypatch.setattr("holdfast.persistence.filesystem.storage.OsStorage.file_system", lambda self, path: kind)


@pytest.mark.parametrize("kind", REFUSED)
def test_a_shared_or_unknown_file_system_is_refused_before_anything_is_made(kind: str) -> None:
    """The error names the kind, and what to do."""
    storage = storage_of(kind)
    with pytest.raises(ConfigError, match=rf"of the kind {kind}, .* local disk; .* any_file_system=True") as caught:
        PersistentQueue(ROOT, mode="exclusive", storage=storage)
    assert caught.value.file_system == kind
    assert storage.mutation_count == 0


@pytest.mark.parametrize("kind", LOCAL)
def test_a_local_file_system_is_not_asked_about(kind: str) -> None:
    """Neither is one of which the system says nothing, or a kind that is new."""
    with PersistentQueue(ROOT, mode="exclusive", storage=storage_of(kind)) as queue:
        assert queue.put(b"kept") == 0


@pytest.mark.parametrize("mode", MODES)
def test_a_queue_that_was_moved_there_is_refused_in_each_mode_that_writes(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is in it stays as it is, and can be looked at and verified."""
    with PersistentQueue(tmp_path / "queue", mode="exclusive") as queue:
        queue.put(b"kept")
    disk_is(monkeypatch, "nfs4")
    before = tree(tmp_path)
    with pytest.raises(ConfigError, match="nfs4"):
        PersistentQueue(tmp_path / "queue", mode=mode)
    with PersistentQueue(tmp_path / "queue", mode="read_only") as queue:
        assert [message.payload for message in queue.peek(1)] == [b"kept"]
    assert verify(tmp_path / "queue").ok
    assert tree(tmp_path) == before


def test_sharing_a_queue_makes_nothing_there_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kind is asked for before anything is made."""
    disk_is(monkeypatch, "fuse.sshfs")
    with pytest.raises(ConfigError, match="any_file_system=True"):
        PersistentQueue(tmp_path / "above" / "queue", mode="shared")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("mode", MODES)
def test_whoever_means_it_may(tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By an option, or by a variable of the environment that is ``true``; the owner behind a handle may too."""
    disk_is(monkeypatch, "fuse.sshfs")
    with PersistentQueue(tmp_path / "queue", mode=mode, any_file_system=True) as queue:
        assert queue.put(b"kept") == 0
        assert queue.get(timeout=0) == b"kept"
    monkeypatch.setenv("HOLDFAST_ANY_FILE_SYSTEM", "false")
    with pytest.raises(ConfigError, match="HOLDFAST_ANY_FILE_SYSTEM=true"):
        PersistentQueue(tmp_path / "queue", mode=mode)
    monkeypatch.setenv("HOLDFAST_ANY_FILE_SYSTEM", "true")
    PersistentQueue(tmp_path / "queue", mode=mode).close()


def test_an_operator_may_say_it_for_a_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In ``holdfast.toml``."""
    disk_is(monkeypatch, "nfs")
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
        PersistentQueue(ROOT, mode="exclusive", storage=storage)
    storage.faults = FaultPlan(1, errno.ENOENT, forever=True, verbs=frozenset({"file_system"}))
    PersistentQueue(ROOT, mode="exclusive", storage=storage).close()
    with pytest.raises(QueueNotFoundError):
        PersistentQueue(Path("/none"), mode="read_only", storage=storage)
