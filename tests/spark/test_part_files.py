"""Parts that tasks write into the directory of a queue, without its owner."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast import Full, PersistentQueue, Put, RecordTooLargeError, StorageError, TransactionStateError
from holdfast.clock import SystemClock
from holdfast.persistence.filesystem.storage import OsFile, OsStorage
from holdfast.queue.options.put_options import as_batch
from holdfast.queue.producer.nonces import next_nonce
from holdfast.spark.writing.part_files import PartFiles
from holdfast.spark.writing.staging import Staging


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """An empty queue."""
    PersistentQueue(tmp_path / "q", mode="exclusive").close()
    return tmp_path / "q"


@pytest.fixture
def files(path: Path) -> Iterator[PartFiles]:
    """Return what a task writes with."""
    with closing(PartFiles(path)) as files:
        yield files


def put(staging: Staging, *messages: bytes | Put) -> None:
    """Add messages, encoded as a task does."""
    payloads, headers = as_batch(messages, SystemClock())
    staging.add(payloads, headers or {})


def stage(staging: Staging, *messages: bytes | Put) -> tuple[str, ...]:
    """Stage messages as a task does; return the names of the parts."""
    put(staging, *messages)
    return staging.finish()


def staged(files: PartFiles, *messages: bytes | Put) -> tuple[str, ...]:
    """Stage messages as the only ones of a task."""
    return stage(Staging(files, "app", 1), *messages)


def batches(path: Path) -> list[str]:
    """Return what waits in the directory."""
    return sorted(each.name for each in (path / "prepared").iterdir() if each.suffix in (".batch", ".staging"))


def test_a_part_needs_no_owner_and_no_socket(path: Path, files: PartFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for a commit that names it, whichever process owns the queue by then."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("no task is a client")

    before = sorted(path.rglob("*"))
    with monkeypatch.context() as patch:
        patch.setattr(socket, "socket", refuse)
        (name,) = staged(files, b"a", Put(b"b", headers={"kind": "x"}))
    prepared = path / "prepared"
    assert sorted({*path.rglob("*")} - {*before}) == [prepared, prepared / f"{name}.batch"]
    with PersistentQueue(path, mode="exclusive") as queue:
        (found,) = queue.prepared()
        assert (found.id, found.put_count, found.damage) == (name, 2, ())
        queue.joint_commits.commit("app", 1, [name])
        assert [each.payload for each in queue.peek(9)] == [b"a", b"b"]
        assert queue.peek(9)[1].headers == {"kind": "x"}
    assert batches(path) == []
    assert files.latest("app") == 1


def test_messages_with_a_priority_come_first(path: Path, files: PartFiles) -> None:
    """The queue has to know that there are any, before the part becomes a file of the log."""
    names = staged(files, b"low", Put(b"high", priority=9))
    with PersistentQueue(path, mode="exclusive") as queue:
        queue.joint_commits.commit("app", 1, names)
        assert queue.get(timeout=0) == b"high"


def test_a_part_of_what_is_committed_is_too_late(path: Path, files: PartFiles) -> None:
    """The task that was overtaken leaves nothing."""
    staging = Staging(files, "app", 1)
    put(staging, b"slow")
    with PersistentQueue(path, mode="exclusive") as queue:
        queue.joint_commits.commit("app", 1, [])
    with pytest.raises(TransactionStateError, match="too late"):
        staging.finish()
    staging.give_up()
    assert batches(path) == []


@pytest.mark.parametrize("bounds", [{"maxsize": 3}, {"max_bytes": 2**15, "data_file_bytes": 2**14}])
def test_a_queue_that_is_full_takes_no_part(path: Path, bounds: dict[str, int]) -> None:
    """As its files show: of messages, or of bytes."""
    with PersistentQueue(path, mode="exclusive") as queue:
        queue.configure(**bounds)  # type: ignore[arg-type]  # names of settings
        queue.put_many([b"a", b"b"])
    with closing(PartFiles(path)) as files:
        staging = Staging(files, "app", 1)
        put(staging, b"c", bytes(2**15))
        with pytest.raises(Full):
            staging.finish()
        staging.give_up()
        assert batches(path) == []
        with PersistentQueue(path, mode="exclusive") as queue:
            queue.configure(reset=list(bounds))
    with closing(PartFiles(path)) as files:
        assert len(staged(files, b"c", bytes(2**15))) == 1


def test_a_part_that_could_never_fit_says_so(path: Path) -> None:
    """Nor does a message that is larger than the queue's bound."""
    with PersistentQueue(path, mode="exclusive") as queue:
        queue.configure(maxsize=1, record_bytes_max=10)
    with closing(PartFiles(path)) as files:
        with pytest.raises(RecordTooLargeError, match="maxsize=1"):
            staged(files, b"a", b"b")
        with pytest.raises(RecordTooLargeError, match="11"):
            staged(files, bytes(11))


@pytest.mark.parametrize(
    ("kind", "method", "calls"),
    [
        (OsStorage, "make_directory", 1),
        (OsStorage, "sync_directory", 1),
        (OsStorage, "sync_directory", 2),
        (OsStorage, "rename", 1),
        (OsFile, "sync", 1),
        (OsFile, "write_at", 1),
    ],
)
def test_a_disk_that_refuses_leaves_no_part(
    path: Path, files: PartFiles, monkeypatch: pytest.MonkeyPatch, kind: Any, method: str, calls: int
) -> None:
    """The next attempt of the task works."""
    original, left = getattr(kind, method), [calls]

    def refusing(*arguments: Any, **options: Any) -> Any:
        left[0] -= 1
        if not left[0]:
            raise OSError(errno.EIO, "refused")
        return original(*arguments, **options)

    staging = Staging(files, "app", 1)
    with monkeypatch.context() as patch:
        patch.setattr(kind, method, refusing)
        with pytest.raises(StorageError):
            stage(staging, b"a")
    staging.give_up()
    assert not (path / "prepared").exists() or batches(path) == []
    assert len(staged(files, b"a")) == 1


def test_a_part_that_cannot_be_removed_is_logged(
    path: Path, files: PartFiles, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The joint commit, or its abort, discards it."""
    staging = Staging(files, "app", 1, part_bytes=1)
    put(staging, b"a")

    def refuse(*_: Any) -> None:
        raise OSError(errno.EIO, "refused")

    monkeypatch.setattr(OsStorage, "remove", refuse)
    with caplog.at_level("INFO", "holdfast"):
        staging.give_up()
    assert "was not let go by its task" in caplog.text


def test_an_unfinished_part_of_a_dead_task_goes_with_the_next_opening(path: Path, files: PartFiles) -> None:
    """One whose task lives stays."""
    writer = files.begin(next_nonce())
    PersistentQueue(path, mode="exclusive").close()
    assert batches(path) == [writer.path.name]
    writer.close()
    PersistentQueue(path, mode="exclusive").close()
    assert batches(path) == []
