"""``python -m proof.owner_deaths``: random histories of clients, whose owner dies behind each storage operation."""

import logging
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import click

from proof import scoreboard
from proof.owner_deaths.history import Tally, judged_history

Judge = Callable[..., tuple[Any, str]]
"""Judges the history of a seed with so many ``rounds``; returns its counts, and the promise that was broken."""


def silent() -> None:
    """Have recoveries say nothing: a failure would drown in it."""
    logging.getLogger("holdfast").setLevel(logging.CRITICAL)


def programme(name: str, judge: Judge, tally_type: Callable[[], Any], histories: int, rounds: int) -> click.Command:
    """Return the command of a programme, with how many histories and rounds it has by default."""

    @click.command()
    @click.option("--histories", default=histories, show_default=True, help="How many.")
    @click.option("--seed", default=0, show_default=True, help="That of the first; the others follow.")
    @click.option("--rounds", default=rounds, show_default=True, help="Of each.")
    @click.option("--processes", default=os.cpu_count() or 1, show_default="one for each core", type=click.IntRange(1))
    def main(histories: int, seed: int, rounds: int, processes: int) -> None:
        """Judge histories; each broken promise is printed with the seed of its history."""
        run, began, tally, broken = scoreboard.Run(name), time.monotonic(), tally_type(), 0
        seeds = range(seed, seed + histories)
        with ProcessPoolExecutor(processes, initializer=silent) as pool:
            for number, (counts, verdict) in zip(seeds, pool.map(partial(judge, rounds=rounds), seeds), strict=True):
                tally.add(counts)
                if verdict:
                    broken += 1
                    click.echo(f"seed {number}, {verdict}")
                sys.stdout.flush()
        seconds = time.monotonic() - began
        click.echo(f"{histories:,} histories, seeds {seed} to {seed + histories - 1}, in {seconds:.0f} s")
        click.echo(", ".join(f"{count:,} {key.replace('_', ' ')}" for key, count in vars(tally).items()))
        click.echo(f"{broken} broken promises: {'FAILED' if broken else 'ok'}")
        run.record({"histories": histories, **vars(tally)}, violations=broken)
        sys.exit(1 if broken else 0)

    return main


main = programme("owner-deaths", judged_history, Tally, 200, 12)

if __name__ == "__main__":
    main()
