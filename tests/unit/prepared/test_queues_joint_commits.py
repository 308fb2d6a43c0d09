"""Joint commits over several queues: all parts in every queue, or none; once; and no queue is left behind unsaid."""

from __future__ import annotations

import errno
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    ConfigError,
    CorruptionError,
    PersistentQueue,
    QueueNotFoundError,
    StorageError,
    TransactionNotFoundError,
    TransactionStateError,
    verify,
)
from holdfast.persistence.format.commit_record import PartOf
from holdfast.persistence.outcomes.joint_file import JointFile
from holdfast.persistence.outcomes.shared_joint_file import SharedJointFile, named_part, part_name
from holdfast.queue import queues_joint_commits
from holdfast.queue.prepared.parts import check_may_prepare
from holdfast.queue.prepared.prepared_resolver import PreparedResolver
from holdfast.queue.queues_joint_commits import QueuesJointCommits
from support.builders.clocks import FakeClock
from support.builders.joint import damage, file_part
from support.builders.transactions import prepared_ids, waiting
from support.processes.log_handlers import text_said
from support.storages.faults import FaultPlan
from support.storages.refusals import refusing
from support.storages.simulated_storage import SimulatedStorage

DATA = Path("/data")
A, B = DATA / "a", DATA / "b"
DOCUMENT = DATA / ".joint" / "joint.json"


@pytest.fixture
def storage() -> SimulatedStorage:
    """A disk with two queues."""
    disk = SimulatedStorage()
    for path in (A, B):
        opened(disk, path).close()
    return disk


def opened(storage: SimulatedStorage, path: Path) -> PersistentQueue:
    """Open one of the queues."""
    return PersistentQueue(path, mode="exclusive", storage=storage, clock=FakeClock())


def commits_of(storage: SimulatedStorage) -> QueuesJointCommits:
    """Return what commits in both, its document made."""
    made = QueuesJointCommits(DATA, storage, FakeClock(), mode="exclusive")
    made.create()
    return made


def text_of(storage: SimulatedStorage) -> bytes:
    """Return the document as it is written."""
    with storage.open(DOCUMENT, writable=False) as file:
        return file.read_at(file.size(), 0)


def in_both(storage: SimulatedStorage) -> dict[str, list[bytes]]:
    """Return the messages of both queues."""
    found = {}
    for path in (A, B):
        with opened(storage, path) as queue:
            found[path.name] = waiting(queue)
    return found


def parts(storage: SimulatedStorage, commits: QueuesJointCommits, version: int = 1) -> list[str]:
    """Prepare two parts in the one queue, and one in the other."""
    part_of = commits.part_of("job", version)
    return [file_part(storage, path, f"{name}-{version}", part_of) for path, name in ((A, "x"), (B, "y"), (A, "z"))]


def decided(storage: SimulatedStorage, commits: QueuesJointCommits, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commit version 1, and have nothing of it come into a log."""
    names = parts(storage, commits)
    with monkeypatch.context() as patch:

        def failing(*_: object) -> bool:
            raise StorageError("the disk has gone")

        patch.setattr(PreparedResolver, "settle", failing)
        with pytest.raises(StorageError, match=r"commit 1 of job is decided, and .* has not put transaction"):
            commits.commit("job", 1, names)
    assert commits.latest("job") == 1


def test_parts_of_all_queues_are_committed_in_their_order(storage: SimulatedStorage) -> None:
    """Those of each queue as they are named; nothing is prepared any more."""
    commits = commits_of(storage)
    x, y, z = parts(storage, commits)
    assert commits.latest("job") is None
    commits.commit("job", 1, [z, y, x])
    assert in_both(storage) == {"a": [b"z-1", b"x-1"], "b": [b"y-1"]}
    assert commits.latest("job") == 1
    assert json.loads(text_of(storage))["applications"]["job"]["parts"] == []


def test_a_version_is_committed_once(storage: SimulatedStorage) -> None:
    """Again, and an earlier one, changes nothing; parts of it that were prepared since are aborted if told."""
    commits = commits_of(storage)
    commits.commit("job", 2, parts(storage, commits, 2))
    commits.commit("job", 2, [])
    late = file_part(storage, A, "late", commits.part_of("job", 1))
    commits.commit("job", 1, [late], id_prefix="late")
    assert in_both(storage) == {"a": [b"x-2", b"z-2"], "b": [b"y-2"]}
    with opened(storage, A) as queue:
        assert prepared_ids(queue) == []
    with opened(storage, A) as queue, pytest.raises(TransactionStateError, match="is too late"):
        check_may_prepare(queue._handle, "later", commits.part_of("job", 2))


def test_parts_that_no_commit_names_are_aborted_with_it(storage: SimulatedStorage) -> None:
    """In queues that have no other part, too: their ids begin so."""
    commits = commits_of(storage)
    x, _, _ = parts(storage, commits)
    storage.open(DATA / "notes.txt", create=True).close()  # no queue
    commits.commit("job", 1, [x], id_prefix="y-")
    assert in_both(storage) == {"a": [b"x-1"], "b": []}
    assert prepared_of(storage, B) == []


def prepared_of(storage: SimulatedStorage, path: Path) -> list[str]:
    """Return what is in doubt in a queue."""
    with opened(storage, path) as queue:
        return prepared_ids(queue)


def test_of_many_queues_some_are_open_at_a_time(storage: SimulatedStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process has so many file descriptors. All of them follow, and all of them abort."""
    monkeypatch.setattr(queues_joint_commits, "_OPEN_MAX", 2)
    paths = [DATA / name for name in "abcde"]
    for path in paths[2:]:
        opened(storage, path).close()
    handles: list[PersistentQueue] = []
    open_one = QueuesJointCommits._opened

    def watched(commits: QueuesJointCommits, name: str) -> PersistentQueue:
        assert len([each for each in handles if "closed" not in repr(each)]) < 2
        handles.append(open_one(commits, name))
        return handles[-1]

    monkeypatch.setattr(QueuesJointCommits, "_opened", watched)
    commits = commits_of(storage)
    commits.commit("job", 1, [file_part(storage, path, f"{path.name}-1", commits.part_of("job", 1)) for path in paths])
    assert len(handles) == 10
    for path in paths:
        file_part(storage, path, f"{path.name}-2", commits.part_of("job", 2))
    for name in "abcde":
        commits.abort("job", 2, id_prefix=f"{name}-")
    for path in paths:
        with opened(storage, path) as queue:
            assert (waiting(queue), prepared_ids(queue)) == ([b"%s-1" % path.name.encode()], [])


def test_an_application_that_commits_once_is_forgotten(storage: SimulatedStorage) -> None:
    """It takes no place in the document."""
    commits = commits_of(storage)
    commits.commit("job", 1, parts(storage, commits), is_remembered=False)
    assert commits.latest("job") is None
    assert json.loads(text_of(storage))["applications"] == {}
    assert in_both(storage)["b"] == [b"y-1"]


@pytest.mark.parametrize("lost", ["a/x-1", "b/y-1"])
def test_a_missing_part_of_any_queue_is_an_error_and_nothing_is_committed(storage: SimulatedStorage, lost: str) -> None:
    """The parts of the other queue stay in doubt."""
    commits = commits_of(storage)
    names = parts(storage, commits)
    queue, transaction_id = named_part(lost)
    assert part_name(queue, transaction_id) == lost
    storage.remove(DATA / queue / "prepared" / f"{transaction_id}.batch")
    with pytest.raises(TransactionNotFoundError, match=f"no transaction '{transaction_id}' is prepared in .*{queue}"):
        commits.commit("job", 1, names)
    assert in_both(storage) == {"a": [], "b": []}
    assert commits.latest("job") is None


def test_a_part_of_another_commit_is_none_of_this_one(storage: SimulatedStorage) -> None:
    """Of another version, of the queue's own commits, or of another document."""
    commits = commits_of(storage)
    for number, part_of in enumerate(
        (commits.part_of("job", 2), PartOf("job", 1), PartOf("job", 1, "../.joint", bytes(16)))
    ):
        name = file_part(storage, A, f"other-{number}", part_of)
        with pytest.raises(TransactionNotFoundError):
            commits.commit("job", 1, [name])
    assert in_both(storage)["a"] == []


def test_a_damaged_part_is_an_error_and_nothing_is_committed(storage: SimulatedStorage) -> None:
    """It says what to do."""
    commits = commits_of(storage)
    names = parts(storage, commits)
    damage(storage, B / "prepared" / "y-1.batch", b"y-1")
    with pytest.raises(CorruptionError, match=r"nothing was committed\. Abort it"):
        commits.commit("job", 1, names)
    assert in_both(storage) == {"a": [], "b": []}


def test_a_queue_that_is_missing_is_an_error_and_none_is_made(storage: SimulatedStorage) -> None:
    """Before anything is decided."""
    commits = commits_of(storage)
    names = parts(storage, commits)
    with pytest.raises(QueueNotFoundError):
        commits.commit("job", 1, [*names, "c/w-1"])
    assert "c" not in storage.list(DATA)
    assert commits.latest("job") is None
    with pytest.raises(ConfigError, match="is no part of"):
        commits.commit("job", 1, ["w-1"])


def test_a_directory_whose_name_may_be_lost_is_made_anew(storage: SimulatedStorage) -> None:
    """A second sync could succeed over the lost name."""
    commits = QueuesJointCommits(DATA, storage, FakeClock(), mode="exclusive")
    with refusing(storage, "sync_directory", "/data"), pytest.raises(StorageError):
        commits.create()
    assert ".joint" not in storage.list(DATA)
    commits.create()
    assert storage.crash_dropping_unsynced().list(DATA) == [".joint", "a", "b"]


def test_a_commit_without_parts_is_one(storage: SimulatedStorage) -> None:
    """As that of a DataFrame without rows."""
    commits = commits_of(storage)
    commits.commit("job", 1, [])
    assert commits.latest("job") == 1


def test_a_part_whose_file_has_no_durable_name_in_the_log_stays_decided(storage: SimulatedStorage) -> None:
    """It has left `prepared/`, and a loss of power brings it back there: then its queue follows once more."""
    commits = commits_of(storage)
    for path in (A, B):
        with opened(storage, path) as queue:
            queue.configure(data_file_bytes=16 * 2**10)
    names = [file_part(storage, path, "x", commits.part_of("job", 1), [bytes(5000)]) for path in (A, B)]
    with (
        refusing(storage, "sync_directory", "b/data", count=1, after=1),  # an opening of the queue is the first
        pytest.raises(StorageError, match=r"commit 1 of job is decided, and .*b has not put .* because"),
    ):
        commits.commit("job", 1, names)
    left = storage.crash_dropping_unsynced()
    assert in_both(left) == {"a": [bytes(5000)], "b": [bytes(5000)]}
    commits_of(left).commit("job", 1, names)
    assert in_both(left.crash_dropping_unsynced()) == {"a": [bytes(5000)], "b": [bytes(5000)]}


# -- Aborts ------------------------------------------------------------------------------------------------------------


def test_an_abort_drops_the_parts_of_all_queues(storage: SimulatedStorage) -> None:
    """Whichever they are; the version can be committed later, with other parts."""
    commits = commits_of(storage)
    parts(storage, commits)
    commits.abort("job", 1, id_prefix="x")  # one is enough to find a queue, and all of them go
    assert (prepared_of(storage, A), prepared_of(storage, B)) == ([], ["y-1"])
    commits.abort("job", 1, id_prefix="y")
    assert (prepared_of(storage, A), prepared_of(storage, B)) == ([], [])
    commits.commit("job", 1, parts(storage, commits))
    commits.abort("job", 1, id_prefix="")
    commits.abort("job", 9, id_prefix="x")
    assert in_both(storage) == {"a": [b"x-1", b"z-1"], "b": [b"y-1"]}


def test_an_abort_leaves_no_part_that_cannot_be_read_just_then(storage: SimulatedStorage) -> None:
    """Its queue looks again; if it cannot either, the abort raises, and the other queue has aborted its part."""
    commits = commits_of(storage)
    part_of = commits.part_of("job", 1)
    for path in (A, B):
        file_part(storage, path, "x", part_of)
    with refusing(storage, "read_at", "a/prepared/x.batch", count=1):
        commits.abort("job", 1, id_prefix="x")
    assert (prepared_of(storage, A), prepared_of(storage, B)) == ([], [])
    for path in (A, B):
        file_part(storage, path, "x", part_of)
    with refusing(storage, "read_at", "a/prepared/x.batch"), pytest.raises(StorageError):
        commits.abort("job", 1, id_prefix="x")
    assert (prepared_of(storage, A), prepared_of(storage, B)) == (["x"], [])


def test_an_abort_of_what_is_decided_finishes_it(storage: SimulatedStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark aborts behind a commit that raised."""
    commits = commits_of(storage)
    decided(storage, commits, monkeypatch)
    for prefix in ("x", "y"):
        commits.abort("job", 1, id_prefix=prefix)
    assert in_both(storage) == {"a": [b"x-1", b"z-1"], "b": [b"y-1"]}


def test_what_dead_writes_left_is_collected_by_age(storage: SimulatedStorage) -> None:
    """With the lock of the document; what is decided is not touched."""
    commits = commits_of(storage)
    parts(storage, commits)
    with opened(storage, A) as queue:
        queue.joint_commits.collect(0, id_prefix="z")
        assert prepared_ids(queue) == ["x-1"]
        queue.joint_commits.collect(10**12)
        assert prepared_ids(queue) == ["x-1"]
        queue.joint_commits.collect(0)
        assert prepared_ids(queue) == []


def test_a_part_whose_document_is_gone_stays_in_doubt_until_it_is_aborted(storage: SimulatedStorage) -> None:
    """No other document at that path decides it."""
    commits = commits_of(storage)
    parts(storage, commits)
    storage.remove(DOCUMENT)
    assert prepared_of(storage, A) == ["x-1", "z-1"]
    with pytest.raises(ConfigError, match="has no document of joint commits"):
        commits.commit("job", 1, [])
    commits.create()
    commits.commit("job", 1, [])
    assert prepared_of(storage, A) == ["x-1", "z-1"]
    with opened(storage, A) as queue:
        queue.joint_commits.collect(0)  # the queue may have been moved alone, and be moved back
        assert prepared_ids(queue) == ["x-1", "z-1"]
        queue.joint_commits.abort("job", 1)
        assert prepared_ids(queue) == []


def test_a_commit_of_one_queue_leaves_parts_of_several_alone(storage: SimulatedStorage) -> None:
    """Also under the same name."""
    commits = commits_of(storage)
    parts(storage, commits)
    with opened(storage, A) as queue:
        queue.joint_commits.commit("job", 5, [])
        assert prepared_ids(queue) == ["x-1", "z-1"]
    with opened(storage, A) as queue:
        assert prepared_ids(queue) == ["x-1", "z-1"]


def test_verify_reads_the_document_of_parts_that_wait(
    storage: SimulatedStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says what is decided, and what is damaged there."""
    commits = commits_of(storage)
    decided(storage, commits, monkeypatch)
    report = verify(A, storage=storage)
    assert report.ok
    assert any("joint commit 1 of job is decided, and 2 of its parts wait" in note for note in report.notes)
    damage(storage, DOCUMENT)
    (found,) = verify(A, storage=storage).damage
    assert found.path == DOCUMENT


def test_an_operator_is_told_which_document_decides(storage: SimulatedStorage) -> None:
    """And may decide alone, by force."""
    parts(storage, commits_of(storage))
    with opened(storage, A) as queue:
        with pytest.raises(TransactionStateError, match=r"the document in \.\./\.joint decides it"):
            queue.commit_prepared("x-1")
        queue.abort_prepared("x-1", force=True)
        assert prepared_ids(queue) == ["z-1"]


# -- Crashes and faults ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [A, B])
def test_each_queue_follows_at_its_next_opening(
    storage: SimulatedStorage, monkeypatch: pytest.MonkeyPatch, first: Path
) -> None:
    """By itself, in any order; what no commit names is gone then."""
    commits = commits_of(storage)
    file_part(storage, B, "loser", commits.part_of("job", 1))
    decided(storage, commits, monkeypatch)
    storage = storage.crash_dropping_unsynced()
    opened(storage, first).close()
    storage = storage.crash_dropping_unsynced()
    assert in_both(storage) == {"a": [b"x-1", b"z-1"], "b": [b"y-1"]}
    assert (prepared_of(storage, A), prepared_of(storage, B)) == ([], [])
    again = commits_of(storage)
    again.commit("job", 1, [])
    assert json.loads(text_of(storage))["applications"]["job"]["parts"] == []


def test_the_next_version_waits_for_the_queues_of_the_one_before(
    storage: SimulatedStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would take its place in the document."""
    commits = commits_of(storage)
    decided(storage, commits, monkeypatch)
    names = parts(storage, commits, 2)
    with monkeypatch.context() as patch:

        def failing(*_: object) -> bool:
            raise StorageError("the disk has gone")

        patch.setattr(PreparedResolver, "settle", failing)
        with pytest.raises(StorageError, match="a later one cannot be decided before that"):
            commits.commit("job", 2, names)
    assert commits.latest("job") == 1
    commits.commit("job", 2, names)
    assert in_both(storage) == {"a": [b"x-1", b"z-1", b"x-2", b"z-2"], "b": [b"y-1", b"y-2"]}


def test_a_document_that_cannot_be_read_leaves_everything_in_doubt(
    storage: SimulatedStorage, caplog: pytest.LogCaptureFixture
) -> None:
    """It is an error that names it; a queue opens all the same, and says so in its log."""
    commits = commits_of(storage)
    names = parts(storage, commits)
    damage(storage, DOCUMENT)
    with pytest.raises(CorruptionError, match=r"joint\.json"):
        commits.commit("job", 1, names)
    with caplog.at_level(logging.ERROR, "holdfast"):
        assert prepared_of(storage, A) == ["x-1", "z-1"]
    assert "joint.json" in text_said(caplog)
    with opened(storage, A) as queue, pytest.raises(CorruptionError):
        queue.joint_commits.abort("job", 1)


def test_the_end_of_a_commit_that_another_one_has_replaced_is_none(storage: SimulatedStorage) -> None:
    """Only what is in the document is ended."""
    commits = commits_of(storage)
    commits.commit("job", 1, parts(storage, commits))
    file = SharedJointFile(storage, FakeClock(), DOCUMENT.parent)
    before = file.find("job")
    commits.commit("job", 2, parts(storage, commits, 2))
    assert before is not None
    with file.locked() as held:
        held.end(before)
    assert commits.latest("job") == 2


def test_two_processes_make_one_document(storage: SimulatedStorage) -> None:
    """The one that comes second takes the id of the first."""
    first, second = (SharedJointFile(storage, FakeClock(), DOCUMENT.parent) for _ in range(2))
    made: list[bytes] = []
    locked = second.locked
    second.locked = lambda: (made.append(first.create()), locked())[1]  # type: ignore[method-assign]
    assert [second.create()] == made


def test_the_making_of_a_document_that_fails_is_an_error(storage: SimulatedStorage) -> None:
    """And is tried again."""
    storage.faults = FaultPlan(1, errno.EIO)
    with pytest.raises(StorageError):
        SharedJointFile(storage, FakeClock(), DOCUMENT.parent).create()
    storage.faults = None
    commits_of(storage)


def test_a_document_that_is_deleted_while_queues_are_opened_decides_nothing(
    storage: SimulatedStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does another one that has its place: its parts are not these."""
    commits = commits_of(storage)
    names = parts(storage, commits)
    locked = SharedJointFile.locked

    def replaced(self: SharedJointFile) -> Any:
        monkeypatch.undo()
        storage.remove(DOCUMENT)
        commits.create()
        return locked(self)

    monkeypatch.setattr(SharedJointFile, "locked", replaced)
    with pytest.raises(ConfigError, match="was deleted meanwhile; nothing was committed"):
        commits.commit("job", 1, names)
    assert in_both(storage) == {"a": [], "b": []}
    assert commits.latest("job") is None


def test_a_commit_counts_though_the_document_cannot_be_shortened(
    storage: SimulatedStorage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its caller would else write again, under another name."""
    commits = commits_of(storage)
    names = parts(storage, commits)

    def refused(*_: object, **__: object) -> None:
        raise StorageError("no space left")

    monkeypatch.setattr(JointFile, "end", refused)
    commits.commit("job", 1, names)
    assert in_both(storage) == {"a": [b"x-1", b"z-1"], "b": [b"y-1"]}
    assert "stays in the document until the next one: no space left" in text_said(caplog)
