"""A drain, or a stream, whose driver is killed: the next driver runs the same batch, and every row counts once."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from holdfast import PersistentQueue, QueueLockedError
from holdfast.spark import DrainProgress, drain, finalize
from support.arrow.engines import ENGINES
from support.processes.children import Child, Signal, child
from support.processes.cli import command, run
from support.processes.disk_deaths import die, killed_at
from support.processes.threads import Threads, wait_until
from support.spark import drains, streams
from support.spark.drain_faults import GROUP, assert_drained, assert_nothing_left, note, noted
from support.spark.drains import MOMENTS, numbers, write_parquet
from support.spark.streams import STREAM

COUNT = 600
BATCH = 250


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Any:
    """What runs the batches."""
    return request.param


def fill(path: Path, numbers: range, *, size: int) -> Path:
    """Put messages that say their number, into several data files."""
    with PersistentQueue(path, mode="shared", data_file_bytes=2**15 if len(numbers) < 1000 else 2**18) as queue:
        for at in range(numbers.start, numbers.stop, 20):
            batch = range(at, min(at + 20, numbers.stop))
            queue.put_many([b'{"id": %d, "rest": "%s"}' % (each, b"x" * size) for each in batch])
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A queue for batches that need no Java."""
    return fill(tmp_path / "q", range(COUNT), size=400)


class Directory:
    """Writes batches as a directory sink does: what is there of a batch goes first; then come two files.

    Parameters
    ----------
    root : Path
        Where to.
    notes : Path
        Gets a line for each call, with the id and the offsets.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.notes = root.with_name(f"{root.name}.notes")

    def __call__(self, table: Any, batch_id: str) -> None:
        offsets = table.column("offset").to_pylist()
        note(self.notes, batch_id, json.dumps(offsets, separators=(",", ":")))
        directory = self.root / batch_id
        directory.mkdir(parents=True, exist_ok=True)
        for part in directory.iterdir():
            part.unlink()
        half = len(offsets) // 2
        (directory / "first").write_text(json.dumps(offsets[:half]))
        self.between(batch_id)
        (directory / "second").write_text(json.dumps(offsets[half:]))

    def between(self, batch_id: str) -> None:
        """Called when half of a batch is written."""

    def offsets(self) -> list[int]:
        """Return everything that was written."""
        return sorted(offset for part in self.root.glob("*/*") for offset in json.loads(part.read_text()))

    def calls(self) -> list[tuple[str, str]]:
        """Return each call that anybody has made: id and offsets."""
        return [(line.split()[0], line.split()[1]) for line in noted(self.notes)]


def assert_same_rows(sink: Directory) -> None:
    """No batch was ever run with other rows than the first time."""
    assert len(set(sink.calls())) == len({batch_id for batch_id, _ in sink.calls()})


# -- The driver, without Spark ---------------------------------------------------------------------------------------


class DiesBetween(Directory):
    """Is killed with its second batch half written."""

    def between(self, batch_id: str) -> None:
        if not batch_id.endswith("-0"):
            die()


class DiesBefore(Directory):
    """Is killed when it is called with its second batch."""

    def __call__(self, table: Any, batch_id: str) -> None:
        if not batch_id.endswith("-0"):
            die()
        super().__call__(table, batch_id)


class DiesBehind(Directory):
    """Is killed when it has written its second batch."""

    def __call__(self, table: Any, batch_id: str) -> None:
        super().__call__(table, batch_id)
        if not batch_id.endswith("-0"):
            die()


def die_behind_the_commit(progress: DrainProgress) -> None:
    """Be killed as soon as the second batch is committed."""
    if progress.total_count > BATCH:
        die()


@pytest.mark.usefixtures("arrow_packages")
@pytest.mark.parametrize(
    ("moment", "is_held"),
    [("before the write", True), ("half written", True), ("before the commit", True), ("behind the commit", False)],
)
def test_the_drain_after_a_killed_one_begins_with_its_batch(
    engine: Any, path: Path, tmp_path: Path, moment: str, is_held: bool
) -> None:
    """Its id and its rows, though more have come and the bounds are others; a batch that was committed never comes."""
    kinds = {"before the write": DiesBefore, "half written": DiesBetween, "before the commit": DiesBehind}
    killed = kinds.get(moment, Directory)(tmp_path / "out")
    on_progress = None if is_held else die_behind_the_commit
    with child(lambda: engine.drain(path, killed, max_messages=BATCH, group=GROUP, on_progress=on_progress)) as driver:
        assert driver.wait() == -signal.SIGKILL
    fill(path, range(COUNT, COUNT + 50), size=10)
    sink = Directory(tmp_path / "out")
    before = len(sink.calls())
    report = engine.drain(path, sink, max_messages=100, group=GROUP)
    assert report.resumed_count == is_held
    resumed, rows = sink.calls()[before]
    assert json.loads(rows) == list(range(BATCH, 2 * BATCH) if is_held else range(2 * BATCH, 2 * BATCH + 100))
    assert resumed == report.batch_ids[0]
    assert_same_rows(sink)
    assert sink.offsets() == list(range(COUNT + 50))
    assert_nothing_left(path)


@pytest.mark.usefixtures("arrow_packages")
@pytest.mark.parametrize("in_flight", [1, 2])
def test_a_drain_may_be_killed_at_any_call_to_the_disk(engine: Any, tmp_path: Path, in_flight: int) -> None:
    """From the making of its group to the retiring of data files; the next one has every row once."""
    template = fill(tmp_path / "q", range(60), size=1200)
    killed_count = resumed_count = 0
    for call in count(1):
        path = Path(shutil.copytree(template, tmp_path / f"q{call}"))
        sink = Directory(tmp_path / f"out{call}")

        def work(call: int = call, path: Path = path, sink: Directory = sink) -> None:
            with killed_at(call):
                engine.drain(path, sink, max_messages=25, group=GROUP, in_flight=in_flight)

        with child(work) as driver:
            ended = driver.wait()
        report = engine.drain(path, sink, max_messages=10, group=GROUP)
        assert_same_rows(sink)
        assert sink.offsets() == list(range(60))
        assert_nothing_left(path)
        resumed_count += report.resumed_count
        if ended == 0:
            break
        assert ended == -signal.SIGKILL
        killed_count += 1
    assert killed_count > 20
    assert resumed_count >= 3, "each of the three batches is held when its commit begins"


@pytest.mark.usefixtures("arrow_packages")
def test_a_second_drain_is_refused_or_waits_until_the_first_one_is_killed(
    engine: Any, path: Path, tmp_path: Path
) -> None:
    """The refusal names the process; who waits takes over the batch at hand."""
    has_begun, sink = Signal(), Directory(tmp_path / "out")

    def hang(_: Any, batch_id: str) -> None:
        has_begun.send(batch_id)
        signal.pause()

    with child(lambda: engine.drain(path, hang, max_messages=BATCH, group=GROUP)) as first:
        batch_id = has_begun.wait()
        with pytest.raises(QueueLockedError, match=f"process {first.pid}\\b"):
            engine.drain(path, sink, group=GROUP)
        threads = Threads()
        reports: list[Any] = []
        threads.start(lambda: reports.append(engine.drain(path, sink, group=GROUP, lock_timeout=60)))
        first.kill()
        threads.join()
    has_begun.close()
    assert reports[0].batch_ids[0] == batch_id
    assert reports[0].resumed_count == 1
    assert sink.offsets() == list(range(COUNT))
    assert_nothing_left(path)


# -- An application in another process -------------------------------------------------------------------------------


def putting(path: Path, journal: Path, has_begun: Signal) -> None:
    """Put messages that say their number, and note each in a journal once it is put; without end."""
    with PersistentQueue(path, mode="shared") as queue:
        for number in count():
            offset = queue.put(b'{"id": %d}' % number)
            note(journal, str(offset))
            if number == COUNT // 2:
                has_begun.send("owner" if queue.is_owner else "client")


@contextmanager
def application(path: Path, journal: Path) -> Iterator[tuple[Child, str]]:
    """Run an application that puts, until it is killed; yield it, and whether it is the owner or a client."""
    has_begun = Signal()
    try:
        with child(lambda: putting(path, journal, has_begun)) as process:
            yield process, has_begun.wait()
    finally:
        has_begun.close()


def assert_each_once(path: Path, journal: Path, sink: Directory) -> None:
    """All that was put is in the output, once."""
    with PersistentQueue(path, mode="read_only") as queue:
        end = queue.stats().next_offset
    assert sink.offsets() == list(range(end))
    assert {int(each) for each in noted(journal)} <= set(range(end))
    assert_same_rows(sink)
    assert_nothing_left(path)


@pytest.mark.usefixtures("arrow_packages")
@pytest.mark.parametrize("kind", [DiesBefore, DiesBetween, DiesBehind])
def test_a_driver_that_is_killed_beside_the_owner_leaves_its_batch_to_the_next_one(
    engine: Any, tmp_path: Path, kind: type[Directory]
) -> None:
    """The application owns the queue, and puts all the time."""
    path, journal = tmp_path / "q", tmp_path / "journal"
    with application(path, journal) as (process, role):
        assert role == "owner"
        killed = kind(tmp_path / "out")
        with child(lambda: engine.drain(path, killed, max_messages=100, group=GROUP)) as driver:
            assert driver.wait() == -signal.SIGKILL
        sink = Directory(tmp_path / "out")
        report = engine.drain(path, sink, max_messages=70, group=GROUP)
        assert report.resumed_count == 1
        assert process.is_alive()
        process.kill()
    engine.drain(path, sink, group=GROUP)
    assert_each_once(path, journal, sink)


@pytest.mark.usefixtures("arrow_packages")
def test_an_owner_that_is_killed_in_the_middle_of_a_batch_is_succeeded_by_the_driver(
    engine: Any, tmp_path: Path
) -> None:
    """The batch at hand is committed with the successor, and those behind it too."""
    path, journal = tmp_path / "q", tmp_path / "journal"
    with application(path, journal) as (process, role):
        assert role == "owner"

        class Kills(Directory):
            def between(self, batch_id: str) -> None:
                process.kill()

        sink = Kills(tmp_path / "out")
        report = engine.drain(path, sink, max_messages=100, group=GROUP)
    assert len(report.batch_ids) > 1
    assert report.resumed_count == 0
    engine.drain(path, sink, group=GROUP)
    assert_each_once(path, journal, sink)


@pytest.mark.usefixtures("arrow_packages")
def test_a_driver_that_owned_is_succeeded_by_the_application(engine: Any, tmp_path: Path) -> None:
    """It is killed with half of a batch written; the application puts on, and the next driver is its client."""
    path, journal = fill(tmp_path / "q", range(COUNT), size=10), tmp_path / "journal"
    runs = Signal()

    class Hangs(Directory):
        def between(self, batch_id: str) -> None:
            runs.send(batch_id)
            signal.pause()

    hanging = Hangs(tmp_path / "out")
    with child(lambda: engine.drain(path, hanging, max_messages=100, group=GROUP)) as driver:
        held = runs.wait()
        with application(path, journal) as (process, role):
            assert role == "client"
            driver.kill()
            driver.wait()
            put_count = len(noted(journal))
            wait_until(lambda: len(noted(journal)) > put_count + 10)
            sink = Directory(tmp_path / "out")
            report = engine.drain(path, sink, max_messages=200, group=GROUP)
            assert (report.batch_ids[0], report.resumed_count) == (held, 1)
            process.kill()
    runs.close()
    engine.drain(path, sink, group=GROUP)
    assert_each_once(path, journal, sink)


# -- The driver, with Spark ------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(300)  # a JVM starts, on a machine that may have other things to do
@pytest.mark.spark
def test_a_killed_driver_costs_nothing_and_counts_nothing_twice(spark: Any, tmp_path: Path) -> None:
    """It was in the middle of a stream, and at each moment of three drains; what it was about is taken up at once."""
    places = {name: tmp_path / "places" / name for name in (STREAM, *MOMENTS)}
    for name, place in places.items():
        drains.fill(place / "q", range(3000), size=300 if name == STREAM else 200)
        drains.fill(place / "q", range(3000, 8000 if name == STREAM else 10_000))
    with (tmp_path / "errors").open("wb") as errors:  # no pipe: its other end is held by what a dead driver leaves
        killed = subprocess.run(
            [sys.executable, streams.__file__, tmp_path / "places"],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdout=errors,
            stderr=errors,
            timeout=200,
            check=False,
        )
    assert killed.returncode == -signal.SIGKILL, (tmp_path / "errors").read_text()
    assert_the_stream_loses_and_repeats_nothing(spark, places[STREAM])
    for moment in MOMENTS:
        assert_the_drain_begins_with_what_was_held(spark, places[moment], is_held=moment != "after the commit")


def assert_the_stream_loses_and_repeats_nothing(spark: Any, place: Path) -> None:
    """GroupStart anew from its checkpoint, Spark's file sink has every message once; the group kept what that took."""
    path, checkpoint, out = place / "q", place / "checkpoint", place / "out"
    streams.consume_all(path)
    assert not (checkpoint / "commits" / "7").exists(), "it was in the middle"
    streams.write_now(spark, path, checkpoint, out, group="stream", maxMessagesPerTrigger=1000)
    assert streams.offsets_in(spark, out) == list(range(8000))
    assert finalize(path, checkpoint, group="stream") == 8000
    assert len(list((path / "data").iterdir())) == 1


def assert_the_drain_begins_with_what_was_held(spark: Any, place: Path, *, is_held: bool) -> None:
    """The dead one's lock is free, and its batch comes again as it was; what was committed does not."""
    path, out = place / "q", place / "out"
    drains.fill(path, range(10_000, 10_100))
    calls: list[tuple[str, int]] = []

    def write(frame: Any, batch_id: str) -> None:
        calls.append((batch_id, frame.count()))
        write_parquet(out, frame, batch_id)

    report = drain(path, spark, write, max_messages=2000, group="night")
    assert numbers(spark, out) == list(range(10_100))
    assert report.resumed_count == is_held
    assert calls[0][1] == (4000 if is_held else 2000)
    assert [each.name for each in out.iterdir() if each.name.startswith("_")] == []


@pytest.mark.slow
@pytest.mark.timeout(300)  # JVMs start, on a machine that may have other things to do
@pytest.mark.spark
@pytest.mark.usefixtures("shared_session")
def test_the_command_that_is_killed_in_the_middle_of_a_batch_and_run_again_writes_every_row_once(
    tmp_path: Path,
) -> None:
    """At once, while what is left of the killed driver may still be there."""
    path, out, rows = fill(tmp_path / "q", range(16_000), size=1200), tmp_path / "out", range(16_000)
    arguments = (
        "drain",
        path,
        "--engine",
        "spark",
        "--format",
        "parquet",
        "--out",
        out,
        "--group",
        GROUP,
        "--max-messages",
        8000,
        "--json",
    )
    with (tmp_path / "log").open("wb") as log:  # no pipe: its other end is held by what a dead driver leaves
        driver = subprocess.Popen(command(*arguments), stdout=log, stderr=log)
    try:
        wait_until(lambda: bool(list(out.glob("*-8000/_temporary/0/_temporary/*/part-*"))), 200)
    finally:
        driver.kill()
        driver.wait()
    again = run(*arguments)
    assert (again.code, again.document["resumed_count"], again.document["message_count"]) == (0, 1, 8000)
    assert_drained(path, out, rows)
