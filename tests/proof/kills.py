"""SIGKILL of producers and of consumers at random moments, round after round on queues that live on.

``python -m proof.kills --rounds 1000 --seed 1``: children of a warm parent work for up to 60 ms, are killed, and the
next one says what it finds. ``real_processes.ledger`` judges that: under every flush policy all that was acknowledged
is there, nothing that was acknowledged comes again, and no half of anything.
"""

from __future__ import annotations

import random
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import click

from proof.real_processes.crew import ACKNOWLEDGES, SHAPES, Crew, FailedError
from proof.real_processes.hand import POLICIES
from proof.real_processes.ledger import Ledger, excuses
from proof.real_processes.reports import Reporter
from proof.real_processes.steps import ViolationError
from proof.real_processes.workplace import workplace
from proof.scoreboard import Run

WORK_SECONDS_MIN, WORK_SECONDS_MAX = 0.001, 0.06
OPENING_SECONDS_MAX = 0.01


@dataclass
class Tally:
    """What a run has covered."""

    kills: int = 0
    while_opening: int = 0
    ledgers: list[Ledger] = field(default_factory=list)

    def covered(self) -> dict[str, int | str]:
        """Return its figures."""
        return {
            "kills": self.kills,
            "of them while a queue was opened": self.while_opening,
            "messages put": sum(ledger.put_count for ledger in self.ledgers),
            "finished": sum(ledger.finished_count for ledger in self.ledgers),
            "calls returned": sum(ledger.returned_count for ledger in self.ledgers),
            "puts and acknowledgements acknowledged": sum(ledger.acknowledged_count for ledger in self.ledgers),
            **excuses(self.ledgers),
        }

    def text(self) -> str:
        """Return it as one line."""
        return ", ".join(f"{count} {what}" for what, count in self.covered().items())


def _let_it_work(child: Reporter, choice: random.Random, tally: Tally) -> None:
    """Wait until a child has acknowledged something, and a random time longer; sometimes not even that."""
    if choice.random() < 0.1:
        time.sleep(choice.uniform(0, OPENING_SECONDS_MAX))
        tally.while_opening += 1
        return
    child.wait_for(*ACKNOWLEDGES)
    time.sleep(choice.choice([WORK_SECONDS_MIN, WORK_SECONDS_MAX]) * choice.random())


def _round(crew: Crew, choice: random.Random, tally: Tally) -> None:
    """Let children work and kill them, in any order; now and then one is replaced while the other continues."""
    crew.start(choice.choice(list(POLICIES)))
    for _ in range(choice.randint(0, 4) if crew.shape == "two" else 0):
        _let_it_work(crew.replace(), choice, tally)
    for child in crew.present():
        _let_it_work(child, choice, tally)
        child.kill()
    tally.kills += crew.judge()


def kill_again_and_again(place: Path, *, rounds: int, seed: int, shapes: tuple[str, ...] = SHAPES) -> Tally:
    """Kill so many processes, in turn on one queue for each shape; raises FailedError where a promise was broken."""
    choice, tally = random.Random(seed), Tally()
    crews = [Crew(place / shape, shape, choice) for shape in shapes]
    tally.ledgers = [crew.ledger for crew in crews]
    try:
        for crew in crews:
            crew.look()
        while tally.kills < rounds:
            for crew in crews:
                _round(crew, choice, tally)
        for crew in crews:
            crew.look()
    except ViolationError as violation:
        where = f"seed {seed}, shape {crew.shape}, after {tally.kills} kills"
        raise FailedError(violation, where, crew) from None
    finally:
        for crew in crews:
            crew.stop()
    return tally


@click.command()
@click.option("--rounds", default=1000, show_default=True, help="How many processes are killed, at least.")
@click.option("--seed", default=20240521, show_default=True)
@click.option(
    "--shape", "shapes", type=click.Choice(SHAPES), multiple=True, help="Which processes and threads there are."
)
@click.option("--on-disk", is_flag=True, help="Keep the files where temporary files go, and not in memory.")
def main(rounds: int, seed: int, shapes: tuple[str, ...], on_disk: bool) -> None:
    """Kill producers and consumers, and see whether anything was lost or doubled."""
    run, started = Run("kills"), time.monotonic()
    with workplace(on_disk) as place:
        try:
            tally = kill_again_and_again(place, rounds=rounds, seed=seed, shapes=shapes or SHAPES)
        except FailedError as failure:
            click.echo(f"kills: FAILED\n{failure}")
            run.record({}, violations=1)
            sys.exit(1)
    seconds = time.monotonic() - started
    click.echo(f"kills: seed {seed}, {tally.text()}")
    click.echo(f"kills: {seconds:.0f} s, {tally.kills / seconds:.1f} rounds/s")
    click.echo("kills: ok: 0 lost, 0 doubled after their acknowledgement, 0 halves, 0 aborted that came back")
    run.record(tally.covered(), violations=0)


if __name__ == "__main__":
    main()
