"""A drain whose tasks, function or data files fail: every row in the result once, or named as lost."""

from __future__ import annotations

import json
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import Empty, PersistentQueue
from holdfast.arrow.draining.queue_drain import make_group
from holdfast.persistence.format.constants import FRAMES_START
from holdfast.spark import drain
from support.arrow.engines import ENGINES
from support.processes.cli import run
from support.processes.threads import Threads
from support.spark.drain_faults import (
    GROUP,
    KILLS_ITS_WORKER,
    KILLS_THE_READER,
    RAISES,
    Calls,
    assert_drained,
    assert_nothing_left,
    noted,
    struck_at,
    write_through,
)
from support.spark.drains import WITH_SPARK, fill, write_parquet

COUNT = 8000
SIZE = 1200
"""Together 9 MB: two tasks, and more than the buffers between their workers take."""

on_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds the workers in /proc")


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A queue whose messages say their number, in some forty data files; copied, never used."""
    path = tmp_path_factory.mktemp("template") / "q"
    with PersistentQueue(path, mode="shared", data_file_bytes=2**18) as queue:
        for at in range(0, COUNT, 100):
            queue.put_many([b'{"id": %d, "rest": "%s"}' % (each, b"x" * SIZE) for each in range(at, at + 100)])
    return path


@pytest.fixture
def path(template: Path, tmp_path: Path) -> Path:
    """A queue of one's own."""
    return Path(shutil.copytree(template, tmp_path / "q"))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Where batches go."""
    return tmp_path / "out"


# -- Tasks -----------------------------------------------------------------------------------------------------------


@pytest.mark.spark
@pytest.mark.parametrize(
    "fault", [RAISES, *(pytest.param(each, marks=on_linux) for each in (KILLS_ITS_WORKER, KILLS_THE_READER))]
)
def test_a_task_that_fails_in_mid_write_is_tried_again_and_its_rows_count_once(
    spark: Any, path: Path, out: Path, tmp_path: Path, fault: str
) -> None:
    """Spark does that by itself; the drain does not even hear of it."""
    notes = tmp_path / "notes"
    struck = struck_at(100, fault, notes, path)
    report = drain(path, spark, lambda frame, batch: write_through(struck, out, frame, batch), group=GROUP)
    (line,) = noted(notes)
    assert line.startswith(fault)
    assert fault == RAISES or int(line.split()[-1]) >= 1, "nobody was there to be killed"
    assert (report.message_count, report.depth, report.damage) == (COUNT, 0, ())
    assert_drained(path, out, range(COUNT))


@pytest.mark.spark
@pytest.mark.parametrize("when", ["in every attempt of a task", "behind the write"])
def test_what_a_function_raises_leaves_its_batch_to_the_next_drain(
    spark: Any, path: Path, out: Path, tmp_path: Path, when: str
) -> None:
    """The same id and the same rows, whatever has come and whatever the bounds are by then."""
    notes = tmp_path / "notes"
    struck = struck_at(COUNT // 2, RAISES, notes, path, attempts=100)

    def fail(frame: Any, batch_id: str) -> None:
        if when == "behind the write":
            write_parquet(out, frame, batch_id)
            raise RuntimeError("struck behind the write")
        write_through(struck, out, frame, batch_id)

    failing = Calls(fail)
    with pytest.raises(Exception, match="struck") as caught:
        drain(path, spark, failing, max_messages=COUNT - 1000, group=GROUP)
    ((batch_id, offsets),) = failing.batches
    assert batch_id in caught.value.__notes__[0]
    assert offsets == list(range(COUNT - 1000))
    assert len(noted(notes)) == (0 if when == "behind the write" else 4)
    with PersistentQueue(path, mode="shared", group=GROUP) as queue:
        assert [each.id for each in queue.reservations.held("drain")] == [batch_id]
        assert queue.stats().depth == COUNT
    fill(path, range(COUNT, COUNT + 10))
    working = Calls(lambda frame, batch: write_parquet(out, frame, batch))
    report = drain(path, spark, working, max_messages=3000, group=GROUP)
    assert working.batches[0] == (batch_id, offsets)
    assert report.resumed_count == 1
    assert_drained(path, out, range(COUNT + 10))


@pytest.mark.spark
def test_looking_at_a_batch_acknowledges_nothing(spark: Any, path: Path, out: Path) -> None:
    """Its first rows, which kills the task that reads them, nor all of them; not before the function has returned."""

    def look(frame: Any, batch_id: str) -> None:
        seen.append((frame.take(1)[0].offset, frame.limit(3).count(), frame.count(), batch_id))
        with PersistentQueue(path, mode="read_only", group=GROUP) as queue:
            assert queue.stats().depth == COUNT
        raise RuntimeError("looked")

    seen: list[tuple[int, int, int, str]] = []
    for _ in range(2):
        with pytest.raises(RuntimeError, match="looked"):
            drain(path, spark, look, group=GROUP)
    assert seen[0] == seen[1]
    assert seen[0][:3] == (0, 3, COUNT)
    report = drain(path, spark, lambda frame, batch: write_parquet(out, frame, batch), group=GROUP)
    assert report.batch_ids == (seen[0][3],)
    assert_drained(path, out, range(COUNT))


# -- Others beside it ------------------------------------------------------------------------------------------------


@pytest.mark.spark
def test_workers_of_the_default_group_and_a_drain_see_every_message_once_each(
    spark: Any, path: Path, out: Path
) -> None:
    """While more is put, and data files are retired that both have finished."""
    received: list[int] = []
    has_begun, first_batch, is_over = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        with PersistentQueue(path, mode="shared", data_file_bytes=2**18) as queue:
            received.append(json.loads(queue.get(timeout=0))["id"])  # with this the default group begins
            has_begun.set()
            queue.put_many([b'{"id": %d}' % number for number in range(COUNT, COUNT + 500)])
            assert first_batch.wait(60)
            while True:
                try:
                    with queue.receive_many(100, timeout=0) as batch:
                        received.extend(json.loads(each.payload)["id"] for each in batch)
                except Empty:
                    if is_over.is_set():
                        return

    def write(frame: Any, batch_id: str) -> None:
        write_parquet(out, frame, batch_id)
        first_batch.set()

    threads = Threads()
    threads.start(work)
    assert has_begun.wait(60)
    try:
        for _ in range(2):  # the second time for what was put meanwhile
            drain(path, spark, write, max_messages=3000, group=GROUP)
    finally:
        is_over.set()
        first_batch.set()
        threads.join()
    drain(path, spark, write, group=GROUP)
    assert sorted(received) == list(range(COUNT + 500))
    assert_drained(path, out, range(COUNT + 500))
    assert_nothing_left(path, "default")


# -- Damage ----------------------------------------------------------------------------------------------------------


def flip(file: Path, following: Path) -> range:
    """Damage the first message of a data file; return its offset."""
    del following
    with file.open("r+b") as raw:
        raw.seek(FRAMES_START + 60)
        raw.write(b"\xff\xff")
    first = first_offset(file)
    return range(first, first + 1)


def cut(file: Path, following: Path) -> range:
    """Cut a data file in the middle of its sixth message; return the offsets that are gone."""
    content, torn = file.read_bytes(), first_offset(file) + 5
    file.write_bytes(content[: content.index(b'{"id": %d,' % torn) + 20])
    return range(torn, first_offset(following))


def remove(file: Path, following: Path) -> range:
    """Remove a data file; return the offsets of its messages."""
    file.unlink()
    return range(first_offset(file), first_offset(following))


def first_offset(file: Path) -> int:
    """Return what the name of a data file says."""
    return int(file.stem.split("-")[1])


def damaged(path: Path, number: int, damage: Callable[[Path, Path], range]) -> range:
    """Damage a data file of a queue; return the offsets that are lost."""
    files = sorted((path / "data").iterdir())
    return damage(files[number], files[number + 1])


def lost_in(document: Any) -> list[int]:
    """Return the offsets that a report names."""
    return [offset for each in document for offset in each.offsets]


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A queue of 600 messages in several data files, for batches that need no Java."""
    with PersistentQueue(tmp_path / "small", mode="exclusive", data_file_bytes=2**15) as queue:
        for first in range(0, 600, 20):
            queue.put_many([b'{"id": %d, "rest": "%s"}' % (each, b"x" * 400) for each in range(first, first + 20)])
    return tmp_path / "small"


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("damage", [flip, cut, remove])
@pytest.mark.parametrize(
    "when", ["before the drain", "while its batch runs", "between two batches", "while it is held"]
)
def test_what_damage_has_taken_is_named_to_the_offset_and_the_rest_is_drained(
    engine: Any, small: Path, damage: Callable[[Path, Path], range], when: str
) -> None:
    """Whenever it happens, no batch stays behind; and nobody is told of it twice."""
    found: list[int] = []
    lost: list[int] = []

    def write(table: Any, _: str) -> None:
        if when == "between two batches" and not lost:
            lost.extend(damaged(small, 6, damage))
        found.extend(table.column("offset").to_pylist())
        for each, payload in zip(table.column("offset").to_pylist(), table.column("payload").to_pylist(), strict=True):
            assert json.loads(payload)["id"] == each

    def fail(_: Any, __: str) -> None:
        if when == "while its batch runs":
            lost.extend(damaged(small, 2, damage))
        raise RuntimeError("struck")

    make_group(small, GROUP)  # a group that is made later has never had what is gone
    if when == "before the drain":
        lost.extend(damaged(small, 2, damage))
    elif when != "between two batches":
        with pytest.raises(RuntimeError, match="struck"):
            engine.drain(small, fail, max_messages=250, group=GROUP)
        if when == "while it is held":
            lost.extend(damaged(small, 2, damage))
    report = engine.drain(small, write, max_messages=250, group=GROUP)
    assert lost
    assert lost_in(report.damage) == lost
    assert sorted(found) == sorted(set(range(600)) - set(lost))
    assert report.depth == 0
    assert engine.drain(small, write, group=GROUP).damage == ()
    assert_nothing_left(small)


@pytest.mark.spark
@pytest.mark.usefixtures("shared_session")
def test_the_command_drains_around_three_damaged_files_and_ends_with_2(path: Path, out: Path) -> None:
    """One with a flipped byte, one that was cut and one that is gone; in a drain whose rows tasks read."""
    make_group(path, GROUP)
    lost = [*damaged(path, 5, flip), *damaged(path, 12, cut), *damaged(path, 20, remove)]
    arguments = ("drain", path, *WITH_SPARK, "parquet", "--out", out, "--group", GROUP, "--json")
    ran = run(*arguments)
    assert ran.code == 2
    assert f"{len(lost)} messages are lost" in ran.err
    spans = [each["offsets"] for each in ran.document["damage"]]
    assert [offset for each in spans for offset in range(each["first_offset"], each["last_offset"] + 1)] == lost
    assert ran.document["depth"] == 0
    assert_drained(path, out, set(range(COUNT)) - set(lost))
    again = run(*arguments)
    assert (again.code, again.document["message_count"]) == (0, 0)
