"""``demo``: kills processes that share a queue again and again, and counts what came out."""

from __future__ import annotations

import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.ending import FAILED, exit_with, say_line
from holdfast.cli.opening import json_option
from holdfast.cli.output import Document, write_json
from holdfast.cli.seconds import Seconds
from holdfast.cli.text import counted

if TYPE_CHECKING:
    from holdfast.cli.demo.evidence import Evidence
    from holdfast.cli.demo.show import Plan

SECONDS = 120.0
REDELIVERED = """
What was delivered and not acknowledged when a kill came was delivered again: a handler may see a message twice."""


@click.command()
@click.option(
    "--seconds",
    type=Seconds(min_open=True, max=86400),
    default=SECONDS,
    show_default=True,
    help="About how long; --seconds 10 shows the same with fewer kills.",
)
@click.option("--seed", type=int, help="Decides when to kill; default: another one each time.")
@click.option("--keep", is_flag=True, help="Keep the queue and the notes of the processes.")
@json_option
def demo(seconds: float, seed: int | None, keep: bool, as_json: bool) -> None:
    """Kill a producer and two consumers again and again, and count what came out.

    They share a queue in a temporary directory: one owns it and serves the others, and the next one does if it is
    killed. They note every answer of the queue in a file that kill -9 cannot take back. The exit code is 1 if the notes
    show that a message was lost, altered, or delivered again after its acknowledgement; then the files stay. Ctrl-C
    ends the demo and removes them.
    """
    from holdfast.cli.demo.show import plan_for
    from holdfast.cli.demo.stopping import StoppedError, signals_noted

    plan = plan_for(seconds, seed)
    failed, stopped_by = False, 0
    with signals_noted() as check:
        directory = Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
        try:
            failed = not _show(directory, plan, check, as_json=as_json)
        except StoppedError as stopped:
            stopped_by = stopped.number
        finally:
            if keep or failed:
                click.echo(f"The queue and the notes are in {directory}", err=as_json)
            else:
                shutil.rmtree(directory)
    if stopped_by == signal.SIGINT:
        raise click.Abort
    if stopped_by:
        signal.raise_signal(stopped_by)  # its earlier handler is back, which ends the process
    exit_with(FAILED if failed else 0)


def _show(directory: Path, plan: Plan, check: Callable[[], None], *, as_json: bool) -> bool:
    """Run the demo and print what came out; return whether every promise was kept."""
    from holdfast.cli.demo.show import run
    from holdfast.cli.demo.victim import ChildFailedError

    if not as_json:
        click.echo(
            f"{plan.order_count:,} orders go through one queue: one process puts them, two others take them out.\n"
            "One of the three owns the queue and serves the others; if it is killed, the next one does.\n"
            f"Each is killed {counted(plan.kill_count, 'time')} with kill -9 and started again (seed {plan.seed}).\n"
        )
    started = time.monotonic()
    try:
        evidence = run(directory, plan, lambda line: click.echo(line, err=as_json), check)
    except ChildFailedError as error:
        broken = [str(error)]
    else:
        broken = evidence.violations
        _write(evidence, plan, time.monotonic() - started, as_json=as_json)
    if broken:
        say_line("demo", f"{'; '.join(broken)}; seed {plan.seed}", as_json=as_json)
    return not broken


def _write(evidence: Evidence, plan: Plan, seconds: float, *, as_json: bool) -> None:
    from holdfast.cli.demo.evidence import table

    if as_json:
        write_json(_document(evidence, plan, seconds))
        return
    click.echo("\n" + table([*evidence.rows(), ("total", f"{seconds:.1f} s", "")]) + "\n")
    if not evidence.violations:
        click.echo("Nothing was lost." + (REDELIVERED if evidence.redelivered_count else ""))


def _document(evidence: Evidence, plan: Plan, seconds: float) -> Document:
    return {
        "seed": plan.seed,
        "orders": plan.order_count,
        "put": len(evidence.put),
        "received": len(evidence.received),
        "lost": len(evidence.lost),
        "altered": len(evidence.altered),
        "received_after_ack": len(evidence.received_after_ack),
        "left": evidence.left_count,
        "damage": evidence.damage_count,
        "redelivered": evidence.redelivered_count,
        "kills": evidence.kill_counts,
        "owner_kills": evidence.owner_kill_count,
        "owners": evidence.owner_count,
        "recovery_seconds_max": max(evidence.opening_seconds, default=None),
        "seconds": seconds,
    }
