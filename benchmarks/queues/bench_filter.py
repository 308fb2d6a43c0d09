"""A group with a filter reads a log, beside a group without one that reads and finishes the same messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.cases.queue_cases import EVERY_COMMIT, NEVER, open_queue
from benchmarks.measuring.contestant import Against, Body, Contestant
from benchmarks.measuring.load import BATCH, DATA_FILE_BYTES, Load
from benchmarks.measuring.race import Race
from holdfast import Empty, FlushPolicy, PersistentQueue, Put

RECORDS = 30_000

AT_LEAST = 1 / 3
"""A filtered read costs at most three times an unfiltered one."""

MATCHING = {"none of them": 0, "one in ten": 10, "every second one": 2, "all": 1}
EXPRESSION = "has(headers.kind) && headers.kind == 'paid'"


def _fill(folder: Path, load: Load, every: int) -> None:
    with open_queue(folder, NEVER) as queue:
        queue.groups.create("plain")
        queue.groups.create("filtered", filter=EXPRESSION)
        for first in range(0, load.count, BATCH):
            queue.put_many([Put(load.payload, headers=_headers(first + at, every)) for at in range(BATCH)])


def _headers(number: int, every: int) -> dict[str, str]:
    return {"kind": "paid" if every and number % every == 0 else "open", "id": str(number)}


def _reading(group: str, expected: int, flush: FlushPolicy, label: str) -> Contestant:
    @contextmanager
    def stage(folder: Path) -> Iterator[Body]:
        counts = [0]
        with PersistentQueue(
            folder / "queue", mode="exclusive", group=group, flush=flush, data_file_bytes=DATA_FILE_BYTES
        ) as queue:

            def body() -> None:
                try:
                    while True:
                        counts[0] += len(queue.get_many(BATCH, timeout=0))
                except Empty:
                    pass

            yield body
            assert queue.stats().depth == 0
        assert counts == [expected]

    return Contestant(label, stage)


@pytest.mark.parametrize("flush", [NEVER, EVERY_COMMIT], ids=["never", "every-commit"])
@pytest.mark.parametrize("name", MATCHING)
def test_a_filtered_read_beside_an_unfiltered_one(
    race: Race, sized: Callable[[int, int], Load], name: str, flush: FlushPolicy
) -> None:
    """Both read the whole log by ``get_many``; every message has a header of its own beside the one that counts."""
    load, every = sized(RECORDS, 100), MATCHING[name]
    case = _reading("filtered", load.count // every if every else 0, flush, "holdfast")
    floor = _reading("plain", load.count, flush, "without a filter")
    policy = "never()" if flush is NEVER else "every_commit()"
    race(
        f"get_many of {BATCH}, {policy}, {name} match",
        load,
        case,
        [Against(floor, AT_LEAST)],
        prepare=lambda folder: _fill(folder, load, every),
    )
