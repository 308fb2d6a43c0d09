"""Tasks on machines that have another directory, or none, where the driver has the queue: never a row less unsaid."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import ConfigError, Damage, PersistentQueue, QueueNotFoundError, StorageError, verify
from holdfast.arrow.draining.loss_notes import LossNotes
from holdfast.persistence.filesystem.storage import OsStorage
from holdfast.spark import drain, finalize
from support.spark.drains import TasksForSpark, fill
from support.spark.other_machines import GROUP, SIGHTS, elsewhere, flip
from support.spark.spark_rows import planned
from support.spark.spark_streams import StreamRun

COUNT = 1500
"""More than the driver reads by itself."""

NOT_HERE = (QueueNotFoundError, ConfigError)

pytestmark = pytest.mark.usefixtures("arrow_packages")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A queue of several data files; ``template`` beside it is an older copy."""
    PersistentQueue(tmp_path / "q", mode="exclusive").close()
    shutil.copytree(tmp_path / "q", tmp_path / "template")
    fill(tmp_path / "q", range(COUNT), size=400)
    return tmp_path / "q"


def depth(path: Path, group: str) -> int:
    """Return what a group has not finished."""
    with PersistentQueue(path, mode="read_only", group=group) as queue:
        return queue.stats().depth


# -- A machine that does not see the queue ---------------------------------------------------------------------------


@pytest.mark.parametrize("sight", SIGHTS)
@pytest.mark.parametrize("is_strict", [True, False])
def test_a_read_fails_where_the_queue_is_not(path: Path, sight: Callable[[Path], None], is_strict: bool) -> None:
    """Whatever ``failOnDataLoss`` says; and the error does not advise to say it."""
    reader, partitions = planned(path, ["offset"], failOnDataLoss=is_strict)
    with elsewhere(path, sight), pytest.raises(NOT_HERE, match=r"mount the (same )?directory") as raised:
        [list(reader.read(each)) for each in partitions]
    assert "failOnDataLoss" not in str(raised.value)


@pytest.mark.parametrize("sight", SIGHTS)
def test_a_queue_that_goes_while_a_task_reads_was_not_consumed(path: Path, sight: Callable[[Path], None]) -> None:
    """As a mount that is taken away."""
    reader, (partition,) = planned(path, ["offset"], failOnDataLoss=False)
    batches = reader.read(partition)
    next(batches)
    with elsewhere(path, sight), pytest.raises(NOT_HERE):
        list(batches)


@pytest.mark.parametrize("sight", SIGHTS)
def test_a_drain_fails_where_the_queue_is_not_and_the_next_one_has_every_row(
    path: Path, sight: Callable[[Path], None]
) -> None:
    """The batch stays reserved."""
    rows: list[int] = []

    def write(frame: Any, _: str) -> None:
        rows.extend(row["offset"] for row in frame())

    blind: Any = TasksForSpark(lambda: elsewhere(path, sight))
    with pytest.raises(NOT_HERE, match=r"mount the (same )?directory"):
        drain(path, blind, write, group=GROUP)
    assert depth(path, GROUP) == COUNT
    seeing: Any = TasksForSpark()
    report = drain(path, seeing, write, group=GROUP)
    assert (report.resumed_count, report.lost_count, report.depth) == (1, 0, 0)
    assert rows == list(range(COUNT))


@pytest.mark.parametrize("sight", SIGHTS)
def test_a_lenient_stream_fails_where_the_queue_is_not_and_finalize_finishes_nothing(
    path: Path, sight: Callable[[Path], None]
) -> None:
    """The same batch has every row where the queue is seen."""
    run = StreamRun(path, path.with_name("checkpoint"), group="stream", failOnDataLoss=False)
    number = run.plan()
    assert number is not None
    start, end = json.loads((path.with_name("checkpoint") / "initial").read_text()), json.loads(run.text(number))
    tasks = list(run.reader.partitions(start, end))
    with elsewhere(path, sight), pytest.raises(NOT_HERE):
        [list(run.reader.read(each)) for each in tasks]
    assert finalize(path, path.with_name("checkpoint"), group="stream") == 0
    assert depth(path, "stream") == COUNT
    assert [offset for offset, _ in run.run(number)] == list(range(COUNT))


def test_the_advice_for_a_file_that_is_gone_suits_who_reads_it(path: Path) -> None:
    """A batch of a drain cannot be read with another option, and a stream is not made anew."""
    (gone, *_) = sorted((path / "data").iterdir())

    def remove(frame: Any, _: str) -> None:
        content = gone.read_bytes()
        gone.unlink()
        try:
            frame()
        finally:
            gone.write_bytes(content)

    spark: Any = TasksForSpark()
    with pytest.raises(Exception, match="drain again") as raised:
        drain(path, spark, remove, group=GROUP)
    assert "failOnDataLoss" not in str(raised.value)
    run = StreamRun(path, path.with_name("checkpoint"), group="stream")
    number = run.plan()
    assert number is not None
    start, end = json.loads((path.with_name("checkpoint") / "initial").read_text()), json.loads(run.text(number))
    tasks = list(run.reader.partitions(start, end))
    gone.unlink()
    with pytest.raises(Exception, match="start the stream again"):
        [list(run.reader.read(each)) for each in tasks]


# -- A machine that cannot tell --------------------------------------------------------------------------------------


@pytest.mark.parametrize("read_count", [0, 2])
def test_damage_that_a_task_finds_is_counted_once_and_leaves_no_notes(path: Path, read_count: int) -> None:
    """However often its rows are read, also by a drain before; a sink that knows the batch may read nothing."""
    spark: Any = TasksForSpark()
    found: list[int] = []

    def fail(frame: Any, _: str) -> None:
        found.append(flip(path))  # it is reserved by now: only a task can find it
        frame()
        raise RuntimeError("struck")

    with pytest.raises(RuntimeError, match="struck"):
        drain(path, spark, fail, group=GROUP)
    assert list((path / "groups" / GROUP).glob("lost-*"))
    assert verify(path).lost_count == 1, "notes are nobody else's business"
    report = drain(path, spark, lambda frame, _: [frame() for _ in range(read_count)], group=GROUP)
    assert [list(each.offsets) for each in report.damage] == [found]
    assert not list((path / "groups" / GROUP).glob("lost-*"))


def test_a_task_that_cannot_note_a_loss_fails(path: Path, tmp_path: Path) -> None:
    """It must not go on: nobody would hear of it."""
    damage = Damage(path, 1, 2, range(3, 5), "damaged", "rot")
    with pytest.raises(StorageError, match="noting that messages are lost"):
        LossNotes(OsStorage(), tmp_path / "elsewhere").write("batch", damage)


def test_only_whole_notes_of_the_batch_count(path: Path) -> None:
    """Not one of an attempt that was killed while it wrote, nor one of a straggler of the batch before."""
    with PersistentQueue(path, mode="exclusive") as queue:
        queue.groups.create(GROUP)
    directory = path / "groups" / GROUP
    notes = LossNotes(OsStorage(), directory)
    damage = Damage(path, 1, 2, range(3, 5), "damaged", "rot")
    notes.write("before", damage)
    notes.write("this", damage)
    notes.write("this", damage)
    (directory / f"lost-{'0' * 32}.json").write_text('{"batch_id": "this", ')
    assert notes.read("this") == [damage]
    notes.remove(["this", "next"])
    assert notes.read("this") == [damage]
    assert notes.read("before") == []
    assert len(list(directory.glob("lost-*"))) == 3, "what is not whole may be of a batch that runs"
    notes.remove([])
    assert notes.read("this") == []
