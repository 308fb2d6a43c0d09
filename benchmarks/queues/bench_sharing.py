"""Several processes that share one queue: clients beside the owner's own threads, and beside an owner that is busy."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from shutil import rmtree
from statistics import median

import pytest

from benchmarks.cases import queue_cases
from benchmarks.cases.queue_cases import EVERY_COMMIT, NEVER, open_queue
from benchmarks.measuring.contestant import Against, Body, Contestant
from benchmarks.measuring.load import BATCH, Load
from benchmarks.measuring.race import Benchmark, Race
from benchmarks.measuring.report import Report
from benchmarks.measuring.reported_timer import ReportedTimer
from benchmarks.measuring.rows import Row, significant, spread
from benchmarks.processes import fresh_process
from benchmarks.processes.sharing_process import answer_of, started, tell
from holdfast import FlushPolicy

timer = ReportedTimer()

PROCESSES = 4
IDLE_PERCENT_MAX = 0.1
SUCCESSION_RATIO_MAX = 1.5
SUCCESSION_ROUNDS = 5

busy_too = pytest.mark.parametrize("is_busy", [False, True], ids=["idle-owner", "busy-owner"])
"""Beside an owner that does nothing else, and one that has a thread of pure Python."""


def _beside(is_busy: bool) -> str:
    return ", busy owner" if is_busy else ""


@contextmanager
def _thread_of_python(is_there: bool) -> Iterator[None]:
    """Have a thread of this process that never waits, or none."""
    is_over = threading.Event()

    def work() -> None:
        count = 0
        while not is_over.is_set():
            for _ in range(10_000):
                count += 1

    thread = threading.Thread(target=work if is_there else lambda: None)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _shared(
    label: str, flush: FlushPolicy, verbs: Sequence[Sequence[object]], *, has_owner: bool = True, is_busy: bool = False
) -> Contestant:
    """Have processes work at once, each as the arguments say, beside an owner in this process, or without one."""

    @contextmanager
    def stage(folder: Path) -> Iterator[Body]:
        with ExitStack() as stack:
            if has_owner:
                stack.enter_context(open_queue(folder, flush, "shared"))
            processes = [stack.enter_context(started(verb, folder, *rest)) for verb, *rest in verbs]
            stack.enter_context(_thread_of_python(is_busy))

            def body() -> None:
                for process in processes:
                    tell(process)
                for process in processes:
                    assert answer_of(process) == "done"

            yield body

    return Contestant(label, stage)


@busy_too
@pytest.mark.parametrize(
    ("batch", "records", "at_least"), [(1, 2_000, 0.9), (BATCH, 40_000, 0.7)], ids=["one-by-one", "by-100"]
)
def test_putting_beside_the_owner_itself(
    *, race: Race, sized: Callable[[int, int], Load], batch: int, records: int, at_least: float, is_busy: bool
) -> None:
    """What a process between costs, if the owner's own threads put the same."""
    load = sized(records, 2000)
    share = load.count // PROCESSES // batch * batch
    case = _shared(
        f"holdfast, {PROCESSES} processes",
        EVERY_COMMIT,
        [("put", share, load.size, batch)] * PROCESSES,
        is_busy=is_busy,
    )
    if batch == 1:
        owner = replace(queue_cases.put(load, EVERY_COMMIT, PROCESSES), label=f"owner, {PROCESSES} threads")
    else:
        owner = replace(queue_cases.put_many(load, EVERY_COMMIT), label="owner, 1 thread")
    title = "put" if batch == 1 else f"put_many of {batch}"
    title = f'{title}, {PROCESSES} processes, mode="shared", every_commit(){_beside(is_busy)}'
    race(title, load, case, [Against(owner, None if is_busy else at_least)], rounds=7)


@busy_too
def test_taking_by_processes(*, race: Race, sized: Callable[[int, int], Load], is_busy: bool) -> None:
    """``receive_many`` and ``ack``, all at once."""
    load = sized(100_000, 2000)
    fill = partial(queue_cases.fill, load=load)
    verbs = [("take", load.count // PROCESSES, BATCH)] * PROCESSES
    case = _shared(f"holdfast, {PROCESSES} processes", NEVER, verbs, is_busy=is_busy)
    race(
        f'receive_many of {BATCH} + ack, {PROCESSES} processes, mode="shared", never(){_beside(is_busy)}',
        load,
        case,
        [Against(_alone(replace(queue_cases.receive_many(load, NEVER), label="owner, 1 thread"), fill))],
        prepare=fill,
        per_second_min=None if is_busy else 100_000,
    )


@busy_too
def test_one_consumer_beside_the_owner(*, race: Race, sized: Callable[[int, int], Load], is_busy: bool) -> None:
    """The producer owns, and a loop in another process takes; beside the same loop in a process that owns alone."""
    load = sized(100_000, 2000)
    fill = partial(queue_cases.fill, load=load)
    verb = ("loop", load.count, BATCH)
    case = _shared("holdfast, shared", NEVER, [verb], is_busy=is_busy)
    alone = _shared("without sharing", NEVER, [(*verb, "exclusive")], has_owner=False)
    race(
        f"consume by {BATCH}, the producer owns, 1 consumer process, never(){_beside(is_busy)}",
        load,
        case,
        [Against(_alone(alone, fill), None if is_busy else 0.8)],
        prepare=fill,
    )


@pytest.mark.parametrize("flush", [NEVER, EVERY_COMMIT], ids=["never", "every_commit"])
@pytest.mark.parametrize(
    ("title", "contestant", "never_count", "synced_count"),
    [
        ("put", queue_cases.put, 100_000, 5_000),
        ("get", queue_cases.get, 100_000, 5_000),
        ("receive + ack", queue_cases.receive, 50_000, 5_000),
        (f"put_many of {BATCH}", queue_cases.put_many, 200_000, 100_000),
        (f"get_many of {BATCH}", queue_cases.get_many, 200_000, 100_000),
        (f"receive_many of {BATCH} + ack", queue_cases.receive_many, 200_000, 100_000),
    ],
    ids=["put", "get", "receive", "put_many", "get_many", "receive_many"],
)
def test_a_handle_of_the_owner(
    *,
    race: Race,
    sized: Callable[[int, int], Load],
    title: str,
    contestant: Callable[..., Contestant],
    never_count: int,
    synced_count: int,
    flush: FlushPolicy,
) -> None:
    """What the mode costs a program that has the queue for itself: one thread of the owner, and no other process."""
    load = sized(never_count if flush is NEVER else synced_count, 2000)
    case = replace(contestant(load, flush, mode="shared"), label="holdfast, shared")
    fill = None if title.startswith("put") else partial(queue_cases.fill, load=load, flush=flush)
    race(
        f'{title}, mode="shared", in the owner\'s process, {flush}',
        load,
        case,
        [Against(_alone(replace(contestant(load, flush), label="exclusive"), fill), 0.7)],
        prepare=fill,
        rounds=7,
    )


def _alone(contestant: Contestant, fill: Callable[[Path], None] | None) -> Contestant:
    """Give a contestant a queue of its own, with something in it if it takes."""

    @contextmanager
    def stage(folder: Path) -> Iterator[Body]:
        root = folder / "alone"
        root.mkdir()
        if fill is not None:
            fill(root)
        with contestant.stage(root) as body:
            yield body

    return Contestant(contestant.label, stage)


@pytest.mark.benchmark(timer=timer)
def test_succession(benchmark: Benchmark, place: Path, report: Report, sized: Callable[[int, int], Load]) -> None:
    """From the kill of the owner of a long backlog to the next put of a client; beside an opening after a kill."""
    load = sized(1_000_000, 140)
    openings: list[float] = []

    def fill() -> None:
        rmtree(place / "queue", ignore_errors=True)
        fresh_process.run("fill", place, load.count, load.size, "killed", dies=True)
        openings.append(json.loads(fresh_process.run("open", place, load.size))["seconds"])

    def succeed() -> None:
        with started("own", place) as owner, open_queue(place, NEVER, "shared") as queue:
            queue.put(load.payload)
            began = time.perf_counter()
            owner.kill()
            queue.put(load.payload)
            timer.report(time.perf_counter() - began)
            assert queue.is_owner

    benchmark.pedantic(succeed, setup=fill, rounds=SUCCESSION_ROUNDS)
    if benchmark.stats is None:
        return
    seconds = benchmark.stats.stats.data
    ratio = median(seconds) / median(openings)
    report.add(
        Row(
            f"next put after the owner was killed, {load.count:,} of {load.size} bytes waiting",
            spread([each * 1e3 for each in seconds], 1, " ms"),
            f"opening after a kill: {significant(median(openings) * 1e3)} ms; ratio {ratio:.2f}",
            target=f"≤ {SUCCESSION_RATIO_MAX} times",
            met=ratio <= SUCCESSION_RATIO_MAX,
        )
    )


def test_an_idle_client(place: Path, report: Report, sized: Callable[[int, int], Load]) -> None:
    """Processor time of a process that has put a message, and does nothing."""
    seconds = 10.0 if sized(10, 1).count == 10 else 2.0
    with open_queue(place, NEVER, "shared"), started("idle", place, seconds) as process:
        tell(process)
        percent = float(answer_of(process))
    report.add(
        Row(
            "an idle client of a shared queue: processor time",
            f"{percent:.2f} % of a core",
            target=f"< {IDLE_PERCENT_MAX} %",
            met=percent < IDLE_PERCENT_MAX,
        )
    )
