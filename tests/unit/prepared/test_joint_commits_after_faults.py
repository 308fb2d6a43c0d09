"""Joint commits that a fault has interrupted while the queue stays open: whoever comes next ends them, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast import DiskFullError, PersistentQueue, StorageError
from holdfast.persistence.outcomes.prepared_files import PreparedFiles
from holdfast.queue.prepared.joint_commits import JointCommits
from holdfast.queue.producer.waiting_batches import WaitingBatches

APP = "stream"
NAMES = ("c", "a", "b")  # not in the order of their names


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[PersistentQueue]:
    """An open queue."""
    with PersistentQueue(tmp_path / "q", mode="exclusive") as queue:
        yield queue


def prepare(queue: PersistentQueue, name: str, application: str = APP, version: int = 1) -> str:
    """Prepare a part of one message."""
    transaction = queue.begin()
    transaction.put(name.encode())
    return transaction.prepare(name, part_of=(application, version))


def waiting(queue: PersistentQueue) -> list[bytes]:
    """Return the messages that are there."""
    return [message.payload for message in queue.peek(100)]


def interrupted(queue: PersistentQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decide a commit of which nothing comes into the log."""
    ids = [prepare(queue, name) for name in NAMES]

    def full(*_: object, **__: object) -> range:
        raise DiskFullError("full")

    with monkeypatch.context() as patch:
        patch.setattr(WaitingBatches, "commit", full)
        with pytest.raises(DiskFullError):
            queue.joint_commits.commit(APP, 1, ids)
    assert queue.joint_commits.latest(APP) == 1
    assert waiting(queue) == []


def another(joint: JointCommits) -> None:
    """Commit nothing, for somebody else."""
    joint.commit("another", 1, [])


@pytest.mark.parametrize(
    "call",
    [
        lambda joint: joint.abort(APP, 1),
        lambda joint: joint.collect(0),
        lambda joint: joint.commit(APP, 1, []),
        lambda joint: joint.commit(APP, 2, []),
        another,
    ],
    ids=["abort", "collect", "commit again", "commit the next", "commit of another application"],
)
def test_whoever_decides_next_ends_it_in_its_order(
    queue: PersistentQueue, monkeypatch: pytest.MonkeyPatch, call: Callable[[JointCommits], None]
) -> None:
    """Spark aborts a commit that raised; what was decided is committed all the same."""
    interrupted(queue, monkeypatch)
    call(queue.joint_commits)
    assert waiting(queue) == [name.encode() for name in NAMES]
    assert queue.prepared() == []


def test_parts_that_cannot_be_let_go_of_fail_no_commit(queue: PersistentQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has happened; they are let go of by the next one."""
    prepare(queue, "loser")
    chosen = prepare(queue, "winner")

    def failing(*_: object) -> None:
        raise StorageError("not today")

    with monkeypatch.context() as patch:
        patch.setattr(PreparedFiles, "drop", failing)
        queue.joint_commits.commit(APP, 1, [chosen])
    assert waiting(queue) == [b"winner"]
    queue.joint_commits.commit(APP, 2, [])
    assert queue.prepared() == []


def test_who_asks_again_for_a_commit_that_is_not_remembered_is_told_so(queue: PersistentQueue) -> None:
    """An answer may get lost, and a request be made twice."""
    ids = [prepare(queue, "once")]
    for _ in range(2):
        queue.joint_commits.commit(APP, 1, ids, is_remembered=False)
    assert waiting(queue) == [b"once"]


def test_a_collection_takes_no_parts_of_others(queue: PersistentQueue) -> None:
    """Those whose ids begin otherwise wait as long as they like."""
    for name in ("spark-1", "bank-1"):
        prepare(queue, name, application=name)
    queue.joint_commits.collect(0, id_prefix="spark-")
    assert [each.id for each in queue.prepared()] == ["bank-1"]


def fail_in_a_block(queue: PersistentQueue) -> None:
    """Raise behind preparing."""
    with queue.transaction() as failing:
        failing.put(b"failing")
        failing.prepare(part_of=(APP, 1))
        raise ZeroDivisionError


def test_a_with_block_leaves_a_part_to_its_joint_commit(queue: PersistentQueue) -> None:
    """After a clean end, and after an exception, which is the user's own."""
    with queue.transaction() as clean:
        clean.put(b"clean")
        first = clean.prepare(part_of=(APP, 1))
    with pytest.raises(ZeroDivisionError):
        fail_in_a_block(queue)
    assert len(queue.prepared()) == 2
    queue.joint_commits.commit(APP, 1, [first])
    assert waiting(queue) == [b"clean"]
    assert queue.prepared() == []
