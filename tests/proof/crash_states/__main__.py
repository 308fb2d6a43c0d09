"""``python -m proof.crash_states``: explores crash states until there are enough, or until one is answered wrongly."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

import click

from proof.crash_states.counting import Tally
from proof.crash_states.ledger import Ledger, digest_of_what_matters
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


def tell(ledger: Ledger, begun: float, before: int, left: int) -> None:
    """Print what was covered up to now; ``left``: how many tasks of short workloads there are to do."""
    sums, seconds = ledger.sums(), time.perf_counter() - begun
    click.echo(
        f"{ledger.state_count:,} distinct states, {ledger.view_count:,} distinct recovered views and "
        f"{ledger.fate_count:,} distinct pairs of operation and fate, of {sums['crashes']:,.0f} crashes in "
        f"{sums['workloads']:,.0f} workloads, {sums['recoveries']:,.0f} crashes of recoveries, "
        f"{sums['works']:,.0f} recovered queues used: "
        f"0 violations ({(ledger.state_count - before) / seconds:,.0f} new states/s; "
        f"{left:,} tasks left before drawn ones)"
    )
    sys.stdout.flush()


def covered(ledger: Ledger) -> dict[str, int | str]:
    """Return its figures."""
    sums = ledger.sums()
    return {
        "distinct states": ledger.state_count,
        "distinct recovered views": ledger.view_count,
        "distinct pairs of operation and fate": ledger.fate_count,
        "crashes": int(sums["crashes"]),
        "workloads": int(sums["workloads"]),
        "crashes of recoveries": int(sums["recoveries"]),
        "recovered queues used": int(sums["works"]),
    }


@click.command()
@click.option("--states", default=500_000, show_default=True, help="Stop when so many distinct states were judged.")
@click.option("--views", type=int, help="Stop at so many distinct recovered views instead.")
@click.option("--quiet", type=float, help="Stop when so many seconds have brought no new view and no new fate.")
@click.option("--depth", default=3, show_default=True, help="Explore all workloads of up to so many actions.")
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
    views: int | None,
    quiet: float | None,
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
    is_long = views is not None or quiet is not None
    run_of_all = Run("crash-long" if is_long else "crash-states", partial=is_long and path is None)
    ledger = Ledger(path)
    if not ledger.belongs_to(digest_of_what_matters()):
        raise click.ClickException(f"{path} was made with other code: remove it, or name another one")
    is_right = search_on(
        ledger, list(exhaustive_tasks(depth)), drawn_tasks(seed), processes, Goal(states, views, quiet)
    )
    run_of_all.record(covered(ledger), violations=0 if is_right else 1)
    ledger.close()
    if not is_right:
        sys.exit(1)
    click.echo(f"all workloads of up to {depth} actions, and drawn ones, under {len(POLICIES)} flush policies")


@dataclass(frozen=True)
class Goal:
    """When a search is over, once all short workloads were explored.

    Attributes
    ----------
    states : int
        At so many distinct states.
    views : int or None
        At so many distinct recovered views instead.
    quiet_seconds : float or None
        Or when so long has brought neither a view nor a pair of operation and fate that is new.
    """

    states: int
    views: int | None
    quiet_seconds: float | None

    def is_reached(self, ledger: Ledger) -> bool:
        """Whether there are enough."""
        return ledger.state_count >= self.states if self.views is None else ledger.view_count >= self.views

    def is_quiet(self, seconds: float) -> bool:
        """Whether nothing was new for too long."""
        return self.quiet_seconds is not None and seconds >= self.quiet_seconds


def search_on(ledger: Ledger, short: Sequence[Task], drawn: Iterator[Task], processes: int, goal: Goal) -> bool:
    """Do the tasks that were not done before: all short ones, then drawn ones until the goal is reached.

    Returns False at the first violation.
    """
    begun = told = new_at = time.perf_counter()
    before = ledger.state_count
    left = sum(not ledger.is_done(str(each)) for each in short)
    is_exhaustive = True
    tasks = (each for each in chain(short, drawn) if not ledger.is_done(str(each)))
    try:
        for task, tally, seconds in all_done(tasks, processes):
            is_new = ledger.note(str(task), tally, seconds)
            now = time.perf_counter()
            new_at = now if is_new else new_at
            left -= task.seed is None
            if now - told > REPORT_SECONDS:
                told = now
                tell(ledger, begun, before, left)
            is_exhaustive = is_exhaustive and task.seed is None
            if not is_exhaustive and (goal.is_reached(ledger) or goal.is_quiet(now - new_at)):
                break
    except FoundError as error:
        click.echo(f"violation after {ledger.state_count:,} states: {error}")
        return False
    tell(ledger, begun, before, left)
    if not goal.is_reached(ledger):
        click.echo(f"the last {goal.quiet_seconds:,.0f} s brought no new recovered view and no new operation and fate")
    return True


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
