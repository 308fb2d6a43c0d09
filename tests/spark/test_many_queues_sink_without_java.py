"""The sink into many queues, without a JVM: a column chooses the queue, and all queues have a write or none has it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast import ConfigError, PersistentQueue, QueueLockedError, QueueNotFoundError, StorageError
from holdfast.queue.prepared.prepared_resolver import PreparedResolver
from support.spark.other_machines import OWN
from support.spark.range_servers import HOST, servers_end
from support.spark.sinks import schema_of, sent, writer

pytestmark = pytest.mark.usefixtures("arrow_packages")

Rows = Sequence[tuple[str | None, str]]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A directory of two empty queues."""
    for name in ("a", "b"):
        PersistentQueue(tmp_path / "data" / name, mode="exclusive").close()
    return tmp_path / "data"


def schema(**more: Any) -> Any:
    """Return the schema of these rows."""
    from pyspark.sql.types import StringType

    return schema_of(queue=StringType(), payload=StringType(), **more)


def many(data: Path, *, is_stream: bool = False, **options: Any) -> Any:
    """Return a writer into many queues."""
    return writer(data, options.pop("schema", None) or schema(), is_stream=is_stream, **options)


def batch(*rows: tuple[str | None, str]) -> Any:
    """Return a record batch of queues and payloads."""
    import pyarrow as pa

    queues, payloads = zip(*rows, strict=True) if rows else ((), ())
    return pa.record_batch({"queue": pa.array(queues, pa.string()), "payload": pa.array(payloads, pa.string())})


def stage(write: Any, *batches: Any) -> Any:
    """Run one task."""
    return sent(sent(write).write(iter(batches)))


def commit(write: Any, *messages: Any) -> None:
    """Commit, in another process as it were."""
    sent(write).commit([*messages])


def payloads(data: Path, name: str) -> list[str]:
    """Return what a queue shows."""
    with PersistentQueue(data / name, mode="read_only") as queue:
        return [message.payload.decode() for message in queue.peek(10_000)]


def waiting(data: Path) -> dict[str, int]:
    """Return how many parts wait in each queue."""
    return {path.name: len(list((path / "prepared").glob("*.batch"))) for path in data.iterdir() if path.name[0] != "."}


def test_each_row_goes_to_its_queue_and_all_are_committed_as_one(data: Path) -> None:
    """In the order of the rows of each queue; nothing is there before the commit."""
    write = many(data)
    first = stage(write, batch(("a", "1"), ("b", "2"), ("a", "3")), batch(("b", "4")))
    second = stage(write, batch(("b", "5")), batch())
    assert (payloads(data, "a"), payloads(data, "b")) == ([], [])
    commit(write, first, second, None)
    assert (payloads(data, "a"), payloads(data, "b")) == (["1", "3"], ["2", "4", "5"])
    assert waiting(data) == {"a": 0, "b": 0}


def test_old_parts_are_aborted_in_a_queue_that_no_later_write_names(data: Path) -> None:
    """The driver of a write was killed, and it never runs again; a part that is young is left alone."""
    stage(many(data), batch(("a", "1"), ("b", "2")))
    (data / "notes.txt").touch()
    alive = many(data)
    message = stage(alive, batch(("a", "3")))
    commit(alive, message)
    assert waiting(data) == {"a": 1, "b": 1, "notes.txt": 0}
    alive = many(data, stagedRetentionSeconds=0)
    commit(alive, stage(alive, batch(("a", "4"))))
    assert waiting(data) == {"a": 0, "b": 0, "notes.txt": 0}
    assert (payloads(data, "a"), payloads(data, "b")) == (["3", "4"], [])


def test_an_application_that_has_a_queue_open_sees_the_write(data: Path) -> None:
    """It is told, and puts its part into the log."""
    with PersistentQueue(data / "a", mode="shared") as owner:
        write = many(data)
        commit(write, stage(write, batch(("a", "1"), ("b", "2"))))
        assert owner.get(timeout=5) == b"1"


def test_a_queue_that_cannot_be_opened_is_an_error_and_no_queue_has_anything(data: Path) -> None:
    """Another mode keeps the write out."""
    write = many(data)
    message = stage(write, batch(("a", "1"), ("b", "2")))
    with PersistentQueue(data / "b", mode="exclusive"), pytest.raises(QueueLockedError):
        commit(write, message)
    assert (payloads(data, "a"), payloads(data, "b")) == ([], [])
    commit(write, message)
    assert (payloads(data, "a"), payloads(data, "b")) == (["1"], ["2"])


def test_a_commit_that_is_cut_off_is_finished_by_each_queue(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When it is opened next, or when the write runs again; none has a part without the others."""
    write = many(data, txnid="day")
    message = stage(write, batch(("a", "1"), ("b", "2")))
    settle = PreparedResolver.settle

    def fails_in_b(resolver: PreparedResolver, *words: Any, **options: Any) -> bool:
        if resolver._handle.path.name == "b":
            raise StorageError("the disk has gone")
        return settle(resolver, *words, **options)

    with monkeypatch.context() as patch:
        patch.setattr(PreparedResolver, "settle", fails_in_b)
        with pytest.raises(StorageError, match="is decided"):
            commit(write, message)
    assert payloads(data, "a") == ["1"]
    sent(write).abort([message])  # as Spark does behind a commit that raised
    assert payloads(data, "b") == ["2"]
    again = many(data, txnid="day")
    commit(again, stage(again, batch(("a", "1"), ("b", "2"))))
    assert (payloads(data, "a"), payloads(data, "b")) == (["1"], ["2"])


def test_under_one_name_a_write_counts_once_in_all_queues(data: Path) -> None:
    """A later version is another write."""
    for version in (0, 0, 1, 0):
        write = many(data, txnid="job", txnversion=version)
        commit(write, stage(write, batch(("a", f"a{version}"), ("b", f"b{version}"))))
    assert (payloads(data, "a"), payloads(data, "b")) == (["a0", "a1"], ["b0", "b1"])


def test_an_abort_leaves_nothing_in_any_queue(data: Path) -> None:
    """Also of tasks that Spark knows nothing of."""
    write = many(data)
    stage(write, batch(("a", "1"), ("b", "2")))
    assert waiting(data) == {"a": 1, "b": 1}
    sent(write).abort([None])
    assert waiting(data) == {"a": 0, "b": 0}


def test_parts_of_attempts_that_spark_does_not_name_are_aborted(data: Path) -> None:
    """A speculative copy of a task."""
    write = many(data)
    stage(write, batch(("b", "2")))
    commit(write, stage(write, batch(("a", "1"))))
    assert (payloads(data, "a"), payloads(data, "b")) == (["1"], [])
    assert waiting(data) == {"a": 0, "b": 0}


@pytest.mark.parametrize(
    ("name", "error", "said"),
    [
        ("x/../a", ConfigError, "'x/../a' cannot name a queue"),
        ("..", ConfigError, "'..' cannot name a queue"),
        (".joint", ConfigError, "'.joint' cannot name a queue"),
        ("catalog.db", ConfigError, "'catalog.db' cannot name a queue"),
        ("", ConfigError, "'' cannot name a queue"),
        (None, ConfigError, "`queue` is null in 1 of these rows"),
        ("c", QueueNotFoundError, "`queue` is 'c', and .* has no queue of that name.*option"),
    ],
)
def test_a_value_that_names_no_queue_fails_the_task_and_is_named(
    data: Path, name: str | None, error: type[Exception], said: str
) -> None:
    """Nothing of the task stays staged."""
    with pytest.raises(error, match=said):
        stage(many(data), batch(("a", "1"), (name, "2")))
    assert waiting(data) == {"a": 0, "b": 0}


def test_missing_queues_are_made_if_an_option_says_so(data: Path) -> None:
    """By the first task that has a row for it."""
    write = many(data, create=True)
    commit(write, stage(write, batch(("c", "1"), ("a", "2"))))
    assert (payloads(data, "c"), payloads(data, "a")) == (["1"], ["2"])


def test_another_column_may_choose(data: Path) -> None:
    """With a serializer it is an option of the message, with a ``_`` in front; all others are fields."""
    import pyarrow as pa
    from pyspark.sql.types import LongType, StringType

    rows = pa.record_batch({"shop": ["b", "a"], "payload": ["1", "2"]})
    write = many(data, schema=schema_of(shop=StringType(), payload=StringType()), queueColumn="shop")
    commit(write, stage(write, rows))
    assert (payloads(data, "a"), payloads(data, "b")) == (["2"], ["1"])
    rows = pa.record_batch({"_queue": ["b", "a"], "id": [1, 2]})
    write = many(data, schema=schema_of(_queue=StringType(), id=LongType()), serializer="json")
    commit(write, stage(write, rows))
    assert [json.loads(payloads(data, name)[-1]) for name in ("a", "b")] == [{"id": 2}, {"id": 1}]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda data: many(data / "a"), "is a queue, and the column `queue` chooses"),
        (lambda data: many(data / "missing"), "there is no directory"),
        (lambda data: many(data, queueColumn="shop"), "no column `shop` that chooses"),
        (lambda data: many(data, schema=_numbers()), "`queue` is bigint"),
        (lambda data: writer(data, schema(), overwrite=True), "appended to"),
    ],
)
def test_what_cannot_be_is_said_before_a_task_runs(data: Path, make: Callable[[Path], Any], said: str) -> None:
    """With what to do."""
    with pytest.raises(ConfigError, match=said):
        make(data)


def _numbers() -> Any:
    from pyspark.sql.types import LongType, StringType

    return schema_of(queue=LongType(), payload=StringType())


def test_a_task_on_a_machine_with_another_directory_is_refused(data: Path) -> None:
    """It would stage what no commit finds."""
    write = many(data)
    for entry in (data / ".joint").iterdir():
        entry.unlink()
    many(data)
    with pytest.raises(ConfigError, match="not the directory that was planned"):
        stage(write, batch(("a", "1")))


def test_a_task_that_does_not_see_the_directory_has_the_range_server_stage_its_rows(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Into queues that are there, and into new ones; nothing is made where the task runs."""
    monkeypatch.chdir(tmp_path)
    planned, machine = OWN / "data", tmp_path / "machine"
    with servers_end():
        write = many(planned, create=True, serveAddress=HOST, txnid="day")
        machine.mkdir()
        monkeypatch.chdir(machine)
        task = stage(write, batch(("a", "1"), ("c", "2"), ("a", "3")), batch(("b", "4"), ("c", "5")))
        assert list(machine.iterdir()) == []
        monkeypatch.chdir(tmp_path)
        assert waiting(data) == {"a": 1, "b": 1, "c": 1}
        commit(write, task)
        assert [payloads(data, name) for name in "abc"] == [["1", "3"], ["4"], ["2", "5"]]
        assert "is written through the range server at 127.0.0.1, port" in caplog.text
        again = many(planned, create=True, serveAddress=HOST, txnid="day")
        monkeypatch.chdir(machine)
        assert stage(again, batch(("a", "1"))).ids == ()  # it is committed, as the server says
        monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("name", "error", "said"),
    [
        ("../a", ConfigError, r"'\.\./a' cannot name a queue"),
        ("", ConfigError, "'' cannot name a queue"),
        ("d", QueueNotFoundError, "`queue` is 'd', and .* has no queue of that name"),
    ],
)
def test_the_range_server_refuses_what_names_no_queue(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, error: type[Exception], said: str
) -> None:
    """A task is told the same error as where it sees the directory, and nothing stays staged."""
    monkeypatch.chdir(tmp_path)
    with servers_end():
        write = many(OWN / "data", serveAddress=HOST)
        (tmp_path / "machine").mkdir()
        monkeypatch.chdir(tmp_path / "machine")
        with pytest.raises(error, match=said):
            stage(write, batch(("a", "1"), (name, "2")))
        monkeypatch.chdir(tmp_path)
    assert waiting(data) == {"a": 0, "b": 0}


def test_rows_for_very_many_queues_are_staged_with_few_open_files(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than that are parts that are finished earlier; each queue has its rows in order."""
    monkeypatch.setattr("holdfast.spark.writing.many_parts._BEGUN_MAX", 2)
    names = [f"q{number}" for number in range(5)]
    write = many(data, create=True)
    task = write.write(iter([batch(*((name, f"{turn}") for name in names)) for turn in range(3)]))
    commit(write, task)
    assert [payloads(data, name) for name in names] == [["0", "1", "2"]] * 5


def test_a_stream_writes_into_many_queues_once(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its query and its batch; an older checkpoint is refused."""
    from types import SimpleNamespace

    local = {"sql.streaming.queryId": "query-1", "streaming.sql.batchId": "0"}
    context = SimpleNamespace(get=lambda: SimpleNamespace(getLocalProperty=local.get))
    monkeypatch.setattr("holdfast.spark.writing.stream_sink.TaskContext", context)
    write = many(data, is_stream=True)
    for number in (0, 0, 1):
        local["streaming.sql.batchId"] = str(number)
        sent(write).commit([write.write(iter([batch(("a", f"a{number}"), ("b", f"b{number}"))]))], number)
    assert (payloads(data, "a"), payloads(data, "b")) == (["a0", "a1"], ["b0", "b1"])
    local["streaming.sql.batchId"] = "0"
    with pytest.raises(ConfigError, match="the checkpoint is older"):
        write.write(iter([batch(("a", "x"))]))
    with pytest.raises(ConfigError, match="the checkpoint is older"):
        write._sink.check_new("query-1", 1)
    write._sink.check_new("query-1", 2)
