"""Syncs that fail for real: a file system larger than the medium below it, whose writes are lost when that is full.

``python -m proof.failing_sync --rounds 100 --seed 1``, as root. Each round makes a small tmpfs, on it the sparse image
of a larger ext4, fills most of what is left, and lets a queue work there until its disk fails: writes go well, as there
is room, and the sync says that they were lost. Then the file system is unmounted, the medium gets room, and after
mounting it again a child says what is in the queue: what the medium has. All that was acknowledged has to be among it:
a put that returned is there. A call that returned beside the sync that failed is not judged, but counted if its work is
gone: the kernel may have told it that all is well.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import click

from proof.real_processes.crew import Crew, FailedError
from proof.real_processes.steps import ViolationError
from proof.real_processes.workplace import SKIPPED, workplace
from proof.scoreboard import Run
from support.storages.loop_disk import LoopDiskError, loop_disk

SHAPES = ("one", "threads", "crowd")
MEDIUM_BYTES = 8 * 2**20
ROOM_BYTES_MIN, ROOM_BYTES_MAX = 64 * 2**10, 2 * 2**20
"""What is left for the file system, whose journal alone takes more."""
GROWN_BYTES = 96 * 2**20
BACKLOG_MAX = 10**6
SECONDS_MAX = 30.0


@dataclass
class Tally:
    """What a run has covered: which errors ended the rounds, and how many calls had returned before.

    ``late_lost``: calls that returned beside the sync that failed, and whose work is gone.
    """

    rounds: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    returned: int = 0
    acknowledged: int = 0
    late_lost: int = 0

    def text(self) -> str:
        """Return it as one line."""
        errors = ", ".join(f"{count} {name}" for name, count in sorted(self.errors.items()))
        return (
            f"{self.rounds} disks failed ({errors}), {self.returned} calls had returned, "
            f"{self.acknowledged} puts and acknowledgements were acknowledged; lost: {self.late_lost} calls to which "
            "the kernel said in the moment of the failure that all is well"
        )


@contextmanager
def _medium(place: Path) -> Iterator[Path]:
    """Mount a small tmpfs."""
    place.mkdir()
    _mount("-t", "tmpfs", "-o", f"size={MEDIUM_BYTES}", "tmpfs", str(place))
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def _fill(medium: Path, room_bytes: int) -> None:
    """Leave no more room than this."""
    status = os.statvfs(medium)
    (medium / "filler").write_bytes(bytes(max(0, status.f_bavail * status.f_frsize - room_bytes)))


def _mount(*arguments: str) -> None:
    try:
        done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise LoopDiskError("mount is not installed") from error
    if done.returncode:
        raise LoopDiskError(f"mount: {done.stderr.strip()}")


def fail_once(place: Path, *, shape: str, choice: random.Random, tally: Tally) -> None:
    """Let a queue grow until its disk fails, and look at what is left; raises ViolationError, LoopDiskError."""
    place.mkdir()
    room = choice.randrange(ROOM_BYTES_MIN, ROOM_BYTES_MAX)
    with _medium(place / "medium") as medium, loop_disk(place, image_in=medium, one_page_each=True) as disk:
        _fill(medium, room)
        queue = disk.root / "queue"
        crew = Crew(queue, shape, choice, may_lose_disk=True, backlog_max=BACKLOG_MAX, syncs_may_fail=True)
        try:
            crew.start("every_commit")
            crew.present()[0].wait_for("e", "X", seconds=SECONDS_MAX)
            crew.judge()
            errors = [line[1] for line in crew.said if line[0] == "e"]
            if not errors:
                raise LoopDiskError(f"the disk did not fail within {SECONDS_MAX:g} s")
            disk.unmount()
            _mount("-o", f"remount,size={GROWN_BYTES}", str(medium))
            disk.mount()
            crew.look()
        except ViolationError as violation:
            raise FailedError(violation, f"shape {shape}, room for {room} bytes", crew) from None
        finally:
            crew.stop()
        tally.rounds += 1
        tally.errors.update(errors)
        tally.returned += crew.ledger.returned_count
        tally.acknowledged += crew.ledger.acknowledged_count
        tally.late_lost += crew.ledger.late_lost_count


def fail_again_and_again(place: Path, *, rounds: int, seed: int) -> Tally:
    """Have so many disks fail; raises FailedError where a promise was broken, LoopDiskError where there is no disk."""
    choice, tally = random.Random(seed), Tally()
    while tally.rounds < rounds:
        fail_once(place / str(tally.rounds), shape=SHAPES[tally.rounds % len(SHAPES)], choice=choice, tally=tally)
    return tally


@click.command()
@click.option("--rounds", default=100, show_default=True, help="How many disks fail.")
@click.option("--seed", default=20240521, show_default=True)
@click.option("--on-disk", is_flag=True, help="Keep the files where temporary files go, and not in memory.")
def main(rounds: int, seed: int, on_disk: bool) -> None:
    """Have disks fail under a queue, and see whether anything was acknowledged that they do not have."""
    run, started = Run("failing-sync"), time.monotonic()
    with workplace(on_disk) as place:
        try:
            tally = fail_again_and_again(place, rounds=rounds, seed=seed)
        except LoopDiskError as error:
            click.echo(f"failing sync: skipped, nothing was tested: {error}")
            sys.exit(SKIPPED)
        except FailedError as failure:
            click.echo(f"failing sync: FAILED: seed {seed}: {failure}")
            run.record({}, violations=1)
            sys.exit(1)
    click.echo(f"failing sync: ext4, seed {seed}, {tally.text()}")
    click.echo(f"failing sync: {time.monotonic() - started:.0f} s")
    click.echo("failing sync: ok: 0 false acknowledgements")
    run.record(
        {
            "disks failed": tally.rounds,
            "puts and acknowledgements acknowledged": tally.acknowledged,
            "lost calls that returned beside the sync that failed": tally.late_lost,
        },
        violations=0,
    )


if __name__ == "__main__":
    main()
