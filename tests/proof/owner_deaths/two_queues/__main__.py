"""``python -m proof.owner_deaths.two_queues``: transactions over two queues, each process of which dies everywhere."""

import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import click

from proof import scoreboard
from proof.owner_deaths.__main__ import silent
from proof.owner_deaths.two_queues.history import ROUNDS, Tally, judged_history


def judged(rounds: int, seed: int) -> tuple[int, Tally, str]:
    """Judge one history."""
    return seed, *judged_history(seed, rounds)


@click.command()
@click.option("--histories", default=100, show_default=True, help="How many.")
@click.option("--seed", default=0, show_default=True, help="That of the first; the others follow.")
@click.option("--rounds", default=ROUNDS, show_default=True, help="Of each.")
@click.option("--processes", default=os.cpu_count() or 1, show_default="one for each core", type=click.IntRange(1))
def main(histories: int, seed: int, rounds: int, processes: int) -> None:
    """Judge histories; each broken promise is printed with the seed of its history and what was killed."""
    run, began, tally, broken = scoreboard.Run("owner-deaths-of-two"), time.monotonic(), Tally(), 0
    with ProcessPoolExecutor(processes, initializer=silent) as pool:
        for number, counts, verdict in pool.map(partial(judged, rounds), range(seed, seed + histories)):
            tally.add(counts)
            if verdict:
                broken += 1
                click.echo(f"seed {number}, {verdict}")
            sys.stdout.flush()
    seconds = time.monotonic() - began
    click.echo(f"{histories:,} histories, seeds {seed} to {seed + histories - 1}, in {seconds:.0f} s")
    click.echo(", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in vars(tally).items()))
    click.echo(f"{broken} broken promises: {'FAILED' if broken else 'ok'}")
    run.record({"histories": histories, **vars(tally)}, violations=broken)
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
