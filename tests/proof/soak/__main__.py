"""Soaks a queue and judges whether it stays level: ``python -m proof.soak --minutes 10``."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import click

from proof.scoreboard import Run
from proof.soak.flatness import Bound, Course, allowed, broken, course_of
from proof.soak.samples import Sample, can_look
from proof.soak.soaking import Plan, Result, soak

MIB = 2**20
_MINUTE = 60.0
_VIOLATIONS_MAX = 20

_HEADINGS = ("minute", "rss MiB", "open files", "threads", "data MiB", "files", "progress KiB", "prepared")
_ROW = "{:>6} {:>13} {:>10} {:>8} {:>9} {:>6} {:>13} {:>9}"


def row(name: str, samples: Sequence[Sample]) -> str:
    """Return a line of the table: medians of these samples; two figures are those of the two processes."""

    def middle(figure: str, unit: float = 1) -> float:
        return float(median(getattr(each, figure) / unit for each in samples))

    return _ROW.format(
        name,
        f"{middle('owner_rss_bytes', MIB):.1f} {middle('second_rss_bytes', MIB):.1f}",
        f"{middle('owner_files'):.0f} {middle('second_files'):.0f}",
        f"{middle('owner_threads'):.0f} {middle('second_threads'):.0f}",
        f"{middle('data_bytes', MIB):.1f}",
        f"{middle('data_count'):.0f}",
        f"{middle('position_bytes', 1024):.0f}",
        f"{middle('prepared_count'):.0f}",
    )


@dataclass(frozen=True, slots=True)
class Judged:
    """A figure that is judged: its name, where it stands in a sample, its unit, and what it may do."""

    name: str
    figure: str
    unit: float
    bound: Bound


def judged(plan: Plan) -> list[Judged]:
    """Return what is judged, and how much it may move."""
    rss, one = Bound(growth_max=4.0, growth_share_max=0.05), Bound(1)
    return [
        Judged("rss, owner (MiB)", "owner_rss_bytes", MIB, rss),
        Judged("rss, second process (MiB)", "second_rss_bytes", MIB, rss),
        Judged("python blocks, owner (1000)", "block_count", 1000, Bound(8.0, 0.05)),
        Judged("open files, owner", "owner_files", 1, one),
        Judged("open files, second process", "second_files", 1, one),
        Judged("threads, owner", "owner_threads", 1, one),
        Judged("threads, second process", "second_threads", 1, one),
        Judged("data files (MiB)", "data_bytes", MIB, Bound(6.0, ceiling=plan.data_bytes_max / MIB)),
        Judged("position files (KiB)", "position_bytes", 1024, Bound(64)),
        Judged("position files", "position_count", 1, one),
        Judged("files in prepared/", "prepared_count", 1, Bound(2)),
        Judged("other files", "other_count", 1, Bound(4)),
    ]


def verdict_line(name: str, course: Course, bound: Bound) -> str:
    """Return how a figure did beside its bound."""
    ceiling = "" if bound.ceiling is None else f", highest {course.highest:.1f} of at most {bound.ceiling:.1f}"
    return (
        f"{name:28} {course.early:9.1f} -> {course.late:9.1f}, {course.per_minute:+8.2f} a minute; grows by "
        f"{course.growth:.2f} of at most {allowed(bound, course):.2f}{ceiling}"
    )


def judge(result: Result, plan: Plan) -> list[str]:
    """Print how each figure did; return those that are not level."""
    wrong = []
    seconds = [each.seconds for each in result.samples]
    for each in judged(plan):
        course = course_of(seconds, [getattr(sample, each.figure) / each.unit for sample in result.samples])
        click.echo(verdict_line(each.name, course, each.bound))
        problem = broken(each.bound, course)
        if problem:
            wrong.append(f"{each.name} {problem}")
    return wrong


def covered(result: Result, plan: Plan) -> dict[str, int | str]:
    """Return its figures."""
    figures: dict[str, int | str] = {"messages, each accounted for": result.put_count}
    if result.samples:
        rss = [each.owner_rss_bytes / MIB for each in result.samples]
        memory = course_of([each.seconds for each in result.samples], rss)
        figures["memory"] = f"{memory.early:.1f} to {memory.late:.1f} MiB, {memory.per_minute:+.2f} a minute"
    return {"minutes": round(plan.seconds / _MINUTE), **figures}


@click.command()
@click.option("--minutes", default=10.0, show_default=True, help="How long the load runs.")
@click.option("--rate", default=2000.0, show_default=True, help="Messages a second of the fast producers.")
@click.option("--dir", "directory", type=click.Path(file_okay=False), help="Where, on the disk to be tested.")
def main(minutes: float, rate: float, directory: str | None) -> None:
    """Put mixed load on two queues for minutes; fail where a figure grows, or a message is lost or doubled."""
    if not can_look():
        raise click.ClickException("memory and descriptors are read from /proc, which this system does not have")
    plan = Plan(minutes * _MINUTE, rate)
    run, started = Run("soak"), time.monotonic()
    click.echo(_ROW.format(*_HEADINGS))
    pending: list[Sample] = []

    def tell(sample: Sample) -> None:
        pending.append(sample)
        if sample.seconds // _MINUTE > pending[0].seconds // _MINUTE:
            click.echo(row(f"{pending[0].seconds // _MINUTE + 1:.0f}", pending[:-1]))
            del pending[:-1]

    with tempfile.TemporaryDirectory(prefix="soak-", dir=directory) as made:
        result = soak(plan, Path(made), tell)
    if pending:
        click.echo(row("last", pending))
    wrong = judge(result, plan) if len(result.samples) >= plan.seconds / 2 else []
    click.echo(
        f"{result.put_count:,} messages in {time.monotonic() - started:.0f} s: "
        + ("each of them finished once by each group" if not result.wrong else "see below")
    )
    for line in (result.wrong + wrong)[:_VIOLATIONS_MAX]:
        click.echo(f"VIOLATION: {line}")
    run.record(covered(result, plan), violations=len(result.wrong) + len(wrong))
    sys.exit(1 if result.wrong or wrong else 0)


if __name__ == "__main__":
    main()
