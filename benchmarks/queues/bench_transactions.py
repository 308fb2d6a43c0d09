"""What transactions cost: beside ``put_many``, beside bare syncs, and in syncs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

import holdfast
from benchmarks.cases import queue_cases, transaction_cases
from benchmarks.cases.queue_cases import EVERY_COMMIT, NEVER
from benchmarks.cases.transaction_cases import Case
from benchmarks.measuring import floors
from benchmarks.measuring.contestant import Against
from benchmarks.measuring.counting_storage import CountingStorage
from benchmarks.measuring.load import BATCH, DATA_FILE_BYTES, Load
from benchmarks.measuring.race import Benchmark, Race
from benchmarks.measuring.report import Report
from benchmarks.measuring.rows import Row
from holdfast import FlushPolicy, PersistentQueue

TIMES_MAX = 1.3
"""What a transaction of a hundred puts may take, as a multiple of ``put_many`` of the same."""

THREADS = 8
SYNCS_MAX = 5
"""Of prepare + commit, and of receive + put + acknowledge over two queues."""

REPETITIONS = 300

Step = Callable[[str], None]
"""Says that a step is done, by its name."""

Work = Callable[[PersistentQueue, PersistentQueue, bytes, Step], None]
"""One repetition with two queues, the first of which holds enough messages to take."""


@pytest.mark.parametrize("flush", [NEVER, FlushPolicy.every(), EVERY_COMMIT], ids=["never", "every", "every_commit"])
def test_a_transaction_of_puts_beside_put_many(
    race: Race, sized: Callable[[int, int], Load], flush: FlushPolicy
) -> None:
    """The same batch in the log; what is on top of it is a call for each message, and a state to keep."""
    load = sized(30_000, 2000)
    put_many = replace(queue_cases.put_many(load, flush), label=f"put_many of {BATCH}")
    against = [Against(put_many, round(1 / TIMES_MAX, 2))]
    title = f"transaction of {BATCH} puts, {flush}, {load.size:,} bytes"
    race(title, load, transaction_cases.puts(load, flush), against, rounds=31)


@pytest.mark.parametrize(
    ("title", "make", "goals"),
    [
        ("transaction of 1 put", transaction_cases.commit, (None, None)),
        ("put + prepare + commit", transaction_cases.prepare_and_commit, (0.4, 1.2)),
        ("put + prepare + commit, default mode", transaction_cases.prepare_and_commit_shared, (None, None)),
        ("receive + put + ack over two queues", transaction_cases.move, (None, None)),
    ],
    ids=["commit", "prepare", "prepare-default-mode", "two-queues"],
)
@pytest.mark.parametrize("threads", [1, THREADS])
def test_transactions_beside_write_and_fdatasync(
    *,
    race: Race,
    sized: Callable[[int, int], Load],
    title: str,
    make: Case,
    goals: tuple[float | None, float | None],
    threads: int,
) -> None:
    """How many of them a second, under ``every_commit()``; goals are for one thread and for several."""
    load = sized(400, 2000)
    others = [] if threads == 1 else [Against(make(load, 1))]
    if make is transaction_cases.commit:
        others.append(Against(replace(queue_cases.put(load, EVERY_COMMIT, threads), label="plain put"), 0.5))
    race(
        f"{title}, every_commit(), {threads} thread{'s' if threads > 1 else ''}",
        load,
        make(load, threads),
        [Against(floors.write_and_sync(load), goals[threads > 1]), *others],
        rounds=15,
    )


# -- Syncs -----------------------------------------------------------------------------------------------------------


def _put(queue: PersistentQueue, _: PersistentQueue, payload: bytes, step: Step) -> None:
    with queue.transaction() as tx:
        tx.put(payload)
    step("commit")


def _ack(queue: PersistentQueue, _: PersistentQueue, __: bytes, step: Step) -> None:
    with queue.transaction() as tx:
        message = tx.receive()
        step("receive")
        tx.ack(message)
    step("commit")


def _put_and_ack(queue: PersistentQueue, _: PersistentQueue, payload: bytes, step: Step) -> None:
    with queue.transaction() as tx:
        message = tx.receive()
        step("receive")
        tx.put(payload)
        tx.ack(message)
    step("commit")


def _prepare_put(queue: PersistentQueue, _: PersistentQueue, payload: bytes, step: Step) -> None:
    tx = queue.begin()
    tx.put(payload)
    tx.prepare()
    step("prepare")
    tx.commit()
    step("commit")


def _prepare_put_and_ack(queue: PersistentQueue, _: PersistentQueue, payload: bytes, step: Step) -> None:
    tx = queue.begin()
    message = tx.receive()
    step("receive")
    tx.put(payload)
    tx.ack(message)
    tx.prepare()
    step("prepare")
    tx.commit()
    step("commit")


def _move(source: PersistentQueue, target: PersistentQueue, payload: bytes, step: Step) -> None:
    with holdfast.transaction(source, target) as tx:
        message = tx.receive(source)
        step("receive")
        tx.put(target, payload)
        tx.ack(source, message)
        step("put + ack")
    step("commit")


@pytest.mark.parametrize(
    ("title", "work", "syncs_max"),
    [
        ("transaction of 1 put", _put, 1),
        ("transaction of 1 ack", _ack, 1),
        ("transaction of 1 put, 1 ack", _put_and_ack, 1),
        ("prepare + commit of 1 put", _prepare_put, SYNCS_MAX),
        ("prepare + commit of 1 put, 1 ack", _prepare_put_and_ack, SYNCS_MAX),
        ("receive + put + ack over two queues", _move, SYNCS_MAX),
    ],
    ids=["put", "ack", "put-ack", "prepare-put", "prepare-put-ack", "two-queues"],
)
def test_syncs_of_each_step(
    *,
    benchmark: Benchmark,
    place: Path,
    report: Report,
    sized: Callable[[int, int], Load],
    title: str,
    work: Work,
    syncs_max: int,
) -> None:
    """Counted on the storage port: the first repetition alone, which makes what is missing, and the mean of others."""
    load, storage = sized(REPETITIONS, 2000), CountingStorage()
    names: list[str] = []
    counts: list[int] = []

    def step(name: str) -> None:
        names.append(name)
        counts.append(storage.take().number)

    source, target = (
        PersistentQueue(place / name, mode="exclusive", storage=storage, data_file_bytes=DATA_FILE_BYTES)
        for name in ("from", "to")
    )
    with source, target:
        source.put_many([load.payload] * (load.count + 1))
        storage.take()

        def repeat() -> None:
            for _ in range(load.count + 1):
                work(source, target, load.payload, step)

        benchmark.pedantic(repeat)
    steps = list(dict.fromkeys(names))
    starts = range(0, len(counts) + 1, len(steps))
    first, *others = [counts[start:end] for start, end in pairwise(starts)]
    means = [sum(column) / len(others) for column in zip(*others, strict=True)]
    benchmark.extra_info["syncs"] = {"steps": steps, "first": first, "mean": means}
    each = " + ".join(f"{name} {mean:.2f}" for name, mean in zip(steps, means, strict=True))
    report.add(
        Row(
            f"syncs: {title}, every_commit()",
            f"{each} (the first: {' + '.join(map(str, first))})",
            target=f"≤ {syncs_max}",
            met=round(sum(means), 1) <= syncs_max,  # now and then one ends what some hundred transactions left open
        )
    )
