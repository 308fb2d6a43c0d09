"""``python -m proof.bit_flips``: flips every bit of small queues, one at a time, and judges what comes of it."""

from __future__ import annotations

import click

from proof.bit_flips.oracle import Oracle
from proof.bit_flips.prepared_log import PreparedOracle, build_prepared
from proof.bit_flips.run import Flips, quiet
from proof.bit_flips.victim import build, build_merged
from proof.memory_limit import limit_memory
from proof.scoreboard import Run

MEMORY_BYTES = 512 * 2**20
"""Far more than a queue of a few KiB may take, and what is kept of all flips."""


@click.command()
@click.option("--every", default=1, show_default=True, help="Only every so many of the bits.")
@click.option("--first", default=0, show_default=True, help="Number of the first one: with --every to run it in parts.")
@click.option("--only", default="", help="Only files whose path contains this.")
def main(every: int, first: int, only: str) -> None:
    """Flip bits, print what was covered, and exit with 1 where a promise was broken."""
    run = Run("bit-flips")
    with quiet():
        flips = Flips(Oracle(build()), Oracle(build_merged()), PreparedOracle(build_prepared()))
        limit_memory(MEMORY_BYTES)
        flips.run(every=every, first=first, only=only)
    for line in flips.lines():
        print(line)
    run.record(flips.covered(), violations=len(flips.violations))
    raise SystemExit(1 if flips.violations else 0)


if __name__ == "__main__":
    main()
