"""Large transactions: committing a prepared one copies nothing, and streaming into one holds little in memory."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from shutil import rmtree
from statistics import median
from time import perf_counter

import pytest

from benchmarks.measuring.counting_storage import CountingStorage, Syncs
from benchmarks.measuring.load import Load
from benchmarks.measuring.race import Benchmark
from benchmarks.measuring.report import Report
from benchmarks.measuring.reported_timer import ReportedTimer
from benchmarks.measuring.rows import Row, significant, spread
from benchmarks.processes import fresh_process
from holdfast import PersistentQueue, Transaction

timer = ReportedTimer()

MIB = 2**20
SIZES_MIB = (64, 256, 1024)
QUICK_MIB = 64

ROUNDS = 3
SECONDS_MAX = 0.05
"""Of a commit, without its syncs."""

PREPARE_SECONDS_MAX = 600.0
SPARE_MIB = 512
"""Left free on the disk, besides the batch."""

MEMORY_MB_MAX = 16
"""Of a streamed message, however large it is."""

RECORD_BYTES = 2000
PUT_AT_ONCE = 1000


def _fitting_mib(place: Path, wanted_mib: int) -> int:
    """Return the size, halved until the disk has room for it."""
    free_mib = shutil.disk_usage(place).free // MIB
    size_mib = wanted_mib
    while size_mib > 1 and size_mib + SPARE_MIB > free_mib:
        size_mib //= 2
    return size_mib


def _prepare(queue: PersistentQueue, size_bytes: int) -> Transaction:
    """Return a prepared transaction that puts so many bytes."""
    load = Load(size_bytes // RECORD_BYTES, RECORD_BYTES)
    tx = queue.begin(timeout=PREPARE_SECONDS_MAX)
    for _ in range(load.count // PUT_AT_ONCE):
        tx.put_many([load.payload] * PUT_AT_ONCE)
    tx.prepare()
    return tx


@pytest.mark.benchmark(timer=timer)
@pytest.mark.parametrize("wanted_mib", SIZES_MIB)
def test_committing_a_large_prepared_batch(
    *, request: pytest.FixtureRequest, benchmark: Benchmark, place: Path, report: Report, wanted_mib: int
) -> None:
    """The batch becomes the next data file as it is, so its size does not matter; the disk's syncs stand apart."""
    if request.config.getoption("quick") and wanted_mib > QUICK_MIB:
        pytest.skip(f"--quick: {QUICK_MIB} MiB only")
    size_mib = _fitting_mib(place, wanted_mib)
    seconds: list[float] = []
    syncs: list[Syncs] = []

    def prepare_and_commit() -> None:
        storage, root = CountingStorage(), place / "queue"
        with PersistentQueue(root, mode="exclusive", storage=storage) as queue:
            queue.put(b"something to seal")
            tx = _prepare(queue, size_mib * MIB)
            os.sync()
            storage.take()
            started = perf_counter()
            offsets = tx.commit()
            elapsed = perf_counter() - started
            syncs.append(storage.take())
            seconds.append(elapsed - syncs[-1].seconds)
            assert queue.qsize() == len(offsets) + 1
        rmtree(root)
        timer.report(seconds[-1])

    benchmark.pedantic(prepare_and_commit, rounds=ROUNDS)
    benchmark.extra_info.update(mib=size_mib, seconds=seconds, syncs=syncs)
    note = "" if size_mib == wanted_mib else f" (no room on the disk for {wanted_mib:,})"
    in_syncs = spread([each.seconds * 1e3 for each in syncs], 1, " ms")
    report.add(
        Row(
            f"commit of a prepared batch of {size_mib:,} MiB{note}, every_commit()",
            spread([each * 1e3 for each in seconds], 1, " ms"),
            f"its {median([each.number for each in syncs]):g} syncs: {in_syncs}",
            target=f"< {SECONDS_MAX * 1e3:g} ms",
            met=median(seconds) < SECONDS_MAX,
        )
    )


@pytest.mark.benchmark(timer=timer)
def test_memory_of_a_streamed_message(
    *, request: pytest.FixtureRequest, benchmark: Benchmark, place: Path, report: Report
) -> None:
    """A message of 256 MiB that comes in pieces of 1 MiB; memory is the most that was ever resident."""
    size_mib = _fitting_mib(place, QUICK_MIB if request.config.getoption("quick") else 256)
    readings: list[dict[str, float]] = []

    def stream() -> None:
        readings.append(json.loads(fresh_process.run("stream", place, size_mib * MIB)))
        timer.report(readings[-1]["seconds"])
        rmtree(place / "queue")

    benchmark.pedantic(stream, rounds=ROUNDS)
    more = [(each["after_bytes"] - each["before_bytes"]) / 1e6 for each in readings]
    before = median([each["before_bytes"] for each in readings]) / 1e6
    speed = significant(size_mib * MIB / 1e6 / median([each["seconds"] for each in readings]))
    benchmark.extra_info.update(mib=size_mib, more_mb=more, before_mb=before)
    report.add(
        Row(
            f"put_stream of {size_mib:,} MiB + commit, never(): memory",
            f"{spread(more, 1, ' MB')} more resident; {speed} MB/s",
            f"open queue: {before:.1f} MB",
            target=f"< {MEMORY_MB_MAX} MB",
            met=max(more) < MEMORY_MB_MAX,
        )
    )
