"""Putting under ``never()``, beside bare writes of the same bytes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.cases import queue_cases
from benchmarks.cases.queue_cases import NEVER
from benchmarks.measuring import floors
from benchmarks.measuring.contestant import Against
from benchmarks.measuring.load import BATCH, Load
from benchmarks.measuring.race import Race

RECORDS = 300_000


@pytest.mark.parametrize(("size", "at_least"), [(2000, 0.45), (140, 0.22)], ids=["2000", "140"])
def test_put_one_by_one_beside_os_write(
    race: Race, sized: Callable[[int, int], Load], size: int, at_least: float
) -> None:
    """One commit is one write: what a frame, a checksum and a lock cost on top of it."""
    load = sized(RECORDS, size)
    against = [Against(floors.write_one_by_one(load), at_least)]
    race(f"put one by one, never(), {size:,} bytes", load, queue_cases.put(load, NEVER), against, rounds=7)


@pytest.mark.parametrize(("size", "at_least"), [(2000, 0.4), (140, None)], ids=["2000", "140"])
def test_put_many_beside_writev(
    race: Race, sized: Callable[[int, int], Load], size: int, at_least: float | None
) -> None:
    """A batch is one write too."""
    load = sized(RECORDS, size)
    against = [Against(floors.write_batches(load), at_least)]
    race(f"put_many of {BATCH}, never(), {size:,} bytes", load, queue_cases.put_many(load, NEVER), against, rounds=7)
