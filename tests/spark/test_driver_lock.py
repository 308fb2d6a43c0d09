"""What is left of a killed driver has to be gone before the next drain writes: it would clear its output away."""

from __future__ import annotations

import fcntl
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from holdfast import PersistentQueue, QueueLockedError
from holdfast.arrow.draining import driver_wait
from holdfast.arrow.draining.queue_drain import make_group
from holdfast.spark import drain
from holdfast.spark.draining.drainer import SparkEngine
from holdfast.spark.draining.driver_lock import DriverLock
from support.processes.children import Signal, child
from support.spark.drain_faults import GROUP, note, noted
from support.spark.drains import fill

pytestmark = pytest.mark.spark


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A queue with a group."""
    fill(tmp_path / "q", range(10))
    make_group(tmp_path / "q", GROUP)
    return tmp_path / "q"


def hold(path: Path, holds: Signal, seconds: float) -> None:
    """Hold what the JVM of a drain holds, for a while, and note the end of it."""
    with (path / "groups" / GROUP / "drain.jvm").open("a+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        holds.send()
        time.sleep(seconds)  # as long as it takes a JVM to see that it has lost its driver
        note(path / "notes", "gone")


def test_a_drain_runs_no_batch_before_the_jvm_of_the_last_one_is_gone(spark: Any, path: Path) -> None:
    """It waits; and does not keep the next one waiting when it has ended."""
    seen: list[list[str]] = []
    holds = Signal()
    with child(lambda: hold(path, holds, 0.5)):
        holds.wait()
        drain(path, spark, lambda *_: seen.append(noted(path / "notes")), group=GROUP)
    fill(path, range(10, 20))
    drain(path, spark, lambda *_: seen.append([]), group=GROUP)
    holds.close()
    assert seen == [["gone"], []]


def test_two_drains_of_one_process_share_a_jvm(spark: Any, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot lock a file twice, and lets go of it with any that it closes: the second waits, and does neither."""
    monkeypatch.setattr(driver_wait, "DRIVER_SECONDS", 0)
    locked = path / "groups" / GROUP / "group.json"
    first, second = DriverLock(spark), DriverLock(spark)
    first.take(locked)
    with pytest.raises(QueueLockedError, match="runs in this process"):
        second.take(locked)
    with locked.open("r+b") as file, pytest.raises(BlockingIOError):
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    first.release()
    second.take(locked)
    second.release()
    with locked.open("r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.parametrize("moment", ["RandomAccessFile", "getChannel", "tryLock"])
def test_an_interrupted_wait_keeps_nothing(tmp_path: Path, moment: str) -> None:
    """Also when the lock was got just then."""
    jvm = Mock()
    file = jvm.java.io.RandomAccessFile.return_value
    channel = file.getChannel.return_value
    interrupted = {"RandomAccessFile": jvm.java.io.RandomAccessFile, "getChannel": file.getChannel}
    interrupted.get(moment, channel.tryLock).side_effect = KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        DriverLock(SimpleNamespace(_jvm=jvm)).take(tmp_path)
    assert file.close.called == (moment != "RandomAccessFile")
    DriverLock(SimpleNamespace(_jvm=Mock())).take(tmp_path)  # type: ignore[arg-type]


def test_the_lock_is_let_go_before_that_of_the_drain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next drain has not to wait for it."""
    PersistentQueue(tmp_path / "q", mode="exclusive").close()
    owned: list[bool] = []

    def release(_: SparkEngine, queue: PersistentQueue) -> None:
        with pytest.raises(QueueLockedError):
            drain(queue.path, SimpleNamespace(), pytest.fail, group=GROUP)  # type: ignore[arg-type]
        owned.append(True)

    monkeypatch.setattr(SparkEngine, "release", release)
    drain(tmp_path / "q", SimpleNamespace(), pytest.fail, group=GROUP)  # type: ignore[arg-type]
    assert owned == [True]


def test_a_jvm_that_does_not_end_is_said(spark: Any, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch stays reserved."""
    monkeypatch.setattr(driver_wait, "DRIVER_SECONDS", 0)
    holds = Signal()
    with child(lambda: hold(path, holds, 60)):
        holds.wait()
        with pytest.raises(QueueLockedError, match="still runs, though it was killed or interrupted"):
            drain(path, spark, pytest.fail, group=GROUP)
    assert drain(path, spark, lambda *_: None, group=GROUP).resumed_count == 1
    holds.close()
