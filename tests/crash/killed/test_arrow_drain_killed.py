"""A drain to Parquet that is killed at any change of the disk: run again, each message is in the files once."""

from __future__ import annotations

import json
import shutil
import signal
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from holdfast import PersistentQueue
from support.processes.children import child
from support.processes.disk_deaths import killed_at
from support.spark.drain_faults import GROUP, assert_nothing_left

pytestmark = [pytest.mark.extra("arrow"), pytest.mark.slow, pytest.mark.timeout(300)]

COUNT = 40
BATCH = 25


def fill(path: Path) -> Path:
    """Put messages that say their number, into several data files; each second one has a key."""
    with PersistentQueue(path, mode="shared", data_file_bytes=2**15) as queue:
        for number in range(COUNT):
            queue.put(b'{"id": %d, "rest": "%s"}' % (number, b"x" * 1200), order_key="k" if number % 2 else None)
    return path


def drain_to(path: Path, out: Path, max_messages: int) -> Any:
    """Drain into files that are divided by key."""
    from holdfast.arrow import DirectoryWriter, drain

    writer = DirectoryWriter(out, partition_by=["order_key"])
    return drain(path, writer, max_messages=max_messages, group=GROUP)


def numbers(out: Path) -> list[int]:
    """Return the numbers of all messages in the files, each with its own key."""
    from pyarrow import dataset

    table = dataset.dataset(out, format="parquet", partitioning="hive").to_table()
    found: list[int] = [json.loads(each)["id"] for each in table["payload"].to_pylist()]
    assert found == table["offset"].to_pylist()
    assert table["order_key"].to_pylist() == ["k" if number % 2 else None for number in found]
    return sorted(found)


def test_a_drain_to_files_may_be_killed_at_any_call_to_the_disk(tmp_path: Path) -> None:
    """From the making of its group to the retiring of data files; no batch is ever half there under its name."""
    template = fill(tmp_path / "q")
    killed_count = resumed_count = 0
    for call in count(1):
        path = Path(shutil.copytree(template, tmp_path / f"q{call}"))
        out = tmp_path / f"out{call}"

        def work(call: int = call, path: Path = path, out: Path = out) -> None:
            with killed_at(call):
                drain_to(path, out, BATCH)

        with child(work) as driver:
            ended = driver.wait()
        for each in out.glob("batch_id=*"):
            assert (each / "_SUCCESS").exists()
        report = drain_to(path, out, BATCH - 5)
        assert numbers(out) == list(range(COUNT))
        assert [each.name for each in out.iterdir() if not each.name.startswith("batch_id=")] == []
        assert_nothing_left(path)
        resumed_count += report.resumed_count
        if ended == 0:
            break
        assert ended == -signal.SIGKILL
        killed_count += 1
    assert killed_count > 40
    assert resumed_count >= 20, "each call of a writer finds its batch held"


def drain_many_to(data: Path, out: Path, max_messages: int) -> Any:
    """Drain two queues into files that are divided by queue."""
    from holdfast.arrow import DirectoryWriter, drain

    writer = DirectoryWriter(out, partition_by=["queue"])
    return drain(data, writer, queues="orders-*", max_messages=max_messages, group=GROUP)


def test_a_drain_of_two_queues_may_be_killed_at_any_call_to_the_disk(tmp_path: Path) -> None:
    """Before, between and behind their commits: the next one has every row of both once."""
    from pyarrow import dataset

    names = ("orders-a", "orders-b")
    for name in names:
        with PersistentQueue(tmp_path / "data" / name) as queue:
            queue.put_many([b'{"id": %d}' % number for number in range(10)])
    killed_count, resumed = 0, dict.fromkeys(names, 0)
    for call in count(1):
        data = Path(shutil.copytree(tmp_path / "data", tmp_path / f"data{call}"))
        out = tmp_path / f"out{call}"

        def work(call: int = call, data: Path = data, out: Path = out) -> None:
            with killed_at(call):
                drain_many_to(data, out, 10)

        with child(work) as driver:
            ended = driver.wait()
        report = drain_many_to(data, out, 7)
        rows = dataset.dataset(out, format="parquet", partitioning="hive").to_table().to_pylist()
        found = sorted((row["queue"], row["offset"], json.loads(row["payload"])["id"]) for row in rows)
        assert found == [(name, number, number) for name in names for number in range(10)]
        for name in names:
            assert_nothing_left(data / name)
            resumed[name] += report.queues[name].resumed_count
        if ended == 0:
            break
        assert ended == -signal.SIGKILL
        killed_count += 1
    assert killed_count > 60
    assert min(resumed.values()) >= 10, "each call of a writer finds the batch of its queue held"
