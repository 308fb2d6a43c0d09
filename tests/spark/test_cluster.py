"""Real clusters of two executors on this machine. They take minutes: `make cluster` runs them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast import PersistentQueue
from support.spark import other_machines, spark_cluster
from support.spark.drain_faults import KILLS_THE_EXECUTOR, assert_drained, noted
from support.spark.drains import fill
from support.spark.other_machines import GROUP

COUNT = 1500
"""More than the driver reads by itself."""

pytestmark = [
    pytest.mark.spark,
    pytest.mark.cluster,
    pytest.mark.timeout(600),  # JVMs start, on a machine that may have other things to do
    pytest.mark.usefixtures("a_cluster"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc, and 127.0.0.2 beside 127.0.0.1"),
]


@pytest.fixture(scope="module")
def a_cluster() -> None:
    """Skip, or fail, if no cluster can be started here; only `make cluster` asks for one."""
    from holdfast.spark.session import check_java, check_spark

    if os.environ.get("HOLDFAST_TEST_REQUIRE_CLUSTER") != "1":
        pytest.skip("starts three clusters: make cluster")
    check_spark()
    check_java()


def run(place: Path, program: Any, *arguments: object) -> str:
    """Run a program of ``support/`` in a process of its own, and return what it prints."""
    with (place / "log").open("w+") as log:
        done = subprocess.run(
            [sys.executable, program.__file__, *map(str, arguments)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            timeout=540,
            check=False,
        )
        log.seek(0)
        assert done.returncode == 0, log.read()
    return done.stdout


def found(place: Path, what: str) -> dict[str, Any]:
    """Return what ``support/spark/other_machines.py`` says of a queue at ``place / "q"``."""
    PersistentQueue(place / "q", mode="exclusive").close()
    shutil.copytree(place / "q", place / "template")
    fill(place / "q", range(COUNT), size=400)
    said: dict[str, Any] = json.loads(run(place, other_machines, place, what).splitlines()[-1])
    return said


def depth(path: Path, group: str) -> int:
    """Return what a group has not finished."""
    with PersistentQueue(path, mode="read_only", group=group) as queue:
        return queue.stats().depth


def test_executors_that_do_not_see_the_queue_have_every_row_or_fail(tmp_path: Path) -> None:
    """Reads, a drain and a stream with ``failOnDataLoss=false``, and writes, on executors of their own.

    Without a range server nothing is read, finished or put; by default each of them has every row.
    """
    said = found(tmp_path, "unseen")
    for name in ("strict", "lenient", "drain", "stream", "write"):
        assert "no queue at /proc/self/cwd/" in said[name], name
        assert "failOnDataLoss=false" not in said[name], name
    assert said["finalized"] == "0"
    assert said["served"] == [str(COUNT)] * 3
    assert said["drained_of_many"] == "[1200, 1201]"
    assert said["written"] == ["1000", str(COUNT)]
    assert said["written_by_column"] == "[300, 300, 300]"
    assert depth(tmp_path / "q", GROUP) == 0


def test_damage_is_reported_from_executors_with_temporary_directories_of_their_own(tmp_path: Path) -> None:
    """The driver's is not where they see it."""
    assert found(tmp_path, "private") == {"message_count": COUNT, "lost_count": 1, "row_count": COUNT - 1}


def test_an_executor_that_is_killed_and_a_task_that_is_overtaken_count_no_row_twice(tmp_path: Path) -> None:
    """With executors of their own, and Spark starting second attempts of slow tasks."""
    count_each = 8000
    path, out = tmp_path / "q", tmp_path / "out"
    payloads = [b'{"id": %d, "rest": "%s"}' % (each, b"x" * 1200) for each in range(2 * count_each)]
    with PersistentQueue(path, mode="shared", data_file_bytes=2**18) as queue:
        for at in range(0, len(payloads), 20):
            queue.put_many(payloads[at : at + 20])
    run(tmp_path, spark_cluster, path, out, tmp_path, count_each)
    assert noted(tmp_path / "notes") == ["straggles", "overtaken", f"{KILLS_THE_EXECUTOR} 1"]
    assert_drained(path, out, range(2 * count_each))
