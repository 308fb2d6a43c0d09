"""Sixteen processes race for one lock, round after round: exactly one wins each time, and the others learn who.

``python -m proof.lock_race --rounds 1000``: the processes are started once and wait at a pipe for each start. Who wins
holds on until all have answered. In some rounds the winner is killed instead of closing, and the next race begins at
once; the killed one is replaced behind that.

In turn they open the queue in the mode "exclusive", and take the owner lock. The winner of that does not close between
two races: it holds on while the others begin to race. Then it removes all of ``.owner/``, and releases the lock of a
file that has no name by then. So some of the others have opened the file that was removed, and some the new one.
"""

from __future__ import annotations

import os
import random
import select
import shutil
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import click

from holdfast import PersistentQueue, QueueLockedError
from holdfast.persistence.filesystem.storage import OsStorage
from holdfast.persistence.ownership.owner_lock import OwnerLock, read_owner_note
from holdfast.persistence.ownership.places import owner_directory
from proof.real_processes.workplace import workplace
from proof.scoreboard import Run
from support.processes.children import Child

RACERS = 16
MODES = ("exclusive", "own")
NO_EPOCH = bytes(16)
LATER_TRIES = 3
LEAVES_SECONDS_MAX = 0.005
KILL_SHARE = 0.25
SECONDS_MAX = 60.0


class RaceError(AssertionError):
    """A race had another outcome than one winner."""


class Racer:
    """A process that takes a lock whenever it is told to, says how that ended, and releases it when it is told to."""

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
        """Tell it to open the queue (``e``) or take the owner lock (``o``), or to release it (``x``, ``r``).

        Behind ``o`` is the epoch of the owner before. ``r`` removes the directory of the owner, then releases.
        """
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
    held: PersistentQueue | OwnerLock | None = None
    while word := os.read(told, 1):
        try:
            if word in b"xr":
                _release(held, path, removes=word == b"r")
                held, said = None, "closed"
            elif word == b"o":
                held, said = _own(path, os.read(told, len(NO_EPOCH)))
            else:
                held = PersistentQueue(path, mode="exclusive")
                said = f"won {os.getpid()}"
        except QueueLockedError as error:
            said = f"lost {error.pid}"
        except Exception as error:
            said = f"failed {error!r}".replace("\n", " ")
        os.write(answer, f"{said}\n".encode())


def _release(held: PersistentQueue | OwnerLock | None, path: Path, *, removes: bool) -> None:
    if removes:
        with suppress(OSError):  # others make it again meanwhile
            shutil.rmtree(owner_directory(path))
    if isinstance(held, OwnerLock):
        held.release()
    elif held is not None:
        held.close()


def _own(path: Path, before: bytes) -> tuple[OwnerLock | None, str]:
    """Try for the owner lock until there is an owner of another epoch, and a few times more."""
    storage, pid, tries_left = OsStorage(), 0, LATER_TRIES
    deadline = time.monotonic() + SECONDS_MAX / 2
    while tries_left and time.monotonic() < deadline:
        lock = OwnerLock.try_take(storage, path)
        if lock is not None:
            return lock, f"won {os.getpid()}"
        note = read_owner_note(storage, path)
        if note is not None and note.epoch != before:
            pid, tries_left = note.pid, tries_left - 1
    return None, f"lost {pid}"


@dataclass
class Tally:
    """How many races there were, how many winners were killed, and how many removed the directory of the owner."""

    races: int = 0
    kills: int = 0
    removals: int = 0
    turns: int = 0


def race(path: Path, *, rounds: int, seed: int) -> Tally:
    """Hold so many races, in turn for an exclusive queue and the owner lock; raises RaceError."""
    Child(
        lambda: PersistentQueue(path, mode="exclusive").close()
    ).wait()  # not here: this process has no queue, and no threads
    choice, tally, racers = random.Random(seed), Tally(), list[Racer]()
    try:
        while tally.races < rounds:
            while len(racers) < RACERS:
                racers.append(Racer(path, racers))
            mode = MODES[tally.turns % len(MODES)]
            tally.turns += 1
            winner = _one_race(path, racers, mode, choice)
            tally.races += 1
            if choice.random() < KILL_SHARE and tally.races < rounds:
                racers.remove(winner)
                winner.kill()
                tally.kills += 1
                winner = _one_race(path, racers, mode, choice)
                tally.races += 1
            if mode == "own":
                winner = _one_race(path, racers, mode, choice, leaves=winner)
                tally.races += 1
                tally.removals += 1
            winner.tell(b"x")
            _answers([winner])
    finally:
        for racer in racers:
            racer.kill()
    return tally


def _one_race(
    path: Path, racers: list[Racer], mode: str, choice: random.Random, *, leaves: Racer | None = None
) -> Racer:
    """Have all of them try for one lock at once; return who has it. One may hold it still, and leaves meanwhile."""
    note = read_owner_note(OsStorage(), path)
    word = mode[:1].encode() + (b"" if mode != "own" else NO_EPOCH if note is None else note.epoch)
    others = [racer for racer in racers if racer is not leaves]
    for racer in choice.sample(others, len(others)):
        racer.tell(word)
    if leaves is not None:
        time.sleep(choice.random() * LEAVES_SECONDS_MAX)
        leaves.tell(b"r")
    answers = _answers(racers)
    if leaves is not None and answers.pop(leaves) != ["closed"]:
        raise RaceError(f"process {leaves.pid} has not released the lock")
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
    click.echo(f"lock race: {tally.races} races of {RACERS} processes: an exclusive queue and the owner lock in turn")
    click.echo(f"lock race: {tally.kills} winners killed, each followed by a race at once; {seconds:.0f} s")
    click.echo(f"lock race: {tally.removals} owners removed their directory and left in the middle of a race")
    click.echo("lock race: ok: one winner each, and all others were told its process id")
    run.record(
        {"races": tally.races, "winners killed": tally.kills, "directories removed": tally.removals}, violations=0
    )


if __name__ == "__main__":
    main()
