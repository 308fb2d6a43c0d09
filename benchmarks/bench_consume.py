"""Taking under ``never()``, beside slicing the same files."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks import floors, queue_cases
from benchmarks.contestant import Against, Contestant
from benchmarks.load import BATCH, Load
from benchmarks.queue_cases import NEVER
from benchmarks.race import Race
from holdfast import FlushPolicy

RECORDS = 300_000
RECORDS_SINGLY = 60_000


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
    ("title", "records", "make", "at_least"),
    [
        ("get one by one", RECORDS_SINGLY, queue_cases.get, None),
        ("receive + ack one by one", RECORDS_SINGLY, queue_cases.receive, 0.048),
        (f"receive_many({BATCH}) + ack", RECORDS, queue_cases.receive_many, 0.145),
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
    at_least: float | None,
) -> None:
    """What leases and single takes cost. The targets are 100,000/s and 300,000/s where slicing does 2,070,000/s."""
    load = sized(records, 2000)
    race(
        f"{title}, never(), {load.size:,} bytes",
        load,
        make(load, NEVER),
        [Against(floors.slice_reads(load), at_least)],
        rounds=7,
        prepare=lambda folder: queue_cases.fill(folder, load),
    )
