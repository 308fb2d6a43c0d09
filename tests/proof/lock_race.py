"""Sixteen processes race for one lock, round after round: exactly one wins each time, and the others learn who.

``python -m proof.lock_race --rounds 1000``: the processes are started once and wait at a pipe for each start. Who wins
holds on until all have answered. In some rounds the winner is killed instead of closing, and the next race begins at
once; the killed one is replaced behind that.
"""

from __future__ import annotations

import os
import random
import select
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import click

from holdfast import PersistentQueue, QueueLockedError
from proof.real_processes.workplace import workplace
from proof.scoreboard import Run
from support.processes.children import Child

RACERS = 16
MODES = ("produce", "consume")
KILL_SHARE = 0.25
SECONDS_MAX = 60.0


class RaceError(AssertionError):
    """A race had another outcome than one winner."""


class Racer:
    """A process that opens the queue whenever it is told to, says how that ended, and closes it when it is told to."""

    def __init__(self, path: Path, others: list[Racer]) -> None:
        told, self._told = os.pipe()
        self.answers, answer = os.pipe()
        self._text = b""
        inherited = [fd for other in others for fd in (other._told, other.answers)]
        self._child = Child(lambda: _race(path, told, answer, [*inherited, self._told, self.answers]))
        os.close(told)
        os.close(answer)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._child.pid

    def tell(self, word: bytes) -> None:
        """Tell it to open (``p`` or ``c``: which side) or to close (``x``)."""
        os.write(self._told, word)

    def answered(self) -> list[str] | None:
        """Read what there is; return the answer once it is whole."""
        data = os.read(self.answers, 4096)
        if not data:
            raise RaceError(f"process {self.pid} has ended in the middle of a race: {self._child.wait()}")
        self._text += data
        if not self._text.endswith(b"\n"):
            return None
        line, self._text = self._text.decode().split(), b""
        return line

    def kill(self) -> None:
        """Kill it, and wait until it has ended."""
        self._child.kill()
        self._child.wait()
        for fd in (self._told, self.answers):
            os.close(fd)


def _race(path: Path, told: int, answer: int, inherited: list[int]) -> None:
    for fd in inherited:
        os.close(fd)
    queue: PersistentQueue | None = None
    while word := os.read(told, 1):
        if word == b"x":
            if queue is not None:
                queue.close()
            queue = None
            said = "closed"
        else:
            try:
                queue = PersistentQueue(path, mode="produce" if word == b"p" else "consume")
                said = f"won {os.getpid()}"
            except QueueLockedError as error:
                said = f"lost {error.pid}"
            except Exception as error:
                said = f"failed {error!r}".replace("\n", " ")
        os.write(answer, f"{said}\n".encode())


@dataclass
class Tally:
    """How many races there were, and how many of their winners were killed."""

    races: int = 0
    kills: int = 0


def race(path: Path, *, rounds: int, seed: int) -> Tally:
    """Hold so many races for one queue, in turn for its two sides; raises RaceError."""
    Child(lambda: PersistentQueue(path).close()).wait()  # not here: this process has no queue, and no threads
    choice, tally, racers = random.Random(seed), Tally(), list[Racer]()
    try:
        while tally.races < rounds:
            while len(racers) < RACERS:
                racers.append(Racer(path, racers))
            winner = _one_race(racers, MODES[tally.races % len(MODES)], choice)
            tally.races += 1
            if choice.random() < KILL_SHARE and tally.races < rounds:
                racers.remove(winner)
                winner.kill()
                tally.kills += 1
                winner = _one_race(racers, MODES[(tally.races - 1) % len(MODES)], choice)
                tally.races += 1
            winner.tell(b"x")
            _answers([winner])
    finally:
        for racer in racers:
            racer.kill()
    return tally


def _one_race(racers: list[Racer], mode: str, choice: random.Random) -> Racer:
    """Have all of them open one side at once; return who has it."""
    for racer in choice.sample(racers, len(racers)):
        racer.tell(mode[:1].encode())
    answers = _answers(racers)
    winners = [racer for racer, answer in answers.items() if answer[0] == "won"]
    if len(winners) != 1:
        raise RaceError(f"{len(winners)} winners of {mode}: {sorted(map(' '.join, answers.values()))}")
    wrong = [
        answer
        for answer in answers.values()
        if answer not in (["won", str(winners[0].pid)], ["lost", str(winners[0].pid)])
    ]
    if wrong:
        raise RaceError(f"process {winners[0].pid} has won, and others were told: {wrong}")
    return winners[0]


def _answers(racers: list[Racer]) -> dict[Racer, list[str]]:
    """Wait until all have answered."""
    answers: dict[Racer, list[str]] = {}
    by_pipe = {racer.answers: racer for racer in racers}
    while len(answers) < len(racers):
        ready, _, _ = select.select([pipe for pipe in by_pipe if by_pipe[pipe] not in answers], [], [], SECONDS_MAX)
        if not ready:
            raise RaceError(f"{len(racers) - len(answers)} processes have not answered within {SECONDS_MAX:g} s")
        for pipe in ready:
            answer = by_pipe[pipe].answered()
            if answer is not None:
                answers[by_pipe[pipe]] = answer
    return answers


@click.command()
@click.option("--rounds", default=1000, show_default=True)
@click.option("--seed", default=20240521, show_default=True)
@click.option("--on-disk", is_flag=True, help="Keep the files where temporary files go, and not in memory.")
def main(rounds: int, seed: int, on_disk: bool) -> None:
    """Have sixteen processes race for one lock, and see whether exactly one wins each time."""
    run, started = Run("lock-race"), time.monotonic()
    with workplace(on_disk) as place:
        try:
            tally = race(place / "queue", rounds=rounds, seed=seed)
        except RaceError as error:
            click.echo(f"lock race: FAILED: seed {seed}: {error}")
            run.record({}, violations=1)
            sys.exit(1)
    seconds = time.monotonic() - started
    click.echo(f"lock race: {tally.races} races of {RACERS} processes, write side and read side in turn")
    click.echo(f"lock race: {tally.kills} winners killed, each followed by a race at once; {seconds:.0f} s")
    click.echo("lock race: ok: one winner each, and all others were told its process id")
    run.record({"races": tally.races, "winners killed": tally.kills}, violations=0)


if __name__ == "__main__":
    main()
