"""Putting under ``never()``, beside bare writes of the same bytes: with the C extension, and with Python alone."""

from __future__ import annotations

import pytest

from benchmarks.conftest import Sized
from benchmarks.measuring import floors
from benchmarks.measuring.load import BATCH
from benchmarks.processes.contestant_process import NO_GOALS, Goals, SideBySide

RECORDS = 300_000


@pytest.mark.parametrize(("size", "at_least"), [(2000, (0.7, 0.55)), (140, (0.45, 0.35))], ids=["2000", "140"])
def test_put_one_by_one_beside_os_write(side_by_side: SideBySide, sized: Sized, size: int, at_least: Goals) -> None:
    """One commit is one write: what a frame, a checksum and a lock cost on top of it."""
    load = sized(RECORDS, size)
    side_by_side("put one by one", "put", load, [floors.write_one_by_one(load)], at_least=at_least)


@pytest.mark.parametrize(("size", "at_least"), [(2000, (0.6, 0.4)), (140, NO_GOALS)], ids=["2000", "140"])
def test_put_many_beside_writev(side_by_side: SideBySide, sized: Sized, size: int, at_least: Goals) -> None:
    """A batch is one write too."""
    load = sized(RECORDS, size)
    side_by_side(f"put_many of {BATCH}", "put_many", load, [floors.write_batches(load)], at_least=at_least)
