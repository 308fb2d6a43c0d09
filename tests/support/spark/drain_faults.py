"""Faults that strike the tasks of a drained batch, and what there has to be all the same when it is over.

Tasks run elsewhere: what is theirs here travels to them by value.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from holdfast import PersistentQueue

GROUP = "night"

RAISES = "the function raises"
KILLS_ITS_WORKER = "the worker that runs the function is killed"
KILLS_THE_READER = "the worker that reads the queue is killed"
KILLS_THE_EXECUTOR = "the executor is killed"


def note(notes: Path, *words: object) -> None:
    """Append a line that survives whoever is killed next."""
    fd = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(fd, (" ".join(map(str, words)) + "\n").encode())
    finally:
        os.close(fd)


def noted(notes: Path) -> list[str]:
    """Return the lines."""
    return notes.read_text().splitlines() if notes.exists() else []


def parent_of(pid: int) -> int:
    """Return the process that has started one."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def readers_of(root: Path) -> list[int]:
    """Return the Python workers that have a data file of a queue open: all that do but this one and its ancestors."""
    data, others, own = os.path.join(root, "data", ""), os.listdir("/proc"), {os.getpid()}
    pid = os.getpid()
    while pid > 1:  # the driver is one of them
        pid = parent_of(pid)
        own.add(pid)
    return [int(each) for each in others if each.isdecimal() and int(each) not in own and _has_open(each, data)]


def _has_open(pid: str, prefix: str) -> bool:
    directory = f"/proc/{pid}/fd"
    try:
        return any(os.readlink(os.path.join(directory, each)).startswith(prefix) for each in os.listdir(directory))
    except OSError:  # it ended in between, or is another user's
        return False


def victims(fault: str, root: Path) -> list[int]:
    """Return the processes that a fault kills."""
    if fault == KILLS_ITS_WORKER:
        return [os.getpid()]
    if fault == KILLS_THE_READER:
        return readers_of(root)
    return [parent_of(os.getppid())] if fault == KILLS_THE_EXECUTOR else []


def strike(fault: str, notes: Path, root: Path) -> None:
    """Do what a fault is, and note how many it kills."""
    pids = victims(fault, root)
    note(notes, fault, len(pids))
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    if fault == RAISES:
        raise RuntimeError("struck in a task")


def struck_at(offset: int, fault: str, notes: Path, root: Path, *, attempts: int = 1) -> Any:
    """Return a function for a column: it gives offsets back, and strikes at one of them in the first attempts."""

    def act(at: int, _: bytes) -> int:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        if at == offset and context.attemptNumber() < attempts:
            strike(fault, notes, root)
        return at

    return task_function(act)


def task_function(act: Callable[[int, bytes], int]) -> Any:
    """Return a function of Spark that takes offset and payload in a task; which needs nothing of the tests there."""
    from pyspark import cloudpickle
    from pyspark.sql.functions import udf

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    return udf(act, "bigint", useArrow=False)  # with Arrow it would need pandas


def write_through(function: Any, out: Path, frame: Any, batch_id: str) -> None:
    """Write a batch into its directory, through a function of Spark first.

    It gets payloads too, so that nobody reads far ahead of it: their bytes fill the buffers in between.
    """
    rows = frame.withColumn("seen", function(frame["offset"], frame["payload"]))
    rows.write.mode("overwrite").parquet(f"{out}/batch_id={batch_id}")


# -- What there is in the end ----------------------------------------------------------------------------------------


def offsets_of(out: Path) -> list[int]:
    """Return the offsets of all rows below a directory, and see that each has its own payload; needs no Spark."""
    from pyarrow import dataset

    table = dataset.dataset(str(out), format="parquet", partitioning="hive").to_table(columns=["offset", "payload"])
    offsets: list[int] = table.column("offset").to_pylist()
    assert [json.loads(each)["id"] for each in table.column("payload").to_pylist()] == offsets
    return sorted(offsets)


def assert_nothing_left(path: Path, group: str = GROUP) -> None:
    """A group has finished everything, and holds nothing."""
    with PersistentQueue(path, mode="shared", group=group) as queue:
        assert queue.reservations.held("drain") == []
        assert queue.prepared() == []
        assert queue.stats().depth == 0


def assert_drained(path: Path, out: Path, numbers: Collection[int], group: str = GROUP) -> None:
    """Each row is in the result once, no batch is a half one, and nothing is left in the queue."""
    assert offsets_of(out) == sorted(numbers)
    for batch in out.iterdir():
        assert (batch / "_SUCCESS").exists()
        assert not (batch / "_temporary").exists()
    assert_nothing_left(path, group)


class Calls:
    """What a function of a drain was called with: each batch id with its offsets, in the order of the calls."""

    def __init__(self, write: Callable[[Any, str], object]) -> None:
        self._write = write
        self.batches: list[tuple[str, list[int]]] = []

    def __call__(self, frame: Any, batch_id: str) -> None:
        self.batches.append((batch_id, [row.offset for row in frame.select("offset").collect()]))
        self._write(frame, batch_id)
