"""Runs a case and what it is measured against in turn, so that a machine that slows down slows both.

Each round runs floor, case, in fresh files: A B A B. The ratio of a round compares neighbours in time; the table shows
the median of the ratios with the smallest and the largest. Before each timed part ``os.sync`` empties what others have
left to write.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

from benchmarks.measuring.contestant import Against, Body, Contestant
from benchmarks.measuring.load import Load
from benchmarks.measuring.report import Report
from benchmarks.measuring.rows import Comparison

WARMUP_ROUNDS = 1
"""Run and thrown away: the first touch of memory and disk is nobody's speed."""


class Benchmark(Protocol):
    """The part of pytest-benchmark's fixture that is used here."""

    extra_info: dict[str, Any]
    stats: Any

    def pedantic(
        self,
        target: Callable[..., object],
        *,
        setup: Callable[[], object] | None = None,
        teardown: Callable[..., None] | None = None,
        rounds: int = 1,
        warmup_rounds: int = 0,
    ) -> object:
        """Time ``target`` so many rounds, each between a setup and a teardown that are not timed."""


class Race:
    """Runs one comparison and reports it.

    Parameters
    ----------
    benchmark : Benchmark
        Times the case.
    place : Path
        Folder on the disk to measure.
    report : Report
        Takes the rows.
    """

    def __init__(self, benchmark: Benchmark, place: Path, report: Report) -> None:
        self._benchmark = benchmark
        self._place = place
        self._report = report

    def __call__(
        self,
        title: str,
        load: Load,
        case: Contestant,
        against: Sequence[Against],
        *,
        rounds: int = 5,
        prepare: Callable[[Path], None] | None = None,
        per_second_min: int | None = None,
    ) -> None:
        """Run the case against all others, and report a row for each of them.

        Parameters
        ----------
        title : str
            The case, for the table.
        load : Load
            What each contestant moves.
        case : Contestant
            What is measured.
        against : sequence of Against
            Run before the case in each round.
        rounds : int
            How many are timed.
        prepare : callable
            Given the folder of each round, before anybody runs.
        per_second_min : int or None
            Records a second that the case has to reach, besides the ratios; None: any.
        """
        other_seconds: list[list[float]] = [[] for _ in against]

        def others(folder: Path) -> None:
            if prepare is not None:
                prepare(folder)
            for other, seconds in zip(against, other_seconds, strict=True):
                seconds.append(_timed(other.contestant, folder))

        self._run(case, others, rounds)
        if self._benchmark.stats is None:  # --benchmark-disable: it ran, and nothing was timed
            return
        case_seconds: list[float] = self._benchmark.stats.stats.data
        for other, seconds in zip(against, other_seconds, strict=True):
            floor = other.contestant.label
            comparison = Comparison(
                title, load, case_seconds, floor, seconds[WARMUP_ROUNDS:], other.at_least, per_second_min
            )
            self._report.add(comparison.row())
            self._benchmark.extra_info[f"against {floor}"] = comparison.figures()

    def _run(self, case: Contestant, others: Callable[[Path], None], rounds: int) -> None:
        stack = ExitStack()

        def set_up() -> tuple[tuple[Body], dict[str, object]]:
            folder = Path(tempfile.mkdtemp(dir=self._place))
            stack.callback(shutil.rmtree, folder)
            others(folder)
            body = stack.enter_context(case.stage(folder))
            os.sync()
            return (body,), {}

        def tear_down(body: Body) -> None:
            stack.close()

        with stack:
            self._benchmark.pedantic(
                lambda body: body(), setup=set_up, teardown=tear_down, rounds=rounds, warmup_rounds=WARMUP_ROUNDS
            )


def _timed(contestant: Contestant, folder: Path) -> float:
    """Run one contestant and return its seconds."""
    with contestant.stage(folder) as body:
        os.sync()
        started = perf_counter()
        body()
        return perf_counter() - started
