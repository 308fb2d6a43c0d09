"""The power goes, round after round, on a file system of its own: a kernel-level cut at a random moment.

``python -m proof.power_cuts --cuts 1000 --seed 1``, as root: children work on a queue on a loop-mounted ext4, in each
of four shapes: one thread, a thread that puts and one that takes, a process each, and eight threads that put beside
four that take. At a random moment ``EXT4_IOC_SHUTDOWN`` stops that file system, they are killed, it is unmounted and
mounted again, and the next child opens the queue and says what it finds. ``real_processes.ledger`` judges that: what
was acknowledged under ``every_commit`` is there, nothing comes again after a durable acknowledgement, no aborted
batch is back, and under the other policies what is left is a run without a hole that holds all that was flushed.

Beside the queue the children append to a file that they never sync: what that loses shows that a cut loses data.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

import click

from proof.real_processes.crew import ACKNOWLEDGES, SHAPES, WORK, Crew, FailedError
from proof.real_processes.ledger import Ledger, excuses
from proof.real_processes.steps import ViolationError
from proof.real_processes.workplace import SKIPPED, workplace
from proof.scoreboard import Run
from support.storages.loop_disk import (
    KEEPS_ALL,
    KEEPS_JOURNAL,
    LOSES_JOURNAL,
    LoopDisk,
    LoopDiskError,
    cannot_be_cut,
    loop_disk,
)

POLICIES = ["every_commit"] * 7 + ["every_10", "never", "never"]
CUTS = [LOSES_JOURNAL] * 8 + [KEEPS_JOURNAL, KEEPS_ALL]
WORK_SECONDS_MAX = 0.04
AFTERLIFE_SECONDS_MAX = 0.004
MESSAGE_BYTES = 8  # of the control


@dataclass
class Tally:
    """What a run has covered.

    Attributes
    ----------
    cuts : Counter of str
        Cuts, by shape.
    under_every_commit, while_opening : int
        How many of them under ``every_commit``, and how many before the queue was open.
    loose_count, loose_lost_count : int
        Messages that the control was told, and how many of them a cut took.
    ledgers : dict of Ledger
        By shape.
    """

    cuts: Counter[str] = field(default_factory=Counter)
    under_every_commit: int = 0
    while_opening: int = 0
    loose_count: int = 0
    loose_lost_count: int = 0
    ledgers: dict[str, Ledger] = field(default_factory=dict)

    def covered(self) -> dict[str, int | str]:
        """Return its figures."""
        return {
            "cuts": self.cuts.total(),
            "of them under `every_commit`": self.under_every_commit,
            "puts and acknowledgements acknowledged": self._sum("acknowledged_count"),
            **{
                WORK[shape]: f"{self.cuts[shape]:,} cuts, {ledger.acknowledged_count:,} acknowledged"
                for shape, ledger in self.ledgers.items()
            },
            **excuses(self.ledgers.values()),
            "messages that a control without syncs lost": f"{self.loose_lost_count:,} of {self.loose_count:,}",
        }

    def text(self) -> str:
        """Return it as one line."""
        puts, finished, acknowledged, dropped, late = map(
            self._sum, ("put_count", "finished_count", "acknowledged_count", "dropped_count", "late_lost_count")
        )
        return (
            f"{self.cuts.total()} cuts ({self.under_every_commit} under every_commit, {self.while_opening} while a "
            f"queue was opened), {puts} messages put, {finished} finished, {acknowledged} puts and acknowledgements "
            f"acknowledged before the cut; lost: {dropped} of those that other policies do not sync, and {late} calls "
            "to which the kernel said in the moment of the cut that all is well"
        )

    def _sum(self, name: str) -> int:
        return sum(getattr(ledger, name) for ledger in self.ledgers.values())


def _round(crew: Crew, disk: LoopDisk, choice: random.Random, tally: Tally) -> None:
    """Let children work, cut the power and kill them, in either order; mount the disk again, and judge."""
    policy = choice.choice(POLICIES)
    crew.start(policy)
    children = crew.present()
    is_early = choice.random() < 0.1
    if not is_early:
        for child in children:
            child.wait_for(*ACKNOWLEDGES)
    time.sleep(choice.uniform(0, WORK_SECONDS_MAX))
    if choice.random() < 0.2:
        for child in children:
            child.kill()
    leaves = choice.choice(CUTS)
    for child in children:
        child.mark()  # what is acknowledged from here on comes too late: some syncs still say that all is well
    disk.cut(leaves)
    crew.said.append(["power", str(leaves)])
    time.sleep(choice.uniform(0, AFTERLIFE_SECONDS_MAX))
    for child in children:
        child.kill()
    disk.unmount()
    disk.mount()
    crew.judge()
    crew.ledger.lose_power(keeps_all=policy == "every_commit" or leaves == KEEPS_ALL)
    tally.cuts[crew.shape] += 1
    tally.under_every_commit += policy == "every_commit"
    tally.while_opening += is_early
    if leaves == LOSES_JOURNAL:
        _count_loose(crew, tally)


def _count_loose(crew: Crew, tally: Tally) -> None:
    """Count what a cut took of the control, which begins anew each round."""
    assert crew.loose is not None
    told = sum(_loose_bytes(said) for said in crew.said_by_each()) // MESSAGE_BYTES
    left = crew.loose.read_bytes().count(b"message\n") if crew.loose.exists() else 0
    tally.loose_count += told
    tally.loose_lost_count += max(0, told - left)


def _loose_bytes(said: list[list[str]]) -> int:
    """Return how much a child had appended to the control before the cut."""
    before = said[: said.index(["cut"])] if ["cut"] in said else said
    return max((int(line[1]) for line in before if line[0] == "n"), default=0)


def cut_again_and_again(disk: LoopDisk, *, cuts: int, seed: int, shapes: tuple[str, ...] = SHAPES) -> Tally:
    """Cut the power so many times for each shape, in turn; raises FailedError where a promise was broken."""
    choice, tally = random.Random(seed), Tally()
    crews = [Crew(disk.root / shape, shape, choice, may_lose_disk=True, loose=disk.root / "loose") for shape in shapes]
    tally.ledgers = {crew.shape: crew.ledger for crew in crews}
    try:
        for crew in crews:
            crew.look()
        for crew in crews * cuts:
            (disk.root / "loose").unlink(missing_ok=True)
            _round(crew, disk, choice, tally)
        for crew in crews:
            crew.look()
    except ViolationError as violation:
        where = f"seed {seed}, shape {crew.shape}, after {tally.cuts.total()} cuts"
        raise FailedError(violation, where, crew) from None
    finally:
        for crew in crews:
            crew.stop()
    return tally


@click.command()
@click.option("--cuts", default=1000, show_default=True, help="How often the power goes, for each shape.")
@click.option("--seed", default=20240521, show_default=True)
@click.option(
    "--shape", "shapes", type=click.Choice(SHAPES), multiple=True, help="Which processes and threads there are."
)
@click.option("--on-disk", is_flag=True, help="Keep the files where temporary files go, and not in memory.")
def main(cuts: int, seed: int, shapes: tuple[str, ...], on_disk: bool) -> None:
    """Cut the power under a queue, and see whether anything that was acknowledged was lost."""
    run, started = Run("power-cuts"), time.monotonic()
    with workplace(on_disk) as place:
        try:
            with loop_disk(place) as disk:
                reason = cannot_be_cut(disk)
                if reason is not None:
                    raise LoopDiskError(reason)
                tally = cut_again_and_again(disk, cuts=cuts, seed=seed, shapes=shapes or SHAPES)
        except LoopDiskError as error:
            click.echo(f"power cuts: skipped, nothing was tested: {error}")
            sys.exit(SKIPPED)
        except FailedError as failure:
            click.echo(f"power cuts: FAILED\n{failure}")
            run.record({}, violations=1)
            sys.exit(1)
    seconds = time.monotonic() - started
    click.echo(f"power cuts: ext4, seed {seed}, {tally.text()}")
    for shape, ledger in tally.ledgers.items():
        done = (
            f"{tally.cuts[shape]} cuts, {ledger.acknowledged_count} puts and acknowledgements acknowledged before them"
        )
        click.echo(f"power cuts: {WORK[shape]}: {done}")
    click.echo("power cuts: " + ", ".join(f"{count} {what}" for what, count in excuses(tally.ledgers.values()).items()))
    click.echo(
        f"power cuts: control: of {tally.loose_count} messages appended without a sync {tally.loose_lost_count} lost"
    )
    click.echo(
        f"power cuts: {seconds:.0f} s, {tally.cuts.total() / seconds:.1f} cuts/s; other file systems were not tested"
    )
    if tally.loose_count and not tally.loose_lost_count:
        click.echo("power cuts: FAILED: the cuts took nothing from the control, so they prove nothing")
        sys.exit(1)
    click.echo(
        "power cuts: ok: 0 acknowledged lost, 0 doubled after a durable acknowledgement, 0 aborted that came back"
    )
    run.record(tally.covered(), violations=0)


if __name__ == "__main__":
    main()
