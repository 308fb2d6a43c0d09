"""Several processes that share one queue: clients beside the owner's own threads, and beside an owner that is busy."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from statistics import median

import pytest

from benchmarks.cases import queue_cases
from benchmarks.cases.queue_cases import EVERY_COMMIT, NEVER
from benchmarks.measuring.contestant import Against, Body, Contestant
from benchmarks.measuring.load import BATCH, DATA_FILE_BYTES, Load
from benchmarks.measuring.race import Benchmark, Race
from benchmarks.measuring.report import Report
from benchmarks.measuring.reported_timer import ReportedTimer
from benchmarks.measuring.rows import Row, significant, spread
from benchmarks.processes import fresh_process
from benchmarks.processes.sharing_process import answer_of, started, tell
from holdfast import FlushPolicy, PersistentQueue
from holdfast.queue.options.queue_options import Mode

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


def _owner(root: Path, mode: Mode, flush: FlushPolicy) -> PersistentQueue:
    return PersistentQueue(root / "queue", mode=mode, flush=flush, data_file_bytes=DATA_FILE_BYTES)


def _shared(
    label: str, flush: FlushPolicy, verbs: Sequence[Sequence[object]], *, mode: Mode = "shared", is_busy: bool = False
) -> Contestant:
    """Have processes work at once, each as the arguments say, beside an owner in this process."""

    @contextmanager
    def stage(folder: Path) -> Iterator[Body]:
        with ExitStack() as stack:
            stack.enter_context(_owner(folder, mode, flush))
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
    verbs = [("take", load.count // PROCESSES, BATCH)] * PROCESSES
    case = _shared(f"holdfast, {PROCESSES} processes", NEVER, verbs, is_busy=is_busy)
    race(
        f'receive_many of {BATCH} + ack, {PROCESSES} processes, mode="shared", never(){_beside(is_busy)}',
        load,
        case,
        [Against(_alone(replace(queue_cases.receive_many(load, NEVER), label="owner, 1 thread"), load))],
        prepare=lambda folder: queue_cases.fill(folder, load),
        per_second_min=None if is_busy else 100_000,
    )


@busy_too
def test_one_consumer_beside_the_owner(*, race: Race, sized: Callable[[int, int], Load], is_busy: bool) -> None:
    """The producer owns, and a loop in another process takes; beside the same loop without sharing."""
    load = sized(100_000, 2000)
    verb = ("loop", load.count, BATCH)
    case = _shared("holdfast, shared", NEVER, [verb], is_busy=is_busy)

    apart = _shared("a process for each side", NEVER, [(*verb, "consume")], mode="produce")
    race(
        f"consume by {BATCH}, the producer owns, 1 consumer process, never(){_beside(is_busy)}",
        load,
        case,
        [Against(_alone(apart, load), None if is_busy else 0.8)],
        prepare=lambda folder: queue_cases.fill(folder, load),
    )


def _alone(contestant: Contestant, load: Load) -> Contestant:
    """Give a contestant that takes a queue of its own, with as much in it."""

    @contextmanager
    def stage(folder: Path) -> Iterator[Body]:
        root = folder / "alone"
        root.mkdir()
        queue_cases.fill(root, load)
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
        with started("own", place) as owner, _owner(place, "shared", NEVER) as queue:
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
    with _owner(place, "shared", NEVER), started("idle", place, seconds) as process:
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
