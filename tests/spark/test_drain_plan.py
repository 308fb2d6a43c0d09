"""A reservation is cut into tasks that read each message once, whoever carries the plan where. No Java."""

import base64
import pickle
from pathlib import Path
from typing import Any

import pytest

from holdfast import ConfigError, PersistentQueue, Put
from holdfast.arrow.draining.plan import DrainPlan, plan_drain, task_count_for
from holdfast.persistence.format.report import Damage
from holdfast.spark import drain
from support.builders.handles import handle_of
from support.spark.drains import TasksForSpark, fill

pytestmark = pytest.mark.usefixtures("arrow_packages")

PAYLOADS = [b"%05d " % each * 20 for each in range(900)]


def filled(path: Path) -> Path:
    """Make a queue of several data files, each third message with headers, and one with an option."""
    with PersistentQueue(path, mode="exclusive", data_file_bytes=2**15) as queue:
        for at in range(0, 900, 90):
            queue.put_many([Put(each, headers={"at": str(at)} if at % 3 else None) for each in PAYLOADS[at : at + 90]])
        queue.put(b"urgent", priority=9)
    return path


def read(plan: DrainPlan) -> list[dict[str, Any]]:
    """Read all tasks as Spark does: each partition travels by itself, and so does the reader."""
    from holdfast.spark.draining.source import frame_in_tasks, register
    from holdfast.spark.reading.schema import drain_columns

    spark: Any = TasksForSpark()
    register(spark)
    rows: Any = frame_in_tasks(spark, plan, *drain_columns(None, None), None)
    found: list[dict[str, Any]] = rows()
    return found


@pytest.mark.parametrize("task_count", [1, 2, 7, 2000])
def test_every_message_is_read_once_by_any_number_of_tasks(tmp_path: Path, task_count: int) -> None:
    """The sizes of tasks differ by one share at most; the read can be repeated."""
    with PersistentQueue(filled(tmp_path / "q"), mode="shared") as queue:
        taken = queue.receive_many(10, timeout=0)  # one urgent message, which is finished, and others that come back
        taken.ack()
        queue.receive(timeout=0).nack(delay=0)
        reservation = queue.reservations.take(max_messages=800)
        assert reservation is not None
        plan = plan_drain(queue, reservation, task_count, [])
        rows = read(plan)
        assert rows == read(plan)
        expected = list(queue.reservations.read(reservation, pytest.fail))
        assert [(row["offset"], row["payload"], dict(row["headers"]), row["delivery_count"]) for row in rows] == [
            (each.offset, each.payload, dict(each.headers), each.delivery_count) for each in expected
        ]
        assert sum(row["delivery_count"] for row in rows) == 1
        counts = [sum(end - first for part in parts for first, end in part.wanted) for parts in plan.tasks]
        assert sum(counts) == 800
        assert max(counts) == -(-800 // task_count)


def test_tasks_are_as_many_as_run_at_once_unless_they_would_be_tiny_or_huge() -> None:
    """At least one; and never so many that some run alone at the end."""
    assert task_count_for(0, 8) == 1
    assert task_count_for(9 * 2**20, 8) == 2
    assert task_count_for(64 * 2**20, 8) == 8
    assert task_count_for(2**30, 8) == 8
    assert task_count_for(2**30 + 1, 8) == 16


def test_planning_looks_at_the_files_of_the_batch_and_lists_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it takes as long before any backlog. Only if one is missing are all listed: it may have been merged."""
    with PersistentQueue(filled(tmp_path / "q"), mode="shared") as queue:
        reservation = queue.reservations.take(max_messages=200)
        assert reservation is not None
        with monkeypatch.context() as patch:
            patch.setattr(handle_of(queue).files, "refresh", lambda: pytest.fail("a listing"))
            whole = plan_drain(queue, reservation, 1, missing := list[Damage]())
            assert missing == []
        first, count, sequence, _ = reservation.runs[0]
        name = handle_of(queue).files.named(sequence)
        assert name is not None
        handle_of(queue).files.path(name).unlink()
        plan = plan_drain(queue, reservation, 1, missing)
        assert plan.tasks == (whole.tasks[0][1:],)
        (damage,) = missing
        assert (damage.offsets, damage.reason) == (range(first, first + count), "the data file is missing")


def test_a_file_that_goes_while_a_batch_is_planned_is_read_or_named_as_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan and the damage are of one look at the files: no message is in neither."""
    with PersistentQueue(filled(tmp_path / "q"), mode="shared") as queue:
        reservation = queue.reservations.take(max_messages=200)
        assert reservation is not None
        look, looks = queue.reservations.data_files, list[int]()

        def look_and_remove(held: Any) -> Any:
            names = look(held)
            looks.append(len(names))
            next(path for path in (tmp_path / "q" / "data").iterdir() if path.name.startswith("0000000002-")).unlink()
            return names

        monkeypatch.setattr(type(queue.reservations), "data_files", lambda _, held: look_and_remove(held))
        missing: list[Damage] = []
        plan = plan_drain(queue, reservation, 1, missing)
        planned = sum(end - first for parts in plan.tasks for part in parts for first, end in part.wanted)
        assert (len(looks), planned + sum(len(each.offsets) for each in missing)) == (1, 200)


def test_a_session_without_a_context_drains_large_batches_too(tmp_path: Path) -> None:
    """As that of Spark Connect, which does not say how many tasks run at once."""
    path = tmp_path / "q"
    fill(path, range(2500))
    spark: Any = TasksForSpark(has_context=False)
    offsets: list[int] = []
    report = drain(path, spark, lambda rows, _: offsets.extend(row["offset"] for row in rows()), group="night")
    assert (report.message_count, report.depth) == (2500, 0)
    assert offsets == list(range(2500))


class Struck:
    """Runs code where it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return pytest.fail, ("it was unpickled",)


@pytest.mark.parametrize("seal", ["", "00"])
def test_options_that_this_process_has_not_made_are_not_unpickled(seal: str) -> None:
    """A program that may send SQL to a session can name the format, and options for it."""
    from holdfast.spark.draining.source import DrainDataSource, register
    from holdfast.spark.reading.schema import SCHEMA

    spark: Any = TasksForSpark()
    register(spark)
    struck = base64.b85encode(pickle.dumps(Struck())).decode()
    for source in (DrainDataSource, spark._source):
        with pytest.raises(ConfigError, match=r"call holdfast\.spark\.drain"):
            source({"plan": struck, "rows": struck, "seal_token": seal}).reader(SCHEMA)
