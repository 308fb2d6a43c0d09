"""Tasks on machines that do not see the queue read it from the range server of their plan, and miss nothing."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import ConfigError, CorruptionError, HoldfastError, PersistentQueue
from holdfast.errors import RetryableError
from holdfast.persistence.filesystem.layout import list_data_files, queue_directory
from holdfast.persistence.filesystem.storage import OsStorage
from holdfast.spark import drain
from support.spark.drains import TasksForSpark, fill
from support.spark.other_machines import GROUP, SIGHTS, an_older_copy, flip, nothing
from support.spark.range_servers import HOST, PLANNED, on_another_machine, servers_end
from support.spark.spark_rows import planned
from support.spark.spark_streams import StreamRun

COUNT = 1500
"""More than the driver reads by itself."""

pytestmark = pytest.mark.usefixtures("arrow_packages")

Sight = Callable[[Path], None]


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A queue of several data files in the driver's directory; ``template`` beside it is an older copy."""
    PersistentQueue(tmp_path / "q", mode="exclusive").close()
    shutil.copytree(tmp_path / "q", tmp_path / "template")
    fill(tmp_path / "q", range(COUNT), size=400)
    monkeypatch.chdir(tmp_path)
    with servers_end():
        yield tmp_path / "q"


def offsets(reader: Any, partitions: list[Any]) -> list[int]:
    """Return the offsets that tasks read."""
    return [row["offset"] for each in partitions for batch in reader.read(each) for row in batch.to_pylist()]


def depth(path: Path, group: str) -> int:
    """Return what a group has not finished."""
    with PersistentQueue(path, mode="read_only", group=group) as queue:
        return queue.stats().depth


# -- Reads -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sight", SIGHTS)
def test_a_read_has_every_row_where_the_queue_is_not(
    path: Path, sight: Sight, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where another queue is, or an older copy; the log says where the rows come from."""
    caplog.set_level(logging.INFO, "holdfast")
    reader, partitions = planned(PLANNED, ["offset"], serveAddress=HOST)
    assert "tasks that do not see" in caplog.text
    with on_another_machine(path.parent, sight):
        assert offsets(reader, partitions) == list(range(COUNT))
    assert "is read from the range server at 127.0.0.1, port" in caplog.text


def test_a_copy_that_ends_in_the_planned_file_is_an_older_one(path: Path) -> None:
    """It is read from the server, as one without the file is; without a server the task fails, a lenient one too."""
    shutil.rmtree(path.with_name("template"))
    shutil.copytree(path, path.with_name("template"))
    with PersistentQueue(path, mode="exclusive") as queue:
        queue.put(b"one more")
    assert {each.name for each in (path / "data").iterdir()} == {
        each.name for each in (path.with_name("template") / "data").iterdir()
    }
    reader, partitions = planned(PLANNED, ["offset"], serveAddress=HOST)
    lenient, (alone,) = planned(PLANNED, ["offset"], failOnDataLoss=False)
    rows: list[int] = []
    spark: Any = TasksForSpark(lambda: on_another_machine(path.parent, an_older_copy))
    with on_another_machine(path.parent, an_older_copy):
        assert offsets(reader, partitions) == list(range(COUNT + 1))
        with pytest.raises(ConfigError, match="an older copy of the queue"):
            list(lenient.read(alone))
    shutil.rmtree(path.parent / "machine" / "q")
    with pytest.raises(ConfigError, match="an older copy of the queue"):
        drain(PLANNED, spark, lambda frame, _: rows.extend(row["offset"] for row in frame()), group=GROUP)
    shutil.rmtree(path.parent / "machine" / "q")
    drain(
        PLANNED, spark, lambda frame, _: rows.extend(row["offset"] for row in frame()), group=GROUP, serve_address=HOST
    )
    assert rows == list(range(COUNT + 1))


def test_a_task_that_sees_the_queue_asks_no_server(path: Path) -> None:
    """Even if there is none any more."""
    reader, partitions = planned(path, ["offset"], serveAddress=HOST)
    with servers_end():
        pass
    assert offsets(reader, partitions) == list(range(COUNT))


def test_without_a_spark_on_other_machines_no_server_is_started(path: Path) -> None:
    """A plan of this process, which no Spark has started, has none; and ``off`` means none."""
    for options in ({}, {"serveAddress": "off"}):
        reader, (partition,) = planned(PLANNED, ["offset"], **options)
        assert partition.queues[0].place is None
        with on_another_machine(path.parent, nothing), pytest.raises(HoldfastError, match="mount the directory"):
            list(reader.read(partition))


def test_a_server_that_is_told_a_loopback_address_listens_there_alone(path: Path) -> None:
    """With any other address it listens at all of them: that may be one of a gateway."""
    _, (partition, *_) = planned(path, ["offset"], serveAddress=HOST)
    port = partition.queues[0].place.port
    socket.create_connection((HOST, port), 10).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), 10)


def test_plans_of_one_process_share_a_server_and_a_server_that_has_ended_is_started_again(path: Path) -> None:
    """The next plan notices."""
    (first,), (second,) = (planned(PLANNED, ["offset"], serveAddress=HOST)[1] for _ in range(2))
    assert first.queues[0].place == second.queues[0].place
    with servers_end():
        pass
    reader, partitions = planned(PLANNED, ["offset"], serveAddress=HOST)
    assert partitions[0].queues[0].place.certificate != first.queues[0].place.certificate
    with on_another_machine(path.parent, nothing):
        assert offsets(reader, partitions) == list(range(COUNT))


def test_a_server_that_has_ended_is_an_error_that_says_what_to_do(path: Path) -> None:
    """Also without ``failOnDataLoss``: no row is missing without a word."""
    reader, partitions = planned(PLANNED, ["offset"], serveAddress=HOST, failOnDataLoss=False)
    with servers_end():
        pass
    with on_another_machine(path.parent, nothing), pytest.raises(RetryableError, match="a new DataFrame starts"):
        offsets(reader, partitions)


def test_a_server_that_is_frozen_in_the_middle_of_a_file_is_an_error(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one whose host hangs, or whose packets have no answer: a task does not wait for ever."""
    from holdfast.spark.remote import client, starting

    monkeypatch.setattr(client, "_ALIVE", [(name, 300) for name, _ in client._ALIVE])
    with PersistentQueue(path, mode="exclusive") as queue:
        queue.configure(record_bytes_max=2**27)
        queue.put(bytes(2**26))
    _, (partition, *_) = planned(PLANNED, ["offset"], serveAddress=HOST)
    (server,) = starting._servers.values()
    last = list_data_files(OsStorage(), queue_directory(path))[-1]
    chunks = client.RangeClient(partition.queues[0].place).chunks(last, 0, 0)
    next(chunks)
    os.kill(server._popen.pid, signal.SIGSTOP)
    with pytest.raises(RetryableError, match="range server at"):
        list(chunks)


def test_damage_is_found_by_the_task_and_has_its_place(path: Path) -> None:
    """The server passes bytes on and judges none of them."""
    lost = flip(path)
    reader, partitions = planned(PLANNED, ["offset"], serveAddress=HOST)
    lenient, _ = planned(PLANNED, ["offset"], serveAddress=HOST, failOnDataLoss=False)
    with on_another_machine(path.parent, nothing):
        with pytest.raises(CorruptionError, match=f"offset.*{lost}"):
            offsets(reader, partitions)
        assert offsets(lenient, partitions) == [each for each in range(COUNT) if each != lost]


@pytest.mark.parametrize("is_strict", [True, False])
def test_a_file_that_was_consumed_is_one_also_through_the_server(path: Path, is_strict: bool) -> None:
    """An error, or nothing without ``failOnDataLoss``."""
    reader, partitions = planned(PLANNED, ["offset"], serveAddress=HOST, failOnDataLoss=is_strict)
    (gone, *_) = sorted((path / "data").iterdir())
    gone.unlink()
    with on_another_machine(path.parent, nothing):
        if is_strict:
            with pytest.raises(RetryableError, match="was consumed after this read was planned: create the DataFrame"):
                offsets(reader, partitions)
        else:
            assert set(offsets(reader, partitions)) < set(range(COUNT))


def test_what_lives_in_a_file_that_was_merged_is_read_through_the_server(path: Path) -> None:
    """Without ``failOnDataLoss``: the server looks for the merged file."""
    reader, partitions = planned(PLANNED, ["offset"], serveAddress=HOST, failOnDataLoss=False)
    with PersistentQueue(path, mode="exclusive") as queue:
        for delivery in queue.receive_many(1000, timeout=0):
            if delivery.offset % 100 == 7:
                delivery.reject("kept")
            else:
                delivery.ack()
        assert queue.compact().merged_count
    with on_another_machine(path.parent, nothing):
        found = offsets(reader, partitions)
    assert found == sorted(set(found))
    assert {*range(7, 1000, 100), *range(1000, COUNT)} <= set(found)
    assert len(found) < COUNT


@pytest.mark.parametrize("is_strict", [True, False])
def test_a_queue_that_the_server_does_not_see_either_was_not_consumed(path: Path, is_strict: bool) -> None:
    """It was moved, or unmounted."""
    reader, partitions = planned(PLANNED, ["offset"], serveAddress=HOST, failOnDataLoss=is_strict)
    path.rename(path.with_name("moved"))
    with on_another_machine(path.parent, nothing), pytest.raises(HoldfastError, match="no queue at"):
        offsets(reader, partitions)


# -- Drains and streams ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sight", SIGHTS)
def test_a_drain_has_every_row_where_the_queue_is_not(path: Path, sight: Sight) -> None:
    """The batch is committed."""
    rows: list[int] = []
    spark: Any = TasksForSpark(lambda: on_another_machine(path.parent, sight))
    report = drain(
        PLANNED, spark, lambda frame, _: rows.extend(row["offset"] for row in frame()), group=GROUP, serve_address=HOST
    )
    assert (report.message_count, report.depth, rows) == (COUNT, 0, list(range(COUNT)))


def test_a_worker_says_once_where_the_rows_of_all_batches_come_from(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each batch has a token of its own."""
    fill(path, range(COUNT, 2 * COUNT + 100), size=400)
    spark: Any = TasksForSpark(lambda: on_another_machine(path.parent, nothing))
    report = drain(PLANNED, spark, lambda frame, _: frame(), max_messages=COUNT + 50, group=GROUP, serve_address=HOST)
    assert len(report.batch_ids) == 2
    assert caplog.text.count("is read from the range server") == 1


def test_a_drain_of_many_queues_has_every_row_where_they_are_not(path: Path) -> None:
    """Each queue has a token of its own."""
    fill(path.with_name("q2"), range(COUNT + 100), size=400)
    rows: list[tuple[str, int]] = []
    spark: Any = TasksForSpark(lambda: on_another_machine(path.parent, lambda _: None))
    report = drain(
        PLANNED.parent,
        spark,
        lambda frame, _: rows.extend((row["queue"], row["offset"]) for row in frame()),
        queues="q*",
        columns=["queue", "offset"],
        group=GROUP,
        serve_address=HOST,
    )
    assert {name: (each.message_count, each.depth) for name, each in report.queues.items()} == {
        "q": (COUNT, 0),
        "q2": (COUNT + 100, 0),
    }
    assert rows == [("q", each) for each in range(COUNT)] + [("q2", each) for each in range(COUNT + 100)]


@pytest.mark.parametrize("sight", [nothing, an_older_copy])
def test_damage_that_a_task_finds_through_the_server_reaches_the_report(path: Path, sight: Sight) -> None:
    """Its note is written where the driver looks for it, and removed with the batch."""
    with PersistentQueue(path.with_name("template"), mode="exclusive") as queue:
        queue.groups.create(GROUP)
    spark: Any = TasksForSpark(lambda: on_another_machine(path.parent, sight))
    lost: list[int] = []

    def write(frame: Any, _: str) -> None:
        lost.append(flip(path))  # it is reserved by now: only a task can find it
        frame()

    report = drain(PLANNED, spark, write, group=GROUP, serve_address=HOST)
    assert [list(each.offsets) for each in report.damage] == [lost]
    assert not list((path / "groups" / GROUP).glob("lost-*"))


def test_a_batch_that_is_over_is_not_served_any_more(path: Path) -> None:
    """A task that lingers is refused."""
    kept: list[Any] = []
    spark: Any = TasksForSpark(lambda: on_another_machine(path.parent, nothing))
    drain(PLANNED, spark, lambda frame, _: kept.append(frame), group=GROUP, serve_address=HOST)
    with pytest.raises(RetryableError, match="refuses the token"):
        kept[0]()


def test_a_batch_that_never_runs_is_not_served_any_more(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its server would stay as long as the driver."""
    from holdfast.spark.draining import source
    from holdfast.spark.remote.client import RangeClient

    places: list[Any] = []

    def interrupted(*arguments: Any) -> None:
        places.append(arguments[-1])
        RangeClient(arguments[-1])
        raise KeyboardInterrupt

    monkeypatch.setattr(source, "frame_in_tasks", interrupted)
    with pytest.raises(KeyboardInterrupt):
        drain(PLANNED, TasksForSpark(), lambda frame, _: frame(), group=GROUP, serve_address=HOST)
    with pytest.raises(RetryableError, match="refuses the token"):
        RangeClient(places[0])


@pytest.mark.parametrize("sight", SIGHTS)
def test_a_stream_has_every_row_where_the_queue_is_not(path: Path, sight: Sight) -> None:
    """A batch that was planned here and is read there."""
    run = StreamRun(PLANNED, path.with_name("checkpoint"), group="stream", serveAddress=HOST)
    number = run.plan()
    assert number is not None
    start, end = json.loads((path.with_name("checkpoint") / "initial").read_text()), json.loads(run.text(number))
    tasks = list(run.reader.partitions(start, end))
    with on_another_machine(path.parent, sight):
        assert offsets(run.reader, tasks) == list(range(COUNT))
