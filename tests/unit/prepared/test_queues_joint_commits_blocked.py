"""A queue that is missing, or cannot be opened, keeps no other queue from its part of a commit over several queues."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from holdfast import (
    CorruptionError,
    PersistentQueue,
    QueueLockedError,
    QueueNotFoundError,
    StorageError,
)
from holdfast.persistence.filesystem.document import read_document, write_document
from holdfast.persistence.filesystem.storage import OsStorage
from holdfast.persistence.format.constants import LARGE_DOCUMENT_BYTES_MAX
from holdfast.queue.prepared.prepared_resolver import PreparedResolver
from holdfast.queue.queues_joint_commits import QueuesJointCommits
from support.builders.joint import damage_file, file_part
from support.builders.transactions import prepared_ids


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A directory of two queues."""
    for name in ("a", "b"):
        PersistentQueue(tmp_path / "data" / name, mode="exclusive").close()
    QueuesJointCommits(tmp_path / "data").create()
    return tmp_path / "data"


def parts(data: Path, application: str = "job", version: int = 1, names: str = "ab") -> list[str]:
    """Prepare a part in each of the queues."""
    part_of = QueuesJointCommits(data).part_of(application, version)
    return [file_part(OsStorage(), data / name, f"{application}-{version}-{name}", part_of) for name in names]


def decided(
    data: Path, monkeypatch: pytest.MonkeyPatch, application: str = "job", *, is_remembered: bool = True
) -> None:
    """Commit version 1, and have nothing of it come into a log."""
    names = parts(data, application)
    with monkeypatch.context() as patch:

        def failing(*_: object, **__: object) -> bool:
            raise StorageError("the disk has gone")

        patch.setattr(PreparedResolver, "settle", failing)
        with pytest.raises(StorageError, match="is decided, and"):
            QueuesJointCommits(data).commit(application, 1, names, is_remembered=is_remembered)


def payloads(data: Path, name: str) -> list[bytes]:
    """Return what a queue shows to a look, which settles nothing."""
    with PersistentQueue(data / name, mode="read_only") as queue:
        return [message.payload for message in queue.peek(99)]


def applications(data: Path) -> dict[str, object]:
    """Return the names in the document, with the parts that it still has."""
    found = json.loads((data / ".joint" / "joint.json").read_text())["applications"]
    return {name: [part for part, _ in each["parts"]] for name, each in found.items()}


def test_a_queue_that_is_open_exclusively_keeps_no_other_from_its_part(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names it and what to do; once it is closed it follows, and the application continues."""
    decided(data, monkeypatch)
    commits = QueuesJointCommits(data)
    with PersistentQueue(data / "c", mode="exclusive"):
        pass
    with monkeypatch.context() as patch:
        patch.setattr(PreparedResolver, "settle", lambda *_, **__: False)
        held = PersistentQueue(data / "a", mode="exclusive")  # and has not followed
    with held:
        with pytest.raises(StorageError, match=r"commit 1 of job is decided, and .*/a has not.*because .*commit again"):
            commits.commit("job", 1, [])
        assert payloads(data, "b") == [b"job-1-b"]
        later = parts(data, version=2, names="c")
        with pytest.raises(StorageError, match="a later one cannot be decided before that"):
            commits.commit("job", 2, later)
        with pytest.raises(QueueLockedError):
            commits.commit("other", 1, parts(data, "other"))
        assert commits.latest("other") is None
    commits.commit("job", 2, later)
    assert [payloads(data, name) for name in "abc"] == [[b"job-1-a"], [b"job-1-b"], [b"job-2-c"]]


def test_a_queue_that_fails_keeps_no_other_from_its_part(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its decision stays, though no file of it waits: what a failed sync has removed may come back."""
    commits, prepared = QueuesJointCommits(data), PersistentQueue.prepared
    names = parts(data)

    def failing_in_a(queue: PersistentQueue) -> object:
        found = prepared(queue)
        if queue.path.name == "a":
            raise StorageError("the disk has gone")
        return found

    with monkeypatch.context() as patch:
        patch.setattr(PersistentQueue, "prepared", failing_in_a)
        with pytest.raises(StorageError, match=r"commit 1 of job is decided, and .*/a has.* because the disk has gone"):
            commits.commit("job", 1, names)
    assert payloads(data, "b") == [b"job-1-b"]
    assert applications(data) == {"job": names}
    commits.commit("job", 1, [])
    assert applications(data) == {"job": []}


def test_a_queue_that_is_missing_keeps_no_other_from_its_part(
    data: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A warning says what to do; later versions are committed; a queue that comes back gets what was decided for it."""
    decided(data, monkeypatch)
    commits = QueuesJointCommits(data)
    (data / "a").rename(data.parent / "away")
    with caplog.at_level(logging.WARNING, "holdfast"):
        commits.commit("job", 1, [])
    assert "is in all queues but a, which" in caplog.text
    assert "move them back" in caplog.text
    assert payloads(data, "b") == [b"job-1-b"]
    with pytest.raises(QueueNotFoundError):
        commits.commit("job", 2, ["a/job-2-a"])
    commits.commit("job", 2, parts(data, version=2, names="b"))
    commits.commit("job", 2, [])
    assert payloads(data, "b") == [b"job-1-b", b"job-2-b"]
    assert applications(data) == {"job": ["a/job-1-a"]}
    (data.parent / "away").rename(data / "a")
    with PersistentQueue(data / "a", mode="exclusive") as queue:
        assert queue.get(timeout=5) == b"job-1-a"
        assert queue.prepared() == []
    commits.commit("job", 3, [])
    assert applications(data) == {"job": []}


def test_a_new_queue_of_a_deleted_ones_name_ends_its_part(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The part was lost with the queue that had it."""
    decided(data, monkeypatch)
    (data / "a").rename(data.parent / "deleted")
    PersistentQueue(data / "a", mode="exclusive").close()
    QueuesJointCommits(data).commit("job", 1, [])
    assert applications(data) == {"job": []}


def test_a_commit_finishes_what_dead_applications_left(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that commit once leave the document; those with a name stay, without parts."""
    decided(data, monkeypatch, "once", is_remembered=False)
    decided(data, monkeypatch, "named")
    QueuesJointCommits(data).commit("job", 1, [])
    assert applications(data) == {"job": [], "named": []}
    assert [payloads(data, name) for name in "ab"] == [[b"named-1-a", b"once-1-a"], [b"named-1-b", b"once-1-b"]]


def test_what_a_dead_application_left_in_a_missing_queue_stays_decided(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the queue is back."""
    decided(data, monkeypatch, "once", is_remembered=False)
    (data / "a").rename(data.parent / "away")
    QueuesJointCommits(data).commit("job", 1, [])
    QueuesJointCommits(data).commit("job", 2, [])
    assert applications(data) == {"job": [], "once": ["a/once-1-a"]}
    (data.parent / "away").rename(data / "a")
    QueuesJointCommits(data).commit("job", 3, [])
    assert applications(data) == {"job": []}
    assert payloads(data, "a") == [b"once-1-a"]


def test_a_dead_application_whose_queue_is_locked_keeps_no_other_from_its_commit(
    data: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged, and tried again with the next commit."""
    decided(data, monkeypatch, "once", is_remembered=False)
    with monkeypatch.context() as patch:
        patch.setattr(PreparedResolver, "settle", lambda *_, **__: False)
        held = PersistentQueue(data / "a", mode="exclusive")
    with held:
        QueuesJointCommits(data).commit("job", 1, parts(data, names="b"))
    assert "commit 1 of once in" in caplog.text
    assert payloads(data, "b") == [b"once-1-b", b"job-1-b"]
    QueuesJointCommits(data).commit("job", 2, [])
    assert payloads(data, "a") == [b"once-1-a"]


def test_the_name_of_an_application_is_compared_as_a_whole(data: Path) -> None:
    """A queue with parts of another one, whose ids begin alike, is none to be opened."""
    commits = QueuesJointCommits(data)
    parts(data, "spark-app-10", names="a")
    mine = parts(data, "spark-app-1", names="b")
    with PersistentQueue(data / "a", mode="exclusive") as held:
        commits.commit("spark-app-1", 1, mine, id_prefix="spark-app-1")
        commits.abort("spark-app-1", 2, id_prefix="spark-app-1")
        assert prepared_ids(held) == ["spark-app-10-1-a"]
        with pytest.raises(QueueLockedError):
            commits.abort("spark-app-10", 1, id_prefix="spark-app-1")
    commits.abort("spark-app-10", 1, id_prefix="spark-app-1")
    with PersistentQueue(data / "a", mode="exclusive") as queue:
        assert queue.prepared() == []


def test_a_part_that_cannot_be_read_is_left_alone(data: Path) -> None:
    """No commit can name it, and the operator is told of it by `prepared`."""
    parts(data, "job", names="a")
    damage_file(data / "a" / "prepared" / "job-1-a.batch")
    QueuesJointCommits(data).abort("job", 1, id_prefix="job")
    QueuesJointCommits(data).commit("job", 1, [], id_prefix="job")
    assert (data / "a" / "prepared" / "job-1-a.batch").exists()


@pytest.mark.parametrize("wrong", [{"id": None}, {"id": 7}, {"id": "00"}, {"applications": None}, {"applications": []}])
def test_a_document_without_its_fields_is_one_clear_error(data: Path, wrong: dict[str, object]) -> None:
    """Its checksum may be right; nothing is committed, and nothing is lost or written over."""
    names = parts(data)
    path, storage = data / ".joint" / "joint.json", OsStorage()
    whole = read_document(storage, path, LARGE_DOCUMENT_BYTES_MAX)
    fields = {name: wrong.get(name, value) for name, value in whole.items() if wrong.get(name, value) is not None}
    write_document(storage, path, fields, LARGE_DOCUMENT_BYTES_MAX)
    before, commits = path.read_bytes(), QueuesJointCommits(data)
    for asked in (lambda: commits.commit("job", 1, names), lambda: commits.latest("job") or commits.create()):
        with pytest.raises(CorruptionError, match=r"joint\.json .*restore it") as caught:
            asked()
        assert "\n" not in str(caught.value)
    with pytest.raises(CorruptionError), commits._file.locked() as held:
        held.find("job")
    assert path.read_bytes() == before or "applications" in wrong
    write_document(storage, path, whole, LARGE_DOCUMENT_BYTES_MAX)
    commits.commit("job", 1, names)
    assert [payloads(data, name) for name in "ab"] == [[b"job-1-a"], [b"job-1-b"]]
