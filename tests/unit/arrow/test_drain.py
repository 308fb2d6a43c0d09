"""What only the engine without Spark does: a stream that ends with its function, and a wait for a JVM that is left."""

from __future__ import annotations

import fcntl
import logging
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast import ConfigError, PersistentQueue, QueueLockedError, UsageError
from holdfast.arrow import drain
from holdfast.arrow.draining import driver_wait
from holdfast.arrow.draining.queue_drain import make_group
from holdfast.queue.prepared.reservations import Reservation, Reservations
from support.processes.children import Signal, child
from support.spark.drain_faults import GROUP, note, noted

pytestmark = pytest.mark.extra("arrow")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A queue of 100 messages of 200 kB: several record batches."""
    with PersistentQueue(tmp_path / "q") as queue:
        queue.put_many([bytes(200_000)] * 100)
    return tmp_path / "q"


def test_a_batch_is_read_piece_by_piece(path: Path) -> None:
    """It is never in memory as a whole, and a function need not read all of it."""
    sizes: list[int] = []
    report = drain(path, lambda rows, _: sizes.extend(batch.nbytes for batch in rows), group="a")
    assert report.message_count == 100
    assert len(sizes) >= 4
    assert max(sizes) < 2**22 + 2**16
    assert drain(path, lambda rows, _: rows.read_next_batch(), group="b").depth == 0


def test_rows_that_are_read_behind_their_function_are_an_error(path: Path) -> None:
    """An end would pass for the end of the batch, which is committed by then."""
    kept: list[Any] = []

    def keep(rows: Any, _: str) -> None:
        rows.read_next_batch()
        kept.append(rows)

    drain(path, keep)
    with pytest.raises(UsageError, match="before the function returns"):
        kept[0].read_next_batch()


def test_a_batch_has_the_columns_that_are_asked_for(path: Path) -> None:
    """In their order; others are refused before anything is reserved."""
    schemas: list[list[str]] = []
    drain(path, lambda rows, _: schemas.append(rows.schema.names), columns=["offset", "headers"])
    assert schemas == [["offset", "headers"]]
    with pytest.raises(ConfigError, match="columns are a list"):
        drain(path, lambda *_: None, columns=["x"])


def hold(path: Path, holds: Signal, seconds: float) -> None:
    """Hold what the JVM of a drain holds, for a while, and note the end of it."""
    with (path / "groups" / GROUP / "drain.jvm").open("a+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        holds.send()
        time.sleep(seconds)  # as long as it takes a JVM to see that it has lost its driver
        note(path / "notes", "gone")


def test_no_batch_runs_before_the_jvm_of_a_killed_drain_is_gone(path: Path) -> None:
    """It may still write to the same place."""
    make_group(path, GROUP)
    seen: list[list[str]] = []
    holds = Signal()
    with child(lambda: hold(path, holds, 0.5)):
        holds.wait()
        drain(path, lambda *_: seen.append(noted(path / "notes")), group=GROUP)
    holds.close()
    assert seen == [["gone"]]


def test_a_jvm_that_does_not_end_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch stays reserved."""
    monkeypatch.setattr(driver_wait, "DRIVER_SECONDS", 0)
    make_group(path, GROUP)
    holds = Signal()
    with child(lambda: hold(path, holds, 60)) as jvm:
        holds.wait()
        with pytest.raises(QueueLockedError, match="end that JVM") as caught:
            drain(path, lambda *_: pytest.fail("it ran"), group=GROUP)
        jvm.kill()
    holds.close()
    assert "stays reserved" in caught.value.__notes__[0]
    assert drain(path, lambda *_: None, group=GROUP).resumed_count == 1


@pytest.mark.parametrize("when", ["before it is reserved", "while it runs"])
def test_a_drain_that_ends_right_behind_a_commit_has_said_what_is_lost(
    path: Path, when: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The messages never come again, so no later drain says it."""
    commit = Reservations.commit

    def commit_and_end(held: Reservations, reservation: Reservation) -> None:
        commit(held, reservation)
        raise KeyboardInterrupt

    def damage() -> None:
        with next((path / "data").iterdir()).open("r+b") as file:
            file.seek(15_000_000)
            file.write(b"damage")

    def fn(rows: Any, _: str) -> None:
        if when == "while it runs":
            damage()
        rows.read_all()

    if when == "before it is reserved":
        damage()
    monkeypatch.setattr(Reservations, "commit", commit_and_end)
    with caplog.at_level(logging.ERROR, "holdfast"), pytest.raises(KeyboardInterrupt):
        drain(path, fn)
    assert "offsets 74..74 lost" in caplog.text
    monkeypatch.undo()
    assert drain(path, lambda *_: None).message_count == 0


def test_without_pyarrow_one_line_says_what_to_install(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is reserved."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"pip install 'holdfast\[arrow\]'"):
        drain(path, lambda *_: None)


def test_a_drain_beside_a_compaction_drains_what_lives(tmp_path: Path) -> None:
    """The owner has merged files that the drain's handle knows by their old names: nothing of them is lost."""
    live = [3, 400, 401, 700]
    with PersistentQueue(tmp_path / "q", data_file_bytes=2**17, backoff=[], max_deliveries=None) as queue:
        for first in range(0, 1200, 100):
            queue.put_many([b"%06d" % offset + bytes(1000) for offset in range(first, first + 100)])
        deliveries = queue.receive_many(1000, timeout=0)
        deliveries.ack([each for each in deliveries if each.offset not in live])
        drained: list[int] = []
        held = [each for each in deliveries if each.offset in live]

        def fn(rows: Any, _: str) -> None:
            drained.extend(rows.read_all().column("offset").to_pylist())
            if held:
                assert queue.compact().merged_count
                while held:
                    held.pop().release()

        report = drain(queue, fn, max_messages=50)
        assert sorted(drained) == [*live, *range(1000, 1200)]
        assert (report.damage, queue.stats().depth) == ((), 0)
