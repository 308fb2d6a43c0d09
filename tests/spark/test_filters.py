"""Reads and streams with a filter, without a JVM: what a task makes rows of."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import PersistentQueue
from support.spark.spark_rows import planned
from support.spark.spark_streams import StreamRun

pytestmark = [pytest.mark.usefixtures("arrow_packages"), pytest.mark.extra("filter")]

PAID = "has(headers.kind) && headers.kind == 'paid'"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a queue of which every third message matches."""
    with PersistentQueue(tmp_path / "q") as queue:
        for number in range(30):
            queue.put(b"%d" % number, headers={} if number % 3 else {"kind": "paid"})
    return tmp_path / "q"


def test_a_task_makes_rows_of_what_matches(path: Path) -> None:
    """Offsets stay those of the log."""
    reader, partitions = planned(path, ["offset"], filter=PAID)
    offsets = [row for each in partitions for batch in reader.read(each) for row in batch.column(0).to_pylist()]
    assert offsets == list(range(0, 30, 3))


def test_a_batch_of_a_stream_counts_what_does_not_match_and_makes_no_rows_of_it(path: Path) -> None:
    """Its bounds are those of the log."""
    run = StreamRun(path, path.with_name("checkpoint"), maxMessagesPerTrigger=10, filter=PAID)
    assert run.all() == [[0, 3, 6, 9], [12, 15, 18], [21, 24, 27]]
