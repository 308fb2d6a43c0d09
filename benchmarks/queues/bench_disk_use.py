"""What queues take on the disk: many small ones, a large one that was taken whole, and what a merge leaves."""

from __future__ import annotations

import random
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from time import perf_counter

import pytest

from benchmarks.cases.queue_cases import NEVER, open_queue
from benchmarks.measuring.load import BATCH, DATA_FILE_BYTES, Load
from benchmarks.measuring.race import Benchmark
from benchmarks.measuring.report import Report
from benchmarks.measuring.rows import Row, significant
from holdfast import PersistentQueue, QueueService
from holdfast.clock import SystemClock
from holdfast.persistence.compaction.compactor import Compaction
from holdfast.persistence.filesystem.layout import QueueDirectory
from holdfast.persistence.filesystem.storage import OsStorage
from holdfast.persistence.format.constants import ENTRY_DONE
from holdfast.persistence.groups.group_files import progress_reader, require_group
from holdfast.persistence.groups.position_entry import NO_HINT, Change
from holdfast.persistence.groups.position_file_writer import PositionFileWriter

FILES_MAX = 3
SMALL_QUEUES = 10
SMALL_QUEUES_BYTES_MAX = 4 * 2**20
BLOCK_BYTES = 512
"""The unit of ``st_blocks``, whatever the file system's."""

GROUP = "works"
LIVE_ONE_IN = 1000
PUT_COUNT = 10_000
POSITION_BYTES = 2**20
PAUSE_SECONDS = 0.001
"""Between two steps of the thread beside: one without a pause takes turns with the merge at each call of the system."""


TIMES_MAX = 3
OPEN_SECONDS_MAX = 1.0
HELD_UP_SECONDS_MAX = 0.05
EXTRA_MAX = 1 / 3


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


def fill(path: Path, load: Load) -> int:
    """Put messages, and finish all but one in a thousand of them, at random; return the size of the log."""
    with PersistentQueue(path, mode="exclusive", flush=NEVER) as queue:
        queue.groups.create(GROUP)
        for _ in range(load.count // PUT_COUNT):
            queue.put_many([bytes(load.size)] * PUT_COUNT)
        queue.put(b"last")
        queue_id, size = queue._handle.queue_id, queue.stats().bytes_on_disk
    storage, clock, directory = OsStorage(), SystemClock(), QueueDirectory(path)
    live = sorted(random.Random(1).sample(range(load.count), load.count // LIVE_ONE_IN))
    runs = [(first + 1, second) for first, second in pairwise([-1, *live, load.count]) if first + 1 < second]
    reader = progress_reader(storage, directory, queue_id, require_group(storage, directory, GROUP))
    positions = PositionFileWriter(storage, directory.group(GROUP), clock, reader, file_bytes=POSITION_BYTES)
    with closing(positions):
        positions.append([Change(ENTRY_DONE, first, stop - first, NO_HINT) for first, stop in runs])
    return size


@contextmanager
def longest(step: Callable[[], object]) -> Iterator[list[float]]:
    """Do a step up to a thousand times a second in another thread; the list has the longest one of the block then."""
    is_over, found = threading.Event(), [0.0]

    def repeat() -> None:
        while not is_over.wait(PAUSE_SECONDS):
            begun = perf_counter()
            step()
            found[0] = max(found[0], perf_counter() - begun)

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield found
    finally:
        is_over.set()
        thread.join()


def reader_of(queue: PersistentQueue) -> Callable[[], object]:
    """Return what reads the next message of the log, from its beginning on, and then again."""
    messages = iter(queue.read())

    def read() -> None:
        nonlocal messages
        if next(messages, None) is None:
            messages = iter(queue.read())

    return read


def test_disk_use_behind_merging_what_one_message_in_a_thousand_lives_of(
    benchmark: Benchmark, place: Path, report: Report, sized: Callable[[int, int], Load]
) -> None:
    """Once, beside a thread that reads the log; what the same thread waits at the most without it, is beside it."""
    load, path = sized(10_000_000, 100), place / "queue"
    done: list[Compaction] = []
    fill(path, load)
    with PersistentQueue(path, mode="exclusive", group=GROUP, flush=NEVER) as queue:
        step = reader_of(queue)
        with longest(step) as usual:
            threading.Event().wait(1)
        with longest(step) as held_up:
            benchmark.pedantic(lambda: done.append(queue.compact()), rounds=1)
        sealed = sum(map(queue._handle.files.size_of, queue._handle.files.names()[:-1]))
    begun = perf_counter()
    with PersistentQueue(path, mode="exclusive", group=GROUP):
        opening = perf_counter() - begun
    if benchmark.stats is None:
        return
    title = f"merge, {load.count // LIVE_ONE_IN:,} of {load.count:,} messages of {load.size} bytes live"
    live_bytes = load.count // LIVE_ONE_IN * load.size
    share = done[0].written_bytes / done[0].freed_bytes
    report.add(Row(f"{title}: time", f"{benchmark.stats.stats.data[0]:.2f} s"))
    report.add(_row(f"{title}: sealed files, times what lives", sealed / live_bytes, TIMES_MAX, "{:.2f}"))
    report.add(_row(f"{title}: written for each byte freed", share, EXTRA_MAX, "{:.4f}"))
    report.add(_row(f"{title}: opening", opening, OPEN_SECONDS_MAX, "{:.3f} s"))
    read = _row(f"{title}: the longest read beside it", held_up[0], HELD_UP_SECONDS_MAX, "{:.4f} s")
    report.add(replace(read, floor=f"{usual[0]:.4f} s"))


def _row(case: str, value: float, most: float, form: str) -> Row:
    return Row(case, form.format(value), target=f"< {form.format(most)}", met=value < most)
