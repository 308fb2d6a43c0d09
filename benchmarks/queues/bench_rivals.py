"""``every_commit()`` beside a queue made of one SQLite table, which gives the same promise. For information."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.cases import queue_cases, sqlite_rival
from benchmarks.cases.queue_cases import EVERY_COMMIT
from benchmarks.measuring.contestant import Against
from benchmarks.measuring.load import Load
from benchmarks.measuring.race import Race

RECORDS = 1000
"""Few for each round, and many rounds: the time of a sync changes from second to second."""

ROUNDS = 21


def test_put_beside_sqlite(race: Race, sized: Callable[[int, int], Load]) -> None:
    """One put for each commit on both sides."""
    load = sized(RECORDS, 2000)
    against = [Against(sqlite_rival.put(load))]
    race(
        "put, every_commit(), 1 thread, beside SQLite",
        load,
        queue_cases.put(load, EVERY_COMMIT),
        against,
        rounds=ROUNDS,
    )


def test_get_beside_sqlite(race: Race, sized: Callable[[int, int], Load]) -> None:
    """One take for each commit on both sides."""
    load = sized(RECORDS, 2000)
    race(
        "get, every_commit(), 1 thread, beside SQLite",
        load,
        queue_cases.get(load, EVERY_COMMIT),
        [Against(sqlite_rival.get(load))],
        rounds=ROUNDS,
        prepare=lambda folder: queue_cases.fill(folder, load),
    )
