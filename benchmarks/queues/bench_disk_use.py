"""What is left on the disk when everything has been taken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.cases.queue_cases import NEVER, open_queue
from benchmarks.measuring.load import BATCH, DATA_FILE_BYTES, Load
from benchmarks.measuring.race import Benchmark
from benchmarks.measuring.report import Report
from benchmarks.measuring.rows import Row, significant
from holdfast import PersistentQueue

FILES_MAX = 3
BLOCK_BYTES = 512
"""The unit of ``st_blocks``, whatever the file system's."""


def _one_by_one(queue: PersistentQueue, load: Load) -> None:
    for _ in range(load.count):
        queue.put(load.payload)
        queue.receive().ack()


def _in_batches(queue: PersistentQueue, load: Load) -> None:
    for _ in range(load.batches):
        queue.put_many([load.payload] * BATCH)
        queue.receive_many(BATCH).ack()


def _disk_bytes(folder: Path) -> int:
    return sum(path.stat().st_blocks for path in folder.rglob("*") if path.is_file()) * BLOCK_BYTES


@pytest.mark.parametrize(
    ("title", "use"),
    [("one by one", _one_by_one), (f"in batches of {BATCH}", _in_batches)],
    ids=["one-by-one", "batches"],
)
def test_disk_use_after_a_million_messages(
    *,
    benchmark: Benchmark,
    place: Path,
    report: Report,
    sized: Callable[[int, int], Load],
    title: str,
    use: Callable[[PersistentQueue, Load], None],
) -> None:
    """Of the whole directory of an open queue, spare files and progress too; blocks, not sizes."""
    load = sized(1_000_000, 2_000)
    with open_queue(place, NEVER) as queue:
        benchmark.pedantic(lambda: use(queue, load))
        assert queue.stats().depth == 0
        used = _disk_bytes(place)
    if benchmark.stats is None:
        return
    benchmark.extra_info["disk_bytes"] = used
    files = used / DATA_FILE_BYTES
    (seconds,) = benchmark.stats.stats.data
    report.add(
        Row(
            f"{load.count:,} of {load.size:,} bytes put, received, acknowledged {title}, never(): disk use",
            f"{used / 1e6:.1f} MB, {files:.2f} data files; {significant(load.count / seconds)}/s",
            target=f"< {FILES_MAX} data files",
            met=files < FILES_MAX,
        )
    )
