"""``every_commit()``, beside bare syncs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.cases import queue_cases
from benchmarks.cases.queue_cases import EVERY_COMMIT
from benchmarks.measuring import floors
from benchmarks.measuring.contestant import Against
from benchmarks.measuring.load import Load
from benchmarks.measuring.race import Race
from holdfast.persistence.format.constants import ENTRY

RECORDS = 1000
"""Few for each round, and many rounds: the time of a sync changes from second to second."""

ROUNDS = 21
THREADS = 8


@pytest.mark.parametrize("size", [2000, 140])
def test_put_by_one_thread_beside_write_and_fdatasync(race: Race, sized: Callable[[int, int], Load], size: int) -> None:
    """Alone, a thread waits for one sync for each put, and for nothing else."""
    load = sized(RECORDS, size)
    race(
        f"put, every_commit(), 1 thread, {size:,} bytes",
        load,
        queue_cases.put(load, EVERY_COMMIT),
        [Against(floors.write_and_sync(load), 0.9), Against(floors.overwrite_and_sync(load))],
        rounds=ROUNDS,
    )


@pytest.mark.parametrize("size", [2000, 140])
def test_put_by_eight_threads_beside_one_thread(race: Race, sized: Callable[[int, int], Load], size: int) -> None:
    """Threads that commit at the same time share syncs."""
    load = sized(RECORDS, size)
    race(
        f"put, every_commit(), {THREADS} threads, {size:,} bytes",
        load,
        queue_cases.put(load, EVERY_COMMIT, THREADS),
        [
            Against(queue_cases.put(load, EVERY_COMMIT), 2.5),
            Against(floors.write_and_sync(load)),
            Against(floors.write_and_sync(load, THREADS)),
            Against(floors.write_and_sync(load, THREADS, apart=True), 0.95),
        ],
        rounds=ROUNDS,
    )


def test_get_beside_write_and_fdatasync_of_an_entry(race: Race, sized: Callable[[int, int], Load]) -> None:
    """Each get is one entry of the position file, synced."""
    load = sized(RECORDS, 2000)
    entries = Load(load.count, ENTRY.size)
    race(
        f"get, every_commit(), 1 thread, {load.size:,} bytes",
        load,
        queue_cases.get(load, EVERY_COMMIT),
        [Against(floors.write_and_sync(entries))],
        rounds=ROUNDS,
        prepare=lambda folder: queue_cases.fill(folder, load),
    )
