"""``python -m proof.successions --rounds 1000 --seed 1``: kill and stop the owners of shared queues."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

import click

from proof.real_processes.workplace import workplace
from proof.scoreboard import Run
from proof.successions.reign import BrokenError, Plan, Reign
from proof.successions.worker import journals_of


@click.command()
@click.option("--rounds", default=1000, show_default=True, help="How many processes are killed.")
@click.option("--seed", default=20240521, show_default=True)
@click.option("--processes", default=8, show_default=True, help="How many work at once.")
@click.option("--queues", default=2, show_default=True, help="How many queues they share.")
@click.option("--servers", default=1, show_default=True, help="How many processes only own a queue, beside those.")
@click.option("--lease-seconds", default=2.0, show_default=True, help="Of each message in hand.")
@click.option("--wedged-seconds", default=60.0, show_default=True, help="Who does nothing for so long is wedged.")
@click.option("--on-disk", is_flag=True, help="Keep the files where temporary files go, and not in memory.")
@click.option("--keep", type=click.Path(path_type=Path), help="A new directory for the journals of a run that fails.")
def main(
    rounds: int,
    seed: int,
    processes: int,
    queues: int,
    servers: int,
    lease_seconds: float,
    wedged_seconds: float,
    on_disk: bool,
    keep: Path | None,
) -> None:
    """Kill and stop owners and clients, and see whether anything was lost, doubled or wedged."""
    run, began = Run("successions"), time.monotonic()
    plan = Plan(rounds, seed, processes, queues, servers, lease_seconds, wedged_seconds)
    with workplace(on_disk) as place:
        try:
            tally = Reign(place, plan).run()
        except BrokenError as broken:
            click.echo(f"successions: FAILED\n{broken}")
            if keep is not None:
                shutil.copytree(journals_of(place), keep)
            run.record({}, violations=1)
            sys.exit(1)
    covered = tally.covered()
    click.echo(f"successions: seed {seed}, {', '.join(f'{name}: {value}' for name, value in covered.items())}")
    click.echo(f"successions: {time.monotonic() - began:.0f} s")
    click.echo("successions: ok: 0 lost, 0 doubled, 0 again after their end, 0 in two hands, 0 halves, 0 wedged")
    run.record(covered, violations=0)


if __name__ == "__main__":
    main()
