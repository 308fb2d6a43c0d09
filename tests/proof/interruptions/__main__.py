"""Interrupts every operation at every point, and prints what was covered and what was wrong."""

from __future__ import annotations

import gc
import logging
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click

from holdfast import FlushPolicy
from proof.interruptions.operations import OPERATIONS
from proof.interruptions.own_operations import OWN_OPERATIONS
from proof.interruptions.signals import Signalled
from proof.interruptions.sweep import Swept, find_points, promised, sweep
from proof.scoreboard import Run
from support.processes.ctrl_c import have_ctrl_c_work
from support.processes.interruptions import Kind

POLICIES = (FlushPolicy.every_commit(), FlushPolicy.every(commits=3), FlushPolicy.never())
LONG = {"open", "close"}
EVERY = (*OPERATIONS, *OWN_OPERATIONS)
SHOWN_MAX = 20


@dataclass(frozen=True)
class Strides:
    """Of how many points one is taken; of those where nothing can be delivered, with 0, none."""

    usual: int
    long: int
    elsewhere: int


@dataclass(frozen=True)
class Row:
    """What came of one operation under one policy."""

    point_count: int
    swept: Swept
    elsewhere: Swept | None

    def __str__(self) -> str:
        judged = self.swept.judged
        kinds = ", ".join(f"{judged[kind]} {kind.value}" for kind in Kind if judged[kind])
        line = f"{self.swept.name}: {judged.total()} of {self.point_count} points interrupted ({kinds})"
        line += f", {len(self.swept.violations)} violations"
        if self.swept.missed_count:
            line += f", {self.swept.missed_count} not come to"
        if self.elsewhere is not None:
            line += f"; elsewhere {len(self.elsewhere.violations)} of {self.elsewhere.judged.total()}"
        return line


def run_one(strides: Strides, task: tuple[int, int]) -> Row:
    """Sweep an operation under a policy, both by their numbers."""
    logging.disable(logging.CRITICAL)
    gc.freeze()
    operation, policy = EVERY[task[0]], POLICIES[task[1]]
    points = find_points(operation, policy)
    main_points = promised(points)
    swept = sweep(operation, policy, main_points[:: strides.long if operation.name in LONG else strides.usual])
    apart = None
    if strides.elsewhere:
        others = [each for each in points if each.kind is Kind.ELSEWHERE]
        apart = sweep(operation, policy, others[:: strides.elsewhere])
    return Row(len(main_points), swept, apart)


def rows(strides: Strides, only: str | None, process_count: int) -> Iterator[Row]:
    """Sweep all operations, in some processes, and yield what came of them in their order."""
    tasks = [
        (number, policy)
        for number, operation in enumerate(EVERY)
        for policy in range(len(POLICIES) if operation.name not in LONG else 1)
        if only is None or operation.name == only
    ]
    work = partial(run_one, strides)
    if process_count == 1:
        yield from map(work, tasks)
        return
    with ProcessPoolExecutor(process_count) as pool:
        yield from pool.map(work, tasks)


@click.command()
@click.option("--only", help="One operation.")
@click.option("--stride", default=1, help="Every so many points of each operation.")
@click.option("--long-stride", default=1, help="The same, of opening and closing, which have thousands.")
@click.option("--elsewhere", default=0, help="Every so many of the bytecodes where nothing can be delivered; 0: none.")
@click.option("--signal-seconds", default=5.0, help="How long real signals are sent.")
@click.option("--seed", default=1, help="Of the signals.")
@click.option("--processes", "process_count", default=os.cpu_count() or 1, help="How many processes share the work.")
def main(  # one for each option
    only: str | None,
    stride: int,
    long_stride: int,
    elsewhere: int,
    signal_seconds: float,
    seed: int,
    process_count: int,
) -> None:
    """Exit with 1 where there is a violation."""
    have_ctrl_c_work()
    run, started, judged, violations = Run("interruptions"), time.monotonic(), 0, list[str]()
    rows_done = 0
    for row in rows(Strides(stride, long_stride, elsewhere), only, process_count):
        print(row, flush=True)
        judged += row.swept.judged.total()
        rows_done += 1
        violations += [f"{row.swept.name}: {each}" for each in row.swept.violations]
    if only is None:
        violations += _send_signals(signal_seconds, seed)
    for each in violations[:SHOWN_MAX]:
        print(each)
    seconds = time.monotonic() - started
    print(f"{judged} interruptions in {seconds:.0f} s ({judged / seconds:.0f}/s), {len(violations)} violations")
    sys.stdout.flush()
    run.record(
        {"interruptions": judged, "operations, each flush policy counted": rows_done}, violations=len(violations)
    )
    sys.exit(1 if violations else 0)


def _send_signals(seconds: float, seed: int) -> list[str]:
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as root:
        run = Signalled(Path(root) / "queue", random.Random(seed))
        try:
            run.run(seconds)
        except AssertionError as error:
            return [f"signals, seed {seed}: {error}"]
        finally:
            print(
                f"signals: {run.interruption_count} of {run.call_count} calls, opened anew {run.reopened_count} times"
            )
    return []


if __name__ == "__main__":
    main()
