"""What queues take on the disk: many small ones, and a large one when everything has been taken."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.cases.queue_cases import NEVER, open_queue
from benchmarks.measuring.load import BATCH, DATA_FILE_BYTES, Load
from benchmarks.measuring.race import Benchmark
from benchmarks.measuring.report import Report
from benchmarks.measuring.rows import Row, significant
from holdfast import PersistentQueue, QueueService

FILES_MAX = 3
SMALL_QUEUES = 10
SMALL_QUEUES_BYTES_MAX = 4 * 2**20
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
    return sum(path.stat().st_blocks for path in (folder, *folder.rglob("*"))) * BLOCK_BYTES


def _du_bytes(folder: Path) -> int:
    """Return what ``du`` says, in its unit of 1,024 bytes."""
    said = subprocess.run(["du", "-s", "-k", str(folder)], capture_output=True, text=True, check=True).stdout
    return int(said.split()[0]) * 1024


@pytest.mark.parametrize("is_taken", [False, True], ids=["put", "taken"])
def test_disk_use_of_small_queues(*, benchmark: Benchmark, place: Path, report: Report, is_taken: bool) -> None:
    """Of the whole directory of a service whose queues are open, each of which was put a message."""
    with QueueService(place, mode="exclusive") as service:

        def use() -> None:
            for number in range(SMALL_QUEUES):
                queue = service.queue(f"queue-{number}")
                queue.put("a message")
                if is_taken:
                    queue.receive().ack()

        benchmark.pedantic(use)
        used, told = _disk_bytes(place), _du_bytes(place)
    if benchmark.stats is None:
        return
    benchmark.extra_info["disk_bytes"] = used
    what = "put, received and acknowledged" if is_taken else "put"
    report.add(
        Row(
            f"{SMALL_QUEUES} open queues of a service, a message {what} in each: disk use",
            f"{used / 2**20:.2f} MiB; du: {told / 2**20:.2f} MiB",
            target=f"< {SMALL_QUEUES_BYTES_MAX // 2**20} MiB",
            met=used < SMALL_QUEUES_BYTES_MAX,
        )
    )


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
