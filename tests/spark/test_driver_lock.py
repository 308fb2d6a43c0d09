"""What is left of a killed driver has to be gone before the next drain writes: it would clear its output away."""

from __future__ import annotations

import fcntl
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast import QueueLockedError
from holdfast.spark import drain, driver_lock
from holdfast.spark.drainer import make_group
from support.drain_faults import GROUP, note, noted
from support.drains import fill
from support.processes import Signal, child

pytestmark = pytest.mark.spark


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A queue with a group."""
    fill(tmp_path / "q", range(10))
    make_group(tmp_path / "q", GROUP)
    return tmp_path / "q"


def hold(path: Path, holds: Signal, seconds: float) -> None:
    """Hold what the JVM of a drain holds, for a while, and note the end of it."""
    with (path / "groups" / GROUP / "group.json").open("r+b") as file:
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


def test_a_jvm_that_does_not_end_is_said(spark: Any, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch stays reserved."""
    monkeypatch.setattr(driver_lock, "_SECONDS", 0)
    holds = Signal()
    with child(lambda: hold(path, holds, 60)):
        holds.wait()
        with pytest.raises(QueueLockedError, match="still runs, though its driver was killed"):
            drain(path, spark, pytest.fail, group=GROUP)
    assert drain(path, spark, lambda *_: None, group=GROUP).resumed_count == 1
    holds.close()
