"""What a task of a read does before Spark gets its rows: from the files, and through a range server. No Java.

Both make the same record batches of payloads. The range server is a process on this machine, and both share its
processors. A task is a process of its own; here it is this one, which keeps freed memory as a task does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.measuring.contestant import Against, Body, Contestant
from benchmarks.measuring.load import Load
from benchmarks.measuring.race import Race
from holdfast import PersistentQueue
from holdfast.arrow.reading.columns import named_fields
from holdfast.arrow.reading.file_range_reader import FileRangeReader, Opener
from holdfast.arrow.reading.row_maker import RowMaker
from holdfast.arrow.reading.selection import NO_END, Selection
from holdfast.arrow.reading.snapshot import Snapshot, take_snapshot
from holdfast.arrow.reading.task_walk import LocalFiles
from holdfast.persistence.filesystem.layout import queue_directory
from holdfast.persistence.filesystem.storage import OsStorage
from holdfast.persistence.format.report import Damage
from holdfast.spark.remote.driver import Driver
from holdfast.spark.remote.grant import Grant
from holdfast.spark.remote.starting import ServeAddress, announce, forget
from holdfast.spark.worker_memory import keep_freed_memory

SERVED_AT_LEAST = 0.5

_PUT_COUNT = 1000


def _fail(damage: Damage) -> None:
    pytest.fail(str(damage))


@dataclass(frozen=True)
class _Task:
    """Reads a whole queue.

    Attributes
    ----------
    snapshot : Snapshot
        What there is to read.
    count : int
        How many messages that has to be.
    """

    snapshot: Snapshot
    count: int

    def read(self, files: Opener) -> None:
        """Make record batches of all payloads."""
        rows, count = RowMaker(named_fields(["payload"])), 0
        root, queue_id = self.snapshot.root, self.snapshot.queue_id
        for part in self.snapshot.parts:
            path = queue_directory(root).data_file(part.name)
            for walked in FileRangeReader(files, path, queue_id, part, _fail).walked():
                count += rows.batch(walked, {}, root.name).num_rows
        assert count == self.count


def _local(task: _Task) -> Contestant:
    @contextmanager
    def stage(_: Path) -> Iterator[Body]:
        yield lambda: task.read(LocalFiles(task.snapshot.root, task.snapshot.queue_id))

    return Contestant("a task that sees the queue", stage)


def _served(task: _Task) -> Contestant:
    @contextmanager
    def stage(_: Path) -> Iterator[Body]:
        from holdfast.spark.remote.client import client_for
        from holdfast.spark.remote.files import RemoteFiles

        grant = Grant(task.snapshot.root, task.snapshot.queue_id)
        place = announce(grant, Driver(os.getpid(), is_local=False), ServeAddress(host="127.0.0.1"), is_kept=True)
        assert place is not None
        files = RemoteFiles(client_for(place))
        yield lambda: task.read(files)
        forget(place)

    return Contestant("by the range server", stage)


@pytest.mark.parametrize("size", [2000, 20_000])
def test_a_task_reads_what_it_does_not_see(
    race: Race, request: pytest.FixtureRequest, tmp_path: Path, size: int
) -> None:
    """Payloads of 300 MB, which are in the page cache."""
    load = Load((30 if request.config.getoption("quick") else 300) * 10**6 // size, size)
    path = tmp_path / "queue"
    with PersistentQueue(path, mode="exclusive") as queue:
        for first in range(0, load.count, _PUT_COUNT):
            queue.put_many([load.payload] * min(_PUT_COUNT, load.count - first))
    snapshot = take_snapshot(OsStorage(), Selection(path, 0, NO_END, 0, NO_END, None))
    task = _Task(snapshot, load.count)
    keep_freed_memory()
    race(
        f"Spark's task reads messages of {size:,} bytes through a range server",
        load,
        _served(task),
        [Against(_local(task), SERVED_AT_LEAST)],
        rounds=5,
    )
