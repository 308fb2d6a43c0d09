"""Taking under ``never()``, beside slicing the same files."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.cases import queue_cases
from benchmarks.cases.queue_cases import NEVER
from benchmarks.measuring import floors
from benchmarks.measuring.contestant import Against, Contestant
from benchmarks.measuring.load import BATCH, Load
from benchmarks.measuring.race import Race
from holdfast import FlushPolicy

RECORDS = 300_000
RECORDS_SINGLY = 60_000

RECEIVES_PER_SECOND_MIN = 100_000
BATCHED_PER_SECOND_MIN = 300_000
"""What a quiet machine has to do: absolute figures, as a ratio to a floor says nothing of how many that is."""


@pytest.mark.parametrize(("size", "at_least"), [(2000, 0.4), (140, None)], ids=["2000", "140"])
def test_get_many_beside_slicing_the_same_files(
    race: Race, sized: Callable[[int, int], Load], size: int, at_least: float | None
) -> None:
    """Every checksum is computed, and each batch leaves an entry in the position file."""
    load = sized(RECORDS, size)
    race(
        f"get_many of {BATCH}, never(), {size:,} bytes",
        load,
        queue_cases.get_many(load, NEVER),
        [Against(floors.slice_reads(load), at_least)],
        rounds=7,
        prepare=lambda folder: queue_cases.fill(folder, load),
    )


@pytest.mark.parametrize(
    ("title", "records", "make", "per_second_min"),
    [
        ("get one by one", RECORDS_SINGLY, queue_cases.get, None),
        ("receive + ack one by one", RECORDS_SINGLY, queue_cases.receive, RECEIVES_PER_SECOND_MIN),
        (f"receive_many({BATCH}) + ack", RECORDS, queue_cases.receive_many, BATCHED_PER_SECOND_MIN),
    ],
    ids=["get", "receive", "receive_many"],
)
def test_other_ways_to_take_beside_slicing_the_same_files(
    *,
    race: Race,
    sized: Callable[[int, int], Load],
    title: str,
    records: int,
    make: Callable[[Load, FlushPolicy], Contestant],
    per_second_min: int | None,
) -> None:
    """What leases and single takes cost."""
    load = sized(records, 2000)
    race(
        f"{title}, never(), {load.size:,} bytes",
        load,
        make(load, NEVER),
        [Against(floors.slice_reads(load))],
        rounds=7,
        prepare=lambda folder: queue_cases.fill(folder, load),
        per_second_min=per_second_min,
    )
