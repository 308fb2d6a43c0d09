"""What a task of a write does with its rows, before it reports to Spark: itself, and through a range server. No Java.

Both stage the same messages, as durable parts of one queue. The range server is a process on this machine, and both
share its processors; rows are already encoded. A commit costs the same for both, and is not timed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from benchmarks.measuring.contestant import Against, Body, Contestant
from benchmarks.measuring.load import Load
from benchmarks.measuring.race import Race
from holdfast import PersistentQueue
from holdfast.persistence.filesystem.layout import open_directory
from holdfast.persistence.filesystem.storage import OsStorage
from holdfast.spark.remote.driver import Driver
from holdfast.spark.remote.grant import Grant
from holdfast.spark.remote.starting import ServeAddress, announce, forget
from holdfast.spark.writing.staging import LocalParts

SERVED_AT_LEAST = 0.5

_SLICE = 500
"""Messages that a task encodes at a time."""

_HERE = ServeAddress(host="127.0.0.1")


def _messages(load: Load) -> Iterator[tuple[list[bytes], dict[int, bytes]]]:
    for _ in range(load.count // _SLICE):
        yield [load.payload] * _SLICE, {}


def _new_queue(folder: Path) -> tuple[Path, bytes]:
    path = folder / "queue"
    PersistentQueue(path, mode="exclusive").close()
    _, queue_id, _ = open_directory(OsStorage(), path, create=False, writable=False)
    return path, queue_id


def _local(load: Load) -> Contestant:
    @contextmanager
    def stage(folder: Path) -> Iterator[Body]:
        with closing(LocalParts(*_new_queue(folder))) as parts:
            yield lambda: parts.stage(_messages(load), "write", 1)

    return Contestant("a task that sees the queue", stage)


def _served(load: Load) -> Contestant:
    @contextmanager
    def stage(folder: Path) -> Iterator[Body]:
        from holdfast.spark.remote.client import client_for
        from holdfast.spark.remote.parts import RemoteParts

        path, queue_id = _new_queue(folder)
        grant = Grant(path, queue_id, write_id=folder.name)
        place = announce(grant, Driver(os.getpid(), is_local=False), _HERE, is_kept=True)
        assert place is not None
        parts = RemoteParts(client_for(place))
        parts.latest("write")
        yield lambda: parts.stage(_messages(load), "write", 1)
        forget(place)

    return Contestant("through a range server", stage)


@pytest.mark.parametrize("size", [100, 2000, 20_000])
def test_a_task_stages_its_rows(race: Race, request: pytest.FixtureRequest, size: int) -> None:
    """Frames, checksums, files of 64 MiB, syncs; through the server TLS and two copies more."""
    total = 40 * 10**6 if request.config.getoption("quick") else 400 * 10**6
    load = Load(total // size // (10 if size == 100 else 1), size)
    title = f"Spark's task stages rows of {size:,} bytes through a range server"
    race(title, load, _served(load), [Against(_local(load), SERVED_AT_LEAST)], rounds=5)
