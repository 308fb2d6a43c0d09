"""``python -m proof.second_model``: random histories of a real queue, judged by the second model."""

import logging
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import click

from proof import scoreboard
from proof.second_model.judge import STATES_MAX
from proof.second_model.runs import Run, judged_history

#: So many histories are one task of a process.
TASK_HISTORIES = 5


def silent() -> None:
    """Have recoveries say nothing: a failure would drown in it."""
    logging.getLogger("holdfast").setLevel(logging.ERROR)


def judged(calls: int, seed: int) -> tuple[int, Run]:
    """Judge one history."""
    return seed, judged_history(seed, calls)


@click.command()
@click.option("--histories", default=3000, show_default=True, help="How many.")
@click.option("--seed", default=0, show_default=True, help="That of the first; the others follow.")
@click.option("--calls", default=120, show_default=True, help="Steps of each.")
@click.option("--processes", default=os.cpu_count() or 1, show_default="one for each core", type=click.IntRange(1))
def main(histories: int, seed: int, calls: int, processes: int) -> None:
    """Judge histories; the first one that the documentation does not allow is printed whole."""
    run_of_all, began = scoreboard.Run("second-model"), time.monotonic()
    call_count, crash_count, cut_count, disagreements = 0, 0, 0, 0
    with ProcessPoolExecutor(processes, initializer=silent) as pool:
        seeds = range(seed, seed + histories)
        for number, run in pool.map(partial(judged, calls), seeds, chunksize=TASK_HISTORIES):
            call_count += run.call_count
            crash_count += run.crash_count
            cut_count += run.was_cut
            if run.trace is not None:
                disagreements += 1
                click.echo(f"seed {number}: {run.trace if disagreements == 1 else run.verdict}")
    seconds = time.monotonic() - began
    click.echo(f"{histories:,} histories, seeds {seed} to {seed + histories - 1}; {crash_count:,} crashes")
    click.echo(f"{call_count:,} calls judged in {seconds:.0f} s, {call_count / seconds:,.0f} a second")
    click.echo(f"{cut_count:,} histories were ended early: more than {STATES_MAX} states were possible")
    click.echo(f"{disagreements} disagreements: {'FAILED' if disagreements else 'ok'}")
    covered = {"histories": histories, "calls": call_count, "crashes": crash_count, "ended early": cut_count}
    run_of_all.record(covered, violations=disagreements)
    sys.exit(1 if disagreements else 0)


if __name__ == "__main__":
    main()
