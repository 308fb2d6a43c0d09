"""What Spark calls to write into a queue, each call in a process of its own as it were; no Java."""

from __future__ import annotations

import logging
import pickle
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast import ConfigError, Full, PersistentQueue, QueueNotFoundError, RecordTooLargeError, StorageError
from holdfast.queue.prepared.joint_commits import JointCommits
from support.processes.children import Child, Signal, child
from support.processes.disk_deaths import killed_at
from support.spark.sinks import commit, messages, payloads, rows, sent, stage, staged, writer

pytestmark = pytest.mark.usefixtures("arrow_packages")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """An empty queue."""
    PersistentQueue(tmp_path / "q", mode="exclusive").close()
    return tmp_path / "q"


# -- Commit and abort ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_owner", [True, False])
def test_rows_are_there_once_committed_and_in_order(path: Path, *, has_owner: bool) -> None:
    """While an application owns the queue, and while nobody does."""
    owner = PersistentQueue(path, mode="shared") if has_owner else None
    write = writer(path)
    first = stage(write, rows([b"1", b"2"]), rows([b"3"]))
    second = stage(write, rows([b"4"]))
    assert payloads(path) == []
    assert len(staged(path)) == 2
    commit(write, first, second)
    assert payloads(path) == [b"1", b"2", b"3", b"4"]
    assert staged(path) == []
    if owner is not None:
        owner.put(b"5")
        owner.close()


def test_an_abort_lets_go_of_everything(path: Path) -> None:
    """Whatever the messages say: tasks that failed have none."""
    write = writer(path)
    stage(write, rows([b"1"]))
    stage(write, rows([b"2"]))
    sent(write).abort([None, None])
    assert staged(path) == []
    assert payloads(path) == []


def test_an_abort_behind_a_commit_loses_nothing(path: Path) -> None:
    """As Spark does when commit raises behind its commit point."""
    write = writer(path)
    message = stage(write, rows([b"1"]))
    commit(write, message)
    sent(write).abort([message])
    commit(write, message)
    assert payloads(path) == [b"1"]


def test_a_commit_that_raises_behind_its_commit_point(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The write is there, and written again under its txnid it is not there twice."""
    committing = JointCommits.commit

    def raising(self: JointCommits, *arguments: Any, **options: Any) -> None:
        committing(self, *arguments, **options)
        raise StorageError("behind it")

    write = writer(path, txnid="t")
    message = stage(write, rows([b"1"]))
    with monkeypatch.context() as patch:
        patch.setattr(JointCommits, "commit", raising)
        with pytest.raises(StorageError, match="behind it"):
            commit(write, message)
    sent(write).abort([message])
    again = writer(path, txnid="t")
    commit(again, stage(again, rows([b"1"])))
    assert payloads(path) == [b"1"]
    assert staged(path) == []


def test_of_two_attempts_the_one_that_spark_names_counts(path: Path) -> None:
    """The other has staged all the same, and is let go."""
    write = writer(path)
    stage(write, rows([b"1", b"2"]))
    winner = stage(write, rows([b"1", b"2"]))
    commit(write, winner, None)
    assert payloads(path) == [b"1", b"2"]
    assert staged(path) == []


def test_a_write_of_no_rows(path: Path) -> None:
    """It is noted as done."""
    write = writer(path, txnid="t")
    commit(write, stage(write), stage(write, rows([])))
    assert payloads(path) == []
    assert stage(writer(path, txnid="t"), rows([b"1"])).ids == ()


def test_no_message_at_all(path: Path) -> None:
    """Spark may have had no task to run."""
    commit(writer(path))
    assert payloads(path) == []


# -- An application in another process -------------------------------------------------------------------------------


def serving(path: Path, is_open: Signal, call: int) -> None:
    """Own the queue and serve, until such a call to the disk is made for a client; or without end."""
    with PersistentQueue(path, mode="shared") as queue:
        assert queue.is_owner
        with killed_at(call):
            is_open.send()
            signal.pause()


@contextmanager
def application(path: Path, call: int = 0) -> Iterator[Child]:
    """Run an application that has the queue open."""
    is_open = Signal()
    try:
        with child(lambda: serving(path, is_open, call)) as process:
            is_open.wait()
            yield process
    finally:
        is_open.close()


def test_an_application_puts_what_a_driver_commits_and_need_not_live(path: Path) -> None:
    """It commits the first write; it is killed behind the staging of the second one, whose driver then does all."""
    with application(path) as process:
        write = writer(path, txnid="first")
        commit(write, stage(write, rows([b"1"])), stage(write, rows([b"2"])))
        assert process.is_alive()
        write = writer(path, txnid="second")
        parts = stage(write, rows([b"3"]))
        process.kill()
        process.wait()
        commit(write, parts)
    assert payloads(path) == [b"1", b"2", b"3"]
    assert staged(path) == []


def test_the_owner_may_be_killed_at_any_call_of_a_commit(path: Path, tmp_path: Path) -> None:
    """Each row is there once, in its order, and nothing waits any more; then also with the commit run again."""
    killed_count = 0
    for call in count(1):
        place = Path(shutil.copytree(path, tmp_path / f"q{call}"))
        with application(place, call) as process:
            write = writer(place, txnid="write")
            parts = [stage(write, rows([b"1", b"2"])), stage(write, rows([b"3"]))]
            commit(write, *parts)
            was_killed = not process.is_alive()
        assert payloads(place) == [b"1", b"2", b"3"]
        assert staged(place) == []
        commit(write, *parts)
        assert payloads(place) == [b"1", b"2", b"3"]
        killed_count += was_killed
        if not was_killed:
            break
    assert killed_count > 8


# -- Once ------------------------------------------------------------------------------------------------------------


def test_a_txnid_is_written_once(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The second write stages nothing, and says so."""
    for number in range(2):
        write = writer(path, txnid="night-1")
        message = stage(write, rows([b"%d" % number]))
        assert len(message.ids) == 1 - number
        with caplog.at_level(logging.WARNING, "holdfast"):
            caplog.clear()
            commit(write, message)
        assert ("night-1" in caplog.text) == bool(number)
    assert payloads(path) == [b"0"]


def test_versions_of_a_txnid_ascend(path: Path) -> None:
    """As ``txnAppId`` and ``txnVersion`` elsewhere: what is not newer than the last is passed over."""
    for version in (3, 2, 3, 4):
        write = writer(path, txnid="app", txnversion=version)
        commit(write, stage(write, rows([b"%d" % version])))
    assert payloads(path) == [b"3", b"4"]


def test_without_a_txnid_every_write_is_another_one(path: Path) -> None:
    """So a write that is run again is there twice."""
    for _ in range(2):
        write = writer(path)
        commit(write, stage(write, rows([b"1"])))
    assert payloads(path) == [b"1", b"1"]


def test_a_task_that_another_run_overtakes_stages_nothing(path: Path) -> None:
    """Two drivers run the same write: the slow one finds it done."""

    def overtaken() -> Iterator[Any]:
        yield rows([b"slow"])
        fast = writer(path, txnid="t")
        commit(fast, stage(fast, rows([b"fast"])))

    slow = writer(path, txnid="t")
    message = slow.write(overtaken())
    assert message.ids == ()
    commit(slow, message)
    assert payloads(path) == [b"fast"]
    assert staged(path) == []


def test_what_dead_writes_have_left_is_collected_by_age(path: Path) -> None:
    """By whichever write commits next."""
    stage(writer(path), rows([b"dead"]))
    write = writer(path)
    commit(write, stage(write, rows([b"1"])))
    assert len(staged(path)) == 1
    write = writer(path, stagedRetentionSeconds=0)
    commit(write, stage(write, rows([b"2"])))
    assert staged(path) == []
    assert payloads(path) == [b"1", b"2"]


def test_a_collection_that_fails_is_no_failed_write(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is committed by then."""

    def refusing(*_: Any, **__: Any) -> None:
        raise StorageError("no collection today")

    monkeypatch.setattr(JointCommits, "collect", refusing)
    write = writer(path)
    commit(write, stage(write, rows([b"1"])))
    assert payloads(path) == [b"1"]
    assert "no collection today" in caplog.text


# -- Tasks -----------------------------------------------------------------------------------------------------------


def test_a_task_with_many_rows_stages_several_parts(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is cut when it has enough; all are committed as one, in order."""
    monkeypatch.setattr("holdfast.spark.writing.staging.Staging.__init__.__kwdefaults__", {"part_bytes": 5000})
    write = writer(path, txnid="x" * 100, txnversion=2**63 - 1)
    body = [b"%04d" % number for number in range(5000)]
    message = stage(write, rows(body[:3000]), rows(body[3000:]))
    assert len(message.ids) == 4
    assert {len(each) <= 100 for each in message.ids} == {True}
    commit(write, message)
    assert payloads(path) == body


@pytest.mark.parametrize("fault", [RuntimeError("fault"), KeyboardInterrupt()])
def test_a_task_that_fails_leaves_nothing_staged(
    path: Path, monkeypatch: pytest.MonkeyPatch, fault: BaseException
) -> None:
    """Neither the parts that it had prepared, nor the one that it was writing."""
    monkeypatch.setattr("holdfast.spark.writing.staging.Staging.__init__.__kwdefaults__", {"part_bytes": 100})
    counts = []

    def failing() -> Iterator[Any]:
        yield rows([bytes(100)])
        yield rows([bytes(50)])
        counts.append(len(staged(path)))
        raise fault

    with pytest.raises(type(fault)):
        writer(path).write(failing())
    assert counts == [2]
    assert staged(path) == []


def test_a_bounded_queue_without_room(path: Path) -> None:
    """The task fails with the queue's own error, and may be tried again."""
    write = writer(path)
    with PersistentQueue(path, mode="shared", maxsize=2) as owner:
        owner.put(b"0")
        with pytest.raises(Full):
            stage(write, rows([b"1", b"2"]))
        assert staged(path) == []
        assert owner.get(timeout=0) == b"0"
        commit(write, stage(write, rows([b"1", b"2"])))
        assert [owner.get(timeout=0) for _ in range(2)] == [b"1", b"2"]


def test_a_payload_that_is_too_large(path: Path) -> None:
    """As with any put: the bound is the queue's, and the next task has it once it was changed."""
    PersistentQueue(path, mode="exclusive", record_bytes_max=1000).close()
    write = writer(path)
    with pytest.raises(RecordTooLargeError, match="1001"):
        stage(write, rows([bytes(1001)]))
    assert staged(path) == []
    with PersistentQueue(path, mode="exclusive") as queue:
        queue.configure(record_bytes_max=1001)
    commit(write, stage(write, rows([bytes(1001)])))
    assert payloads(path) == [bytes(1001)]


def test_a_task_that_does_not_see_the_queue_makes_none(path: Path) -> None:
    """It runs on a machine that has no such directory, or another one."""
    write = writer(path)
    path.rename(path.with_name("elsewhere"))
    with pytest.raises(QueueNotFoundError, match="each machine"):
        stage(write, rows([b"1"]))
    assert not path.exists()
    PersistentQueue(path, mode="exclusive").close()
    with pytest.raises(ConfigError, match="not the one that was planned"):
        stage(write, rows([b"1"]))


def test_a_queue_is_made_only_where_that_is_said(tmp_path: Path) -> None:
    """A path that is misspelt is an error."""
    with pytest.raises(QueueNotFoundError, match="create"):
        writer(tmp_path / "q")
    assert not (tmp_path / "q").exists()
    for _ in range(2):
        write = writer(tmp_path / "q", create="true")
        commit(write, stage(write, rows([b"1"])))
    assert payloads(tmp_path / "q") == [b"1", b"1"]


def test_a_queue_is_not_overwritten(path: Path) -> None:
    """In a batch and in a stream."""
    for is_stream in (False, True):
        with pytest.raises(ConfigError, match="appended"):
            writer(path, overwrite=True, is_stream=is_stream)


def test_errors_of_tasks_can_be_sent_to_the_driver(path: Path) -> None:
    """They come through pickle."""
    PersistentQueue(path, mode="exclusive", record_bytes_max=1).close()
    write = writer(path)
    with pytest.raises(RecordTooLargeError) as raised:
        stage(write, rows([b"12"]))
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


# -- Streams ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What a task of a stream says of itself."""
    from pyspark import TaskContext

    properties: dict[str, str] = {}
    context = SimpleNamespace(getLocalProperty=properties.get)
    monkeypatch.setattr(TaskContext, "_taskContext", context)
    return properties


def stream(path: Path, task: dict[str, str], query: str, batch: int, *bodies: bytes) -> None:
    """Run one batch of a query: one task for each body, and a writer of its own to commit."""
    task.update({"sql.streaming.queryId": query, "streaming.sql.batchId": str(batch)})
    staged_parts = [stage(writer(path, is_stream=True), rows([body])) for body in bodies]
    writer(path, is_stream=True, checkpointLocation="c").commit(staged_parts, batch)


def test_each_batch_of_a_query_is_written_once(path: Path, task: dict[str, str]) -> None:
    """Run again, as after a crash before Spark noted it, it is passed over."""
    stream(path, task, "query-a", 0, b"0", b"1")
    stream(path, task, "query-a", 0, b"0", b"1")
    stream(path, task, "query-a", 1, b"2")
    assert payloads(path) == [b"0", b"1", b"2"]
    assert staged(path) == []


def test_a_new_checkpoint_begins_with_batch_0_and_is_not_passed_over(path: Path, task: dict[str, str]) -> None:
    """Its query is another one; the number of the batch alone would lose rows."""
    stream(path, task, "query-a", 0, b"0")
    stream(path, task, "query-b", 0, b"0")
    stream(path, task, "query-a", 1, b"1")
    assert payloads(path) == [b"0", b"0", b"1"]


def test_a_checkpoint_that_is_older_than_the_queue_is_refused(path: Path, task: dict[str, str]) -> None:
    """Only the last batch of a query is run again; an earlier one is planned anew, and has other rows."""
    from holdfast.spark.writing.sink import StagedParts

    for batch in range(3):
        stream(path, task, "query-a", batch, b"%d" % batch)
    with pytest.raises(ConfigError, match=r"batch 1 just now.* has its batch 2 already.* restored from a backup"):
        stream(path, task, "query-a", 1, b"new")
    with pytest.raises(ConfigError, match="restored from a backup"):
        writer(path, is_stream=True).commit([StagedParts("query-a", 1, ())], 1)
    stream(path, task, "query-a", 2, b"2")
    assert payloads(path) == [b"0", b"1", b"2"]
    assert staged(path) == []


def test_a_stream_that_aborts_a_batch(path: Path, task: dict[str, str]) -> None:
    """Some tasks say what they have staged; where none does, the next commit lets go of it."""
    task.update({"sql.streaming.queryId": "query-a", "streaming.sql.batchId": "0"})
    message = stage(writer(path, is_stream=True), rows([b"0"]))
    stage(writer(path, is_stream=True), rows([b"lost attempt"]))
    writer(path, is_stream=True).abort([None, None], 0)
    assert len(staged(path)) == 2
    writer(path, is_stream=True).abort([None, message], 0)
    assert staged(path) == []
    stream(path, task, "query-a", 0, b"0")
    assert payloads(path) == [b"0"]


def test_a_batch_without_messages_commits_nothing(path: Path, task: dict[str, str]) -> None:
    """Nobody knows whose it is."""
    stream(path, task, "query-a", 0)
    with PersistentQueue(path, mode="exclusive") as queue:
        assert queue.joint_commits.latest("query-a") is None


def test_a_task_that_does_not_know_its_batch(path: Path, task: dict[str, str]) -> None:
    """It says what to do instead."""
    with pytest.raises(ConfigError, match="foreachBatch"):
        stage(writer(path, is_stream=True), rows([b"0"]))
    assert messages(path) == []
