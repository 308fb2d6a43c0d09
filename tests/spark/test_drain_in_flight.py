"""Several batches of a drain that run at once: each is reserved under its own id, and they are committed in order."""

from __future__ import annotations

import logging
import os
import signal
import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from holdfast import ConfigError, PersistentQueue, QueueLockedError, arrow
from holdfast.spark import drain
from support.arrow.engines import ENGINES
from support.spark.drains import TablesForSpark, TasksForSpark, fill

pytestmark = pytest.mark.usefixtures("without_session")

SPARK: Any = TablesForSpark()
SECONDS = 30


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Any:
    """What runs the batches."""
    return request.param


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A queue of 1,000 messages."""
    fill(tmp_path / "q", range(1000))
    return tmp_path / "q"


def first_of(batch_id: str) -> int:
    """Return the first offset of a batch."""
    return int(batch_id.rsplit("-", 1)[1])


class Sink:
    """Replaces what it has of a batch. The batches that begin with an offset of ``waits`` wait for their event."""

    def __init__(self) -> None:
        self.batches: dict[str, list[int]] = {}
        self.waits: dict[int, threading.Event] = {}
        self.has: dict[int, threading.Event] = {first: threading.Event() for first in range(0, 1000, 100)}
        self.calls: list[str] = []

    def __call__(self, table: Any, batch_id: str) -> None:
        self.calls.append(batch_id)
        first = first_of(batch_id)
        if first in self.waits:
            assert self.waits[first].wait(SECONDS)
        self.batches[batch_id] = table.column("offset").to_pylist()
        if first in self.has:
            self.has[first].set()

    @property
    def offsets(self) -> list[int]:
        """Everything that has arrived."""
        return sorted(offset for batch in self.batches.values() for offset in batch)


def test_the_next_batch_runs_beside_the_first_one_and_is_committed_behind_it(engine: Any, path: Path) -> None:
    """The first one waits for what the second one has written; a third one has no room before it is committed."""
    sink, progress = Sink(), list[int]()
    sink.waits[0] = sink.has[100]
    report = drain(
        path,
        SPARK,
        sink,
        max_messages=100,
        group="night",
        in_flight=2,
        on_progress=lambda each: progress.append(first_of(each.batch_id)),
    )
    assert [first_of(each) for each in sink.batches][:2] == [100, 0]
    assert progress == [first_of(each) for each in report.batch_ids] == list(range(0, 1000, 100))
    assert (report.message_count, report.depth, report.resumed_count) == (1000, 0, 0)
    assert sink.offsets == list(range(1000))


class LocksForSpark(TablesForSpark):
    """With a JVM that gets every lock, and does nothing else."""

    def __init__(self) -> None:
        self._jvm = Mock()
        self.file = self._jvm.java.io.RandomAccessFile.return_value


def test_an_interrupted_batch_keeps_the_lock_of_its_jvm(path: Path) -> None:
    """Spark may still write it, so no other drain may begin; behind an error it does not."""
    spark: Any = LocksForSpark()

    def end(error: BaseException) -> None:
        raise error

    with pytest.raises(RuntimeError):
        drain(path, spark, lambda *_: end(RuntimeError()), group="night")
    assert spark.file.close.call_count == 1
    with pytest.raises(KeyboardInterrupt):
        drain(path, spark, lambda *_: end(KeyboardInterrupt()), group="night")
    assert spark.file.close.call_count == 1
    with pytest.raises(QueueLockedError, match="was interrupted, and Spark may still write it"):
        drain(path, LocksForSpark(), lambda *_: pytest.fail("it ran"), group="night")  # type: ignore[arg-type]
    assert spark.file.close.call_count == 1


def test_a_batch_that_still_runs_keeps_the_lock_of_its_jvm(path: Path) -> None:
    """Its drain was interrupted while it waited for the batches in flight."""
    from holdfast.spark.draining.drainer import SparkEngine

    spark: Any = LocksForSpark()
    begun, ends = threading.Event(), threading.Event()
    engine = SparkEngine(spark, lambda *_: (begun.set(), ends.wait(SECONDS)), None, 1)
    with PersistentQueue(path) as queue:
        reservation = queue.reservations.take()
        assert reservation is not None
        run = engine.prepare(queue, reservation, queue.reservations.size_bytes(reservation), [])
        thread = threading.Thread(target=run)
        thread.start()
        assert begun.wait(SECONDS)
        engine.release(queue)
        assert not spark.file.close.called
        ends.set()
        thread.join()


def test_what_is_behind_a_batch_that_failed_stays_reserved_with_it(
    engine: Any, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether it has run or failed as well; the next drain runs all of them again, under their ids."""
    sink = Sink()

    def fail(table: Any, batch_id: str) -> None:
        sink(table, batch_id)
        if first_of(batch_id) == 100:
            assert sink.has[200].wait(SECONDS)
            raise RuntimeError("the first one")
        if first_of(batch_id) == 300:
            raise RuntimeError("another one")

    with pytest.raises(RuntimeError, match="the first one") as caught, caplog.at_level(logging.WARNING):
        engine.drain(path, fail, max_messages=100, group="night", in_flight=3)
    stays = [each for each in sink.calls if first_of(each) >= 100]
    assert [first_of(each) for each in sorted(stays, key=first_of)] == [100, 200, 300]
    assert caught.value.__notes__ == [
        f"batch {min(stays, key=first_of)} stays reserved: the next drain runs it again, with the same messages"
    ]
    assert [record.message.split("-")[-1] for record in caplog.records] == [
        "200 has run and stays reserved: one before it failed",
        "300 failed, too, and stays reserved: another one",
    ]
    sink.calls.clear()
    report = engine.drain(path, sink, max_messages=400, group="night", in_flight=2)
    assert set(report.batch_ids[:3]) == set(stays)
    assert (report.resumed_count, report.message_count, report.depth) == (3, 900, 0)
    assert sink.offsets == list(range(1000))


def test_messages_of_one_order_key_are_never_in_two_batches_at_once(engine: Any, tmp_path: Path) -> None:
    """The next batch with that key waits for the commit of the first one; nothing is left for another drain."""
    running: list[str] = []
    rows: list[int] = []
    with PersistentQueue(tmp_path / "q", mode="exclusive") as queue:
        for number in range(50):
            queue.put(b"%d" % number, order_key="one")

    def alone(table: Any, batch_id: str) -> None:
        running.append(batch_id)
        assert running == [batch_id]
        rows.extend(table.column("offset").to_pylist())
        running.remove(batch_id)

    report = engine.drain(tmp_path / "q", alone, max_messages=10, group="night", in_flight=4)
    assert rows == list(range(50))
    assert (len(report.batch_ids), report.depth) == (5, 0)


def test_stop_finishes_the_batches_at_hand(engine: Any, path: Path) -> None:
    """All of those that run, and no other one begins."""
    sink = Sink()
    sink.waits[0] = sink.has[100]

    def stopped(table: Any, batch_id: str) -> None:
        if first_of(batch_id) == 100:
            drainer.stop()
        sink(table, batch_id)

    drainer = engine.drainer(path, stopped, max_messages=100, group="night", in_flight=2)
    report = drainer.run("forever")
    assert [first_of(each) for each in report.batch_ids] == [0, 100]
    assert sink.offsets == list(range(200))
    assert report.depth == 800


def test_losses_that_the_tasks_of_another_batch_have_noted_are_not_forgotten(path: Path) -> None:
    """The notes of a batch stay until it is committed, though one before it is committed meanwhile."""
    fill(path, range(1000, 6000))
    file = sorted((path / "data").iterdir())[-2]
    content = bytearray(file.read_bytes())
    at = content.index(b'{"id": ', len(content) // 2)
    lost = int(content[at + 7 : content.index(b",", at)])
    content[at] ^= 1
    file.write_bytes(content)
    has_noted, committed = threading.Event(), threading.Event()
    offsets: list[int] = []

    def write(rows: Any, batch_id: str) -> None:
        if first_of(batch_id) == 0:
            assert has_noted.wait(SECONDS)
        offsets.extend(row["offset"] for row in rows())
        if first_of(batch_id) == 3000:
            assert list((path / "groups" / "night").glob("lost-*.json"))
            has_noted.set()
            assert committed.wait(SECONDS)

    spark: Any = TasksForSpark()
    report = drain(
        path, spark, write, max_messages=3000, group="night", in_flight=2, on_progress=lambda _: committed.set()
    )
    assert [list(each.offsets) for each in report.damage] == [[lost]]
    assert sorted(offsets) == sorted(set(range(6000)) - {lost})
    assert not list((path / "groups" / "night").glob("lost-*.json"))


def test_losses_of_a_batch_that_comes_again_are_told_though_its_sink_does_not_read_it(path: Path) -> None:
    """The sink has it already, and one before it is committed first."""
    lost = 450
    file = min((path / "data").iterdir())
    content = bytearray(file.read_bytes())
    content[content.index(b'{"id": %d,' % lost)] ^= 1
    file.write_bytes(content)
    has: dict[str, list[int]] = {}
    ran = threading.Event()

    def write(rows: Any, batch_id: str) -> None:
        if first_of(batch_id) == 0 and not ran.is_set():
            assert ran.wait(SECONDS)
            raise RuntimeError("no network")
        if batch_id not in has:
            has[batch_id] = rows.read_all().column("offset").to_pylist()
        ran.set()

    with pytest.raises(RuntimeError, match="no network"):
        arrow.drain(path, write, max_messages=400, group="night", in_flight=2)
    report = arrow.drain(path, write, max_messages=400, group="night")
    assert [list(each.offsets) for each in report.damage] == [[lost]]
    assert sorted(each for batch in has.values() for each in batch) == sorted(set(range(1000)) - {lost})
    assert not list((path / "groups" / "night").glob("lost-*.json"))


def test_a_batch_has_the_columns_that_are_asked_for(engine: Any, path: Path) -> None:
    """In their order, whether tasks read it or the driver."""
    tables: list[Any] = []
    engine.drain(path, lambda table, _: tables.append(table), columns=["offset", "payload"], max_messages=1, group="a")
    assert {tuple(table.column_names) for table in tables} == {("offset", "payload")}
    rows: list[Any] = []
    fill(path, range(1000, 2000))
    spark: Any = TasksForSpark()
    drain(path, spark, lambda read, _: rows.extend(read()), columns=["priority", "offset"], group="b")
    assert rows == [{"priority": 0, "offset": offset} for offset in range(2000)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"in_flight": 0}, "in_flight is 1 to 8 batches, not 0"),
        ({"in_flight": 9}, "in_flight is 1 to 8 batches, not 9"),
        ({"columns": ["offset", "size"]}, r"columns are a list of payload, offset, .*; not \['offset', 'size'\]"),
        ({"columns": []}, r"not \[\]"),
        ({"columns": "offset"}, "not 'offset'"),
    ],
)
def test_options_that_cannot_be_are_refused(engine: Any, path: Path, options: dict[str, Any], message: str) -> None:
    """Before anything is opened."""
    with pytest.raises(ConfigError, match=message):
        engine.drain(path, lambda _, __: None, **options)


def test_without_another_thread_the_batches_run_one_after_the_other(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the thread of the drain; nothing runs behind a batch that failed."""

    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    sink, threads = Sink(), set[str]()

    def write(table: Any, batch_id: str) -> None:
        threads.add(threading.current_thread().name)
        sink(table, batch_id)
        if first_of(batch_id) == 300:
            raise ValueError("struck")

    with PersistentQueue(path, mode="exclusive") as queue:
        monkeypatch.setattr(threading.Thread, "start", refused)
        with pytest.raises(ValueError, match="struck"):
            drain(queue, SPARK, write, max_messages=100, in_flight=2)
        monkeypatch.undo()
    assert [first_of(each) for each in sink.calls] == [0, 100, 200, 300]
    assert threads == {threading.current_thread().name}


def test_an_interrupt_waits_for_the_batches_that_run_and_commits_none_of_them(path: Path) -> None:
    """A drain that has ended writes no more: the next one may begin with the same batches."""
    sink, interrupted = Sink(), threading.Event()

    def write(table: Any, batch_id: str) -> None:
        if first_of(batch_id) == 0:
            assert sink.has[100].wait(SECONDS)
            os.kill(os.getpid(), signal.SIGUSR1)
            assert interrupted.wait(SECONDS)
        sink(table, batch_id)

    def interrupt(_: int, __: object) -> None:
        interrupted.set()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            drain(path, SPARK, write, max_messages=100, group="night", in_flight=2)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert sorted(map(first_of, sink.batches)) == [0, 100], "both have ended"
    report = drain(path, SPARK, sink, max_messages=100, group="night", in_flight=2)
    assert (report.resumed_count, report.message_count, report.depth) == (2, 1000, 0)
