"""A drain of many queues, whichever engine runs its batches: a drain of each, whose errors are its own."""

import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest

from holdfast import ConfigError, DrainError, PersistentQueue, QueueLockedError, QueueNotFoundError, StorageError
from holdfast.arrow import DrainProgress
from holdfast.arrow.draining import many_drains
from holdfast.arrow.reading.many_queues import queues_named
from support.arrow.engines import ENGINES
from support.processes.children import child
from support.processes.disk_deaths import die
from support.processes.threads import wait_until
from support.spark.drain_faults import GROUP, assert_nothing_left
from support.spark.drains import fill

COUNTS = {"orders-a": 300, "orders-b": 200, "orders-c": 100}


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Any:
    """What runs the batches."""
    return request.param


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A directory of three queues of orders, and of another one."""
    for name, count in (COUNTS | {"returns": 50}).items():
        fill(tmp_path / "data" / name, range(count))
    return tmp_path / "data"


class Sink:
    """Replaces what it has of a batch, in files that outlive the process."""

    def __init__(self, root: Path, acts: Callable[[str, str], object] = lambda queue, batch_id: None) -> None:
        self.root = root
        self.acts = acts
        self.calls: list[tuple[str, str]] = []

    def __call__(self, table: Any, batch_id: str) -> None:
        (queue,) = set(table.column("queue").to_pylist())
        self.calls.append((queue, batch_id))
        self.root.mkdir(exist_ok=True)
        lines = [f"{queue} {offset}\n" for offset in table.column("offset").to_pylist()]
        (self.root / batch_id).write_text("".join(lines))
        self.acts(queue, batch_id)

    def counts(self) -> dict[str, int]:
        """Return how many rows there are of each queue; each of them once."""
        lines = [line for file in self.root.iterdir() for line in file.read_text().splitlines()]
        assert len(set(lines)) == len(lines)
        names = [line.split()[0] for line in lines]
        return {name: names.count(name) for name in sorted(set(names))}


def fails_at(name: str) -> Callable[[str, str], object]:
    """Return what fails with each batch of a queue."""

    def act(queue: str, _: str) -> None:
        if queue == name:
            raise RuntimeError("no room in the sink")

    return act


def test_each_queue_is_drained_in_batches_of_its_own(engine: Any, data: Path, tmp_path: Path) -> None:
    """The report has that of each; the rows name their queue, and progress does."""
    sink, progress = Sink(tmp_path / "out"), list[DrainProgress]()
    options = {"queues": "orders-*", "group": GROUP, "max_messages": 150}
    report = engine.drain(data, sink, on_progress=progress.append, **options)
    assert sink.counts() == {name: report.queues[name].message_count for name in COUNTS} == COUNTS
    assert [queue for queue, _ in sink.calls] == [each.queue for each in progress]
    assert [queue for queue, _ in sink.calls] == ["orders-a"] * 2 + ["orders-b"] * 2 + ["orders-c"]
    assert report.batch_ids == tuple(batch_id for _, batch_id in sink.calls)
    assert (report.message_count, report.depth, report.resumed_count, report.damage) == (600, 0, 0, ())
    assert report.size_bytes == sum(each.size_bytes for each in report.queues.values()) > 600 * 200
    assert report.seconds >= sum(each.seconds for each in report.queues.values()) > 0
    assert [each.total_count for each in progress] == [150, 300, 150, 200, 100]
    for name in COUNTS:
        assert_nothing_left(data / name)
    with PersistentQueue(data / "returns", mode="read_only") as queue:
        assert (queue.stats().depth, [each.name for each in queue.groups.list()]) == (50, [])
    assert engine.drain(data, sink, **options).batch_ids == ()


def test_a_queue_that_fails_keeps_no_other_from_being_drained(engine: Any, data: Path, tmp_path: Path) -> None:
    """The error comes at the end, with the report and the errors by queue; the next drain has every row once."""
    sink = Sink(tmp_path / "out", fails_at("orders-a"))
    with PersistentQueue(data / "orders-b", mode="exclusive"), pytest.raises(DrainError) as caught:
        engine.drain(data, sink, queues="orders-*", group=GROUP, max_messages=70)
    error = caught.value
    assert list(error.errors) == ["orders-a", "orders-b"]
    assert isinstance(error.errors["orders-b"], QueueLockedError)
    assert "2 of 3 queues" in str(error)
    assert "orders-a: no room in the sink; orders-b: " in str(error)
    assert error.__cause__ is error.errors["orders-a"]
    assert "stays reserved" in error.errors["orders-a"].__notes__[0]
    reports = error.report.queues
    assert {name: (each.message_count, each.depth) for name, each in reports.items()} == {
        "orders-a": (0, 300),
        "orders-c": (100, 0),
    }
    sink.acts = lambda *_: None
    report = engine.drain(data, sink, queues="orders-*", group=GROUP)
    assert [each.resumed_count for each in report.queues.values()] == [1, 0, 0]
    assert sink.counts() == COUNTS


def test_the_error_shows_the_first_queues_that_failed(engine: Any, data: Path) -> None:
    """One line, however many failed."""
    fill(data / "orders-d", range(10))
    with pytest.raises(DrainError) as caught:
        engine.drain(data, lambda *_: 1 / 0, queues="*", group=GROUP)
    assert "5 of 5 queues" in str(caught.value)
    assert str(caught.value).endswith("orders-c: division by zero; and 2 more)")
    assert "\n" not in str(caught.value)


def test_the_error_has_one_line_of_each_exception(engine: Any, data: Path) -> None:
    """Those of Spark have many lines; any text may have control characters."""

    def fail(*_: Any) -> None:
        raise RuntimeError("\nno \x1b[31mroom\n\nJVM stacktrace:\n...")

    with pytest.raises(DrainError, match=r"\(orders-a: no \\x1b\[31mroom\)$"):
        engine.drain(data, fail, queues="orders-a", group=GROUP)


@pytest.mark.parametrize("is_committed", [True, False], ids=["behind the first commit", "before the second commit"])
def test_a_drain_that_is_killed_between_the_commits_of_two_queues_has_every_row_once(
    engine: Any, data: Path, tmp_path: Path, *, is_committed: bool
) -> None:
    """The next one begins with what the killed one has left, under the same id; what was committed does not come."""
    killed = Sink(tmp_path / "out", lambda queue, _: None if is_committed or queue == "orders-a" else die())

    def look(_: DrainProgress) -> None:
        if is_committed:
            die()

    with child(lambda: engine.drain(data, killed, queues="orders-*", group=GROUP, on_progress=look)) as driver:
        assert driver.wait() == -signal.SIGKILL
    sink = Sink(tmp_path / "out")
    written = {each.name for each in sink.root.iterdir()}
    report = engine.drain(data, sink, queues="orders-*", group=GROUP)
    assert report.queues["orders-a"].batch_ids == ()
    resumed = [batch_id for batch_id in report.batch_ids if batch_id in written]
    assert report.resumed_count == len(resumed) == (0 if is_committed else 1)
    assert sink.counts() == COUNTS
    for name in COUNTS:
        assert_nothing_left(data / name)


class WithoutEnd:
    """A drain without end in a thread, which looks for queues often."""

    def __init__(self, engine: Any, data: Path, sink: Sink, monkeypatch: pytest.MonkeyPatch, names: str) -> None:
        monkeypatch.setattr(many_drains, "FIND_SECONDS", 0.05)
        monkeypatch.setattr(many_drains, "AGAIN_SECONDS", 0.2)
        self.reports: list[Any] = []
        self._batches = threading.Semaphore(0)
        self._drainer = engine.drainer(
            data, sink, queues=names, group=GROUP, max_messages=100, on_progress=lambda _: self._batches.release()
        )
        self._thread = threading.Thread(target=lambda: self.reports.append(self._drainer.run("forever")))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._drainer.stop()
        self._thread.join(30)
        assert not self._thread.is_alive()

    def wait_for(self, count: int) -> None:
        """Wait until so many more batches are committed."""
        for _ in range(count):
            assert self._batches.acquire(timeout=30)


def test_a_drain_without_end_takes_queues_that_are_made_later_and_tries_failed_ones_again(
    engine: Any, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a pause; each queue has its turn."""
    sink = Sink(tmp_path / "out", fails_at("orders-b"))
    with WithoutEnd(engine, data, sink, monkeypatch, "orders-*") as drain:
        drain.wait_for(4)  # all but those of the queue that fails
        sink.acts = lambda *_: None
        drain.wait_for(2)
        fill(data / "orders-d", range(40))
        fill(data / "orders-a", range(300, 330))
        drain.wait_for(2)
    assert sink.counts() == COUNTS | {"orders-a": 330, "orders-d": 40}
    (report,) = drain.reports
    assert report.message_count == 670
    assert report.queues["orders-b"].resumed_count == 1


def test_a_drain_without_end_leaves_a_queue_that_is_gone(
    engine: Any, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What it has drained of it counts; another queue of that name joins. If none is left, it waits for one."""
    sink = Sink(tmp_path / "out")
    with WithoutEnd(engine, data, sink, monkeypatch, "orders-*") as drain:
        drain.wait_for(6)
        for name in ("orders-a", "orders-b"):
            (data / name).rename(tmp_path / name)
        wait_until(lambda: "orders-a is gone" in caplog.text and "orders-b is gone" in caplog.text)
        (data / "orders-c").rename(tmp_path / "orders-c")
        time.sleep(0.2)  # several looks, which find no queue at all
        fill(data / "orders-a", range(70))
        drain.wait_for(1)
    (report,) = drain.reports
    assert {name: each.message_count for name, each in report.queues.items()} == COUNTS | {"orders-a": 370}


def test_a_drain_without_end_takes_new_queues_while_one_that_was_named_is_gone(
    engine: Any, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A name without a pattern has to be there at the beginning only."""
    sink = Sink(tmp_path / "out")
    with WithoutEnd(engine, data, sink, monkeypatch, "returns,orders-*") as drain:
        drain.wait_for(7)
        (data / "returns").rename(tmp_path / "returns")
        wait_until(lambda: "returns is gone" in caplog.text)
        fill(data / "orders-d", range(20))
        drain.wait_for(1)
    assert sink.counts() == COUNTS | {"orders-d": 20, "returns": 50}


def test_a_drain_without_end_survives_a_directory_that_cannot_be_read_for_a_time(
    engine: Any, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What it has open is drained; that is said once, and queues join again behind it."""
    is_away = threading.Event()

    def found(*arguments: Any, **options: Any) -> list[Path]:
        if is_away.is_set():
            raise StorageError("looking for queues failed: the network is away")
        return queues_named(*arguments, **options)

    monkeypatch.setattr(many_drains, "queues_named", found)
    sink = Sink(tmp_path / "out")
    with WithoutEnd(engine, data, sink, monkeypatch, "orders-*") as drain:
        drain.wait_for(6)
        is_away.set()
        wait_until(lambda: "the network is away" in caplog.text)
        fill(data / "orders-a", range(300, 310))
        drain.wait_for(1)
        fill(data / "orders-d", range(20))
        time.sleep(0.2)  # several looks
        is_away.clear()
        drain.wait_for(1)
    assert caplog.text.count("the network is away") == 1
    assert sink.counts() == COUNTS | {"orders-a": 310, "orders-d": 20}


def test_a_drain_without_end_comes_back_to_a_queue_that_was_shut_down(
    engine: Any, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are drained meanwhile."""
    sink = Sink(tmp_path / "out")
    with PersistentQueue(data / "orders-b", mode="shared") as owner:
        owner.shutdown(timeout=0)
        with WithoutEnd(engine, data, sink, monkeypatch, "orders-*") as drain:
            drain.wait_for(6)
            owner.close()
            fill(data / "orders-b", range(200, 210))
            drain.wait_for(1)
    assert sink.counts() == COUNTS | {"orders-b": 210}


def test_a_drain_without_end_has_some_of_many_queues_open_at_once(
    engine: Any, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those in which nothing comes make room; what comes into them later is drained, too."""
    monkeypatch.setattr(many_drains, "OPEN_MAX", 2)
    monkeypatch.setattr(many_drains, "REST_SECONDS", 0.1)
    joined: list[str] = []
    join, most = many_drains.ManyDrains._join, [0]

    def watched(drains: many_drains.ManyDrains, path: Path) -> None:
        join(drains, path)
        joined.append(path.name)
        most[0] = max(most[0], len(drains._open))

    monkeypatch.setattr(many_drains.ManyDrains, "_join", watched)
    sink = Sink(tmp_path / "out")
    with WithoutEnd(engine, data, sink, monkeypatch, "orders-*") as drain:
        drain.wait_for(6)
        for name, count in COUNTS.items():
            fill(data / name, range(count, count + 10))
            drain.wait_for(1)
        joined.clear()
        wait_until(lambda: len(joined) > 4)
        assert set(joined) <= {"orders-a", "orders-b"}, "the one in which something has come last stays open"
    assert most == [2]
    assert sink.counts() == {name: count + 10 for name, count in COUNTS.items()}


def test_a_drain_without_end_tells_what_fails_until_it_is_stopped(engine: Any, data: Path, tmp_path: Path) -> None:
    """The others are drained."""
    sink = Sink(tmp_path / "out", fails_at("orders-b"))

    def look(progress: DrainProgress) -> None:
        if progress.queue == "orders-c":
            drainer.stop()

    drainer = engine.drainer(data, sink, queues="orders-*", group=GROUP, on_progress=look)
    with pytest.raises(DrainError) as caught:
        drainer.run("forever")
    assert list(caught.value.errors) == ["orders-b"]
    assert {name: each.depth for name, each in caught.value.report.queues.items()} == {
        "orders-a": 0,
        "orders-b": 200,
        "orders-c": 0,
    }


def test_two_drains_of_one_engine_in_turn_resume_each_other(data: Path, tmp_path: Path) -> None:
    """A drain of one queue continues what a drain of many has left, with the other engine."""
    first, second = (each.values[0] for each in ENGINES)
    sink = Sink(tmp_path / "out", fails_at("orders-b"))
    with pytest.raises(DrainError):
        first.drain(data, sink, queues="orders-*", group=GROUP)
    held = sink.calls[1][1]
    assert second.drain(data / "orders-b", lambda *_: None, group=GROUP).batch_ids == (held,)


def test_arguments_that_cannot_be_are_refused_before_anything_is_drained(engine: Any, data: Path) -> None:
    """An open queue, a path in a pattern, names of nothing."""
    with PersistentQueue(data / "orders-a", mode="shared") as queue, pytest.raises(ConfigError, match="one open queue"):
        engine.drain(queue, pytest.fail, queues="orders-*")
    with pytest.raises(ConfigError, match="names in one directory"):
        engine.drain(data, pytest.fail, queues="data/orders-*")
    for names in ("refunds-*", "orders-a,refunds"):
        with pytest.raises(QueueNotFoundError, match="there are orders-a, orders-b, orders-c, returns"):
            engine.drain(data, pytest.fail, queues=names)
    with pytest.raises(ConfigError, match="tomorrow"):
        engine.drain(data, pytest.fail, queues="orders-*", until="tomorrow")
    with PersistentQueue(data / "orders-a", mode="read_only") as queue:
        assert queue.prepared() == []


def test_a_queue_and_its_copy_are_not_drained_together(engine: Any, data: Path, tmp_path: Path) -> None:
    """Both have one id, so their batches would take each other's places; the other queues are drained."""
    sink = Sink(tmp_path / "out")
    engine.drain(data, sink, queues="orders-a", group=GROUP)
    shutil.copytree(data / "orders-a", data / "orders-a2")
    fill(data / "orders-a", range(300, 350))
    fill(data / "orders-a2", range(300, 310))
    with pytest.raises(
        DrainError, match=r"orders-a has the id of orders-a2, as a copy has: .*move one to another directory"
    ) as caught:
        engine.drain(data, sink, queues="orders-*", group=GROUP)
    assert {name: type(error) for name, error in caught.value.errors.items()} == {
        "orders-a": ConfigError,
        "orders-a2": ConfigError,
    }
    assert sink.counts() == COUNTS
    engine.drain(data, sink, queues="orders-a,orders-b", group=GROUP)
    assert sink.counts() == COUNTS | {"orders-a": 350}


def test_a_copy_that_is_made_beside_a_drain_without_end_does_not_join(
    engine: Any, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The queue itself is drained on; once the copy is gone, it counts no more."""
    sink = Sink(tmp_path / "out")
    shutil.copytree(data / "orders-a", tmp_path / "copy")
    fill(tmp_path / "copy", range(300, 310))
    with WithoutEnd(engine, data, sink, monkeypatch, "orders-*") as drain:
        drain.wait_for(6)
        (tmp_path / "copy").rename(data / "orders-a2")
        wait_until(lambda: "orders-a2 has the id of orders-a" in caplog.text)
        fill(data / "orders-a", range(300, 340))
        drain.wait_for(1)
        assert sink.counts() == COUNTS | {"orders-a": 340}
        (data / "orders-a2").rename(tmp_path / "copy")
        wait_until(lambda: "orders-a2 is gone" in caplog.text)
    assert drain.reports[0].queues.keys() == COUNTS.keys()
