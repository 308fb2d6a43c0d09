"""Taking under ``never()``, beside slicing the same files: with the C extension, and with Python alone."""

from __future__ import annotations

import pytest

from benchmarks.conftest import Sized
from benchmarks.measuring import floors
from benchmarks.measuring.load import BATCH
from benchmarks.processes.contestant_process import NO_GOALS, Goals, SideBySide

RECORDS = 300_000
RECORDS_SINGLY = 60_000
THREADS = 8


@pytest.mark.parametrize(("size", "goals"), [(2000, (2.0, 1.2)), (140, NO_GOALS)], ids=["2000", "140"])
def test_get_many_beside_slicing_the_same_files(
    side_by_side: SideBySide, sized: Sized, size: int, goals: Goals
) -> None:
    """Every checksum is computed, and each batch leaves an entry in the position file."""
    load = sized(RECORDS, size)
    title, floor = f"get_many of {BATCH}", floors.slice_reads(load)
    side_by_side(title, "get_many", load, [floor], times_baseline=goals, fills=True)


@pytest.mark.parametrize(
    ("title", "case", "records", "goals"),
    [
        ("get one by one", "get", RECORDS_SINGLY, (1.5, 1.15)),
        ("receive + ack one by one", "receive", RECORDS_SINGLY, (3.0, 1.8)),
        (f"receive_many({BATCH}) + ack", "receive_many", RECORDS, NO_GOALS),
    ],
    ids=["get", "receive", "receive_many"],
)
def test_other_ways_to_take_beside_slicing_the_same_files(
    side_by_side: SideBySide, sized: Sized, *, title: str, case: str, records: int, goals: Goals
) -> None:
    """What leases and single takes cost."""
    load = sized(records, 2000)
    side_by_side(title, case, load, [floors.slice_reads(load)], times_baseline=goals, fills=True)


@pytest.mark.parametrize("size", [2000, 140])
def test_verifying_beside_slicing_the_same_files(side_by_side: SideBySide, sized: Sized, size: int) -> None:
    """Each frame is read and checked, and each seal compared with its file."""
    load = sized(RECORDS, size)
    side_by_side("verify", "verify_all", load, [floors.slice_reads(load)], fills=True)


def test_a_thread_that_puts_and_one_that_gets(side_by_side: SideBySide, sized: Sized) -> None:
    """Each small write may hand the interpreter over, to a thread that waits for a lock."""
    load = sized(RECORDS_SINGLY, 2000)
    side_by_side("put and get, a thread each", "put_and_get", load, times_baseline=(2.0, None))


def test_threads_that_receive_beside_one(side_by_side: SideBySide, sized: Sized) -> None:
    """They share the interpreter and one lock."""
    load = sized(RECORDS_SINGLY, 2000)
    one = side_by_side.contestant("holdfast, 1 thread", "receive-1", load)
    side_by_side(f"receive + ack, {THREADS} threads", f"receive-{THREADS}", load, [one], at_least=(1.0, 0.7))
