"""``python -m proof.faults``: runs the fault loop and prints what it covered, its rate and its verdict.

The operations are dealt into parts, always the same ones, and each part is a loop of its own: so what is covered does
not depend on how many processes there are.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial

import click

from proof.faults.in_recovery import Place
from proof.faults.kinds import FAULTS
from proof.faults.loop import OPERATIONS, FaultLoop, Row
from proof.scoreboard import Run

PART_COUNT = 8
QUICK_STRIDE = 9
SHOWN_MAX = 5


@dataclass(frozen=True)
class Choice:
    """Which cases are run: of which operations, of which names, one of how many, on how many disks in recovery."""

    operation: str
    case: str
    stride: int
    disks: int

    def has(self, operation: str) -> bool:
        """Whether any case of an operation may be run."""
        return self.operation in operation and (not self.case or self.case.startswith(operation))

    def chooses(self, name: str) -> bool:
        """Whether a case is run, or what leads to one that is."""
        return name.startswith(self.case) or self.case.startswith(name)


@dataclass
class Part:
    """What came of one part of the operations."""

    rows: list[Row] = field(default_factory=list)
    places: set[Place] = field(default_factory=set)
    seconds: float = 0.0


def run_part(choice: Choice, number: int) -> Part:
    """Run every eighth operation, with a loop of its own; print what came of each."""
    gc.freeze()
    gc.set_threshold(50_000)  # thousands of queues are opened and closed, and most of them go without its help
    loop = FaultLoop(
        stride=choice.stride, chooses=choice.chooses if choice.case else None, place_disks_max=choice.disks
    )
    rows = []
    for operation in OPERATIONS[number::PART_COUNT]:
        if choice.has(operation.name):
            rows.append(row := loop.run(operation))
            click.echo("\n".join((str(row), *map(str, row.findings[:SHOWN_MAX]))))
    return Part(rows, loop.places, loop.seconds)


def parts(choice: Choice, process_count: int) -> Iterator[Part]:
    """Run all parts in some processes, and yield each in its turn."""
    work = partial(run_part, choice)
    if process_count == 1:
        yield from map(work, range(PART_COUNT))
        return
    with ProcessPoolExecutor(process_count) as pool:
        yield from pool.map(work, range(PART_COUNT))


@click.command()
@click.option("--quick", is_flag=True, help="One case of nine, always the same ones.")
@click.option("--operation", "name", default="", help="Only operations whose names contain this.")
@click.option("--case", "case", default="", help="Only cases whose names begin so, as a violation prints them.")
@click.option(
    "--disks", default=1, show_default=True, help="On how many disks of a part each fault strikes in each place."
)
@click.option("--processes", default=os.cpu_count() or 1, show_default="one for each core", type=click.IntRange(1))
def main(name: str, case: str, disks: int, processes: int, *, quick: bool) -> None:
    """Let every storage call and every start of a thread fail, once and for ever, in operation and in recovery."""
    run, started = Run("faults"), time.perf_counter()
    total = Part()
    for part in parts(Choice(name, case, QUICK_STRIDE if quick else 1, disks), processes):
        total.rows += part.rows
        total.places |= part.places
        total.seconds += part.seconds
    tell(total, time.perf_counter() - started)
    run.record(covered(total), violations=sum(len(row.findings) for row in total.rows))
    sys.exit(any(row.findings for row in total.rows))


def covered(total: Part) -> dict[str, int | str]:
    """Return its figures."""
    rows = total.rows
    return {
        "cases in operation": sum(row.case_count for row in rows),
        "operations": len(rows),
        "cases in recovery": sum(row.recovery_count for row in rows),
        "places": len(total.places),
        "disks recovered": sum(row.disk_count for row in rows),
        "seconds of processor time": round(total.seconds),
    }


def tell(total: Part, seconds: float) -> None:
    """Print what was covered, the rate and the verdict."""
    rows = total.rows
    count = sum(row.case_count for row in rows)
    recoveries = sum(row.recovery_count for row in rows)
    disk_count = sum(row.disk_count for row in rows)
    bad_count = sum(len(row.findings) for row in rows)
    click.echo(
        f"{len(rows)} operations, 3 flush policies, {len(FAULTS) // 2} faults, each once and for ever: {count:,} cases "
        f"in operation, {recoveries:,} in recovery ({len(total.places):,} places), {disk_count:,} disks recovered; "
        f"{seconds:.0f} s, {total.seconds:.0f} s of CPU, "
        f"{(count + recoveries) / max(total.seconds, 0.001):.0f} cases per CPU second"
    )
    click.echo(f"{bad_count} violations" if bad_count else "no violation")


if __name__ == "__main__":
    main()
