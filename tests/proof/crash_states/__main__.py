"""``python -m proof.crash_states``: explores crash states until there are enough, or until one is answered wrongly."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import chain, islice
from pathlib import Path

import click

import holdfast
from proof.crash_states.explorer import Tally
from proof.crash_states.ledger import Ledger, checksum_of
from proof.crash_states.opening import POLICIES
from proof.crash_states.search import Care, FoundError, Search, Task, drawn_tasks, exhaustive_tasks, run
from proof.crash_states.workloads import BEGINNINGS
from proof.scoreboard import Run

REPORT_SECONDS = 10.0
AHEAD = 4  # tasks that wait for each process

Done = tuple[Task, Tally, float]


def timed(task: Task) -> Done:
    """Do a task; return it with what was covered, and its seconds."""
    begun = time.perf_counter()
    return task, run(task), time.perf_counter() - begun


def tune_garbage_collection() -> None:
    """Collect what closed queues leave while it is in the processor's caches, and hardly ever what lives on.

    Once for each process: what is frozen is never collected.
    """
    gc.freeze()
    gc.set_threshold(5_000, 50, 1_000)


def all_done(tasks: Iterator[Task], process_count: int) -> Iterator[Done]:
    """Do tasks in some processes, and yield each when it is done; the first failure stops everything."""
    if process_count == 1:
        tune_garbage_collection()
        yield from map(timed, tasks)
        return
    with ProcessPoolExecutor(process_count, initializer=tune_garbage_collection) as pool:
        running: set[Future[Done]] = {pool.submit(timed, task) for task in islice(tasks, process_count * AHEAD)}
        try:
            while running:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()
                    running |= {pool.submit(timed, task) for task in islice(tasks, 1)}
        finally:
            pool.shutdown(cancel_futures=True)


def tell(ledger: Ledger, begun: float, before: int) -> None:
    """Print what was covered up to now."""
    sums, seconds = ledger.sums(), time.perf_counter() - begun
    click.echo(
        f"{ledger.state_count:,} distinct states of {sums['crashes']:,.0f} crashes in {sums['workloads']:,.0f} "
        f"workloads, {sums['recoveries']:,.0f} crashes of recoveries, {sums['works']:,.0f} recovered queues used: 0 "
        f"violations ({(ledger.state_count - before) / seconds:,.0f} new states/s)"
    )
    sys.stdout.flush()


def covered(ledger: Ledger) -> dict[str, int | str]:
    """Return its figures."""
    sums = ledger.sums()
    return {
        "distinct states": ledger.state_count,
        "crashes": int(sums["crashes"]),
        "workloads": int(sums["workloads"]),
        "crashes of recoveries": int(sums["recoveries"]),
        "recovered queues used": int(sums["works"]),
    }


@click.command()
@click.option("--states", default=500_000, show_default=True, help="Stop when so many distinct states were judged.")
@click.option("--depth", default=4, show_default=True, help="Explore all workloads of up to so many actions.")
@click.option("--seed", default=0, show_default=True, help="Of the first drawn workloads.")
@click.option("--processes", default=os.cpu_count() or 1, show_default="one for each core", type=click.IntRange(1))
@click.option(
    "--ledger", "path", type=click.Path(path_type=Path), help="Keep what was covered here, and go on with it."
)
@click.option("--workload", help="Explore this one alone: actions with spaces between them.")
@click.option("--since", default=0, show_default=True, help="Of a workload alone: crash it behind so many actions.")
@click.option("--samples", type=int, help="Of a workload alone: crashes drawn at each instant, not all kinds.")
@click.option("--instants", type=int, help="Of a workload alone: at how many instants it is crashed.")
@click.option("--beginning", default="fresh", type=click.Choice(list(BEGINNINGS)), show_default=True)
@click.option("--policy", default="every_commit", type=click.Choice(list(POLICIES)), show_default=True)
def main(
    states: int,
    depth: int,
    seed: int,
    processes: int,
    path: Path | None,
    workload: str | None,
    beginning: str,
    policy: str,
    since: int,
    samples: int | None,
    instants: int | None,
) -> None:
    """Crash queues at every instant of every short workload and of drawn longer ones; recover and judge each state."""
    if workload is not None:
        alone(Task(beginning, policy), tuple(workload.split()), since, Care(samples, instants))
        return
    run_of_all = Run("crash-states" if path is None else "crash-long")
    ledger = Ledger(path)
    tests, package = Path(__file__).parents[2], Path(holdfast.__file__).parent
    if not ledger.belongs_to(checksum_of(package, tests / "support", tests / "proof" / "crash_states")):
        raise click.ClickException(f"{path} was made with other code: remove it, or name another one")
    begun, before = time.perf_counter(), ledger.state_count
    tasks = (task for task in chain(exhaustive_tasks(depth), drawn_tasks(seed)) if not ledger.is_done(str(task)))
    told = begun
    is_exhaustive = True
    try:
        for task, tally, seconds in all_done(tasks, processes):
            ledger.note(str(task), tally, seconds)
            if time.perf_counter() - told > REPORT_SECONDS:
                told = time.perf_counter()
                tell(ledger, begun, before)
            is_exhaustive = is_exhaustive and task.seed is None
            if ledger.state_count >= states and not is_exhaustive:
                break
    except FoundError as error:
        click.echo(f"violation after {ledger.state_count:,} states: {error}")
        run_of_all.record(covered(ledger), violations=1)
        sys.exit(1)
    tell(ledger, begun, before)
    click.echo(f"all workloads of up to {depth} actions, and drawn ones, under {len(POLICIES)} flush policies")
    run_of_all.record(covered(ledger), violations=0)
    ledger.close()


def alone(task: Task, workload: tuple[str, ...], since: int, care: Care) -> None:
    """Explore one workload."""
    search = Search(task)
    try:
        search.alone(workload, since, care)
    except FoundError as error:
        click.echo(f"violation: {error}")
        sys.exit(1)
    tally = search.tally
    click.echo(f"{len(tally.digests):,} distinct states of {tally.crashes:,} crashes: 0 violations")


if __name__ == "__main__":
    main()
