"""``groups``: lists, makes, moves and deletes consumer groups."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from holdfast.cli.display import is_sure, write_table
from holdfast.cli.ending import FAILED, exit_with
from holdfast.cli.opening import json_option, looking, queue_argument, sharing
from holdfast.cli.output import write_json
from holdfast.cli.starts import StartType
from holdfast.errors import HoldfastError
from holdfast.log import printable
from holdfast.queue.engine.log_starts import GroupStart
from holdfast.queue.inspect.stats import QueueStats
from holdfast.queue.options.log_start import Start
from holdfast.queue.persistent_queue import PersistentQueue

_name_argument = click.argument("name", metavar="GROUP")


@click.group()
def groups() -> None:
    """List consumer groups, make, move or delete one.

    Works beside the processes that share the queue, and when there are none.
    """


@groups.command("list")
@queue_argument
@json_option
def list_groups(path: Path, as_json: bool) -> None:
    """List the groups, and how far each one is behind; with --json each is a line of JSON."""
    with looking(path) as queue:
        rows = [(name, stats) for name in queue.groups.list() if (stats := _stats(path, name)) is not None]
    if as_json:
        for name, stats in rows:
            counts = {each: getattr(stats, each) for each in ("depth", "in_flight", "delayed", "dead", "paused")}
            write_json({"group": name, **counts})
        return
    write_table(
        ("GROUP", "DEPTH", "IN HAND", "DELAYED", "DEAD", "PAUSED"),
        [(name, each.depth, each.in_flight, each.delayed, each.dead, each.paused or "-") for name, each in rows],
    )


def _stats(path: Path, name: str) -> QueueStats | None:
    """Return the figures of a group; None if it has been deleted."""
    try:
        with PersistentQueue(path, mode="read_only", group=name) as queue:
            return queue.stats()
    except HoldfastError:
        return None


@groups.command()
@queue_argument
@_name_argument
@click.option("--from", "start", type=StartType(), default="earliest", show_default=True, help="Where it starts.")
@click.option("--filter", "expression", help='It gets only messages that match this, such as "priority > 3".')
@json_option
def create(path: Path, name: str, start: Start, expression: str | None, as_json: bool) -> None:
    """Make a group. Nothing happens if it exists; its filter never changes.

    --from takes earliest, latest, an offset, -10 for the last ten messages, a time as 2026-05-04T12:30, or 90s, 30m, 2h
    or 7d ago.
    """
    with sharing(path) as queue:
        offset = queue.groups.create(name, start, filter=expression)
    if as_json:
        write_json({"group": name, "offset": offset})
    else:
        click.echo(f"group {printable(name)} starts at offset {offset}")


@groups.command()
@queue_argument
@_name_argument
@click.option("--from", "start", type=StartType(), required=True, help="Where it continues; as for create.")
@json_option
def seek(path: Path, name: str, start: Start, as_json: bool) -> None:
    """Move a group to another place in the log, back or ahead, while its consumers run.

    What it had finished, delivery counts and delays are forgotten; messages in hand are taken away. Dead letters stay.
    A message comes again only as long as its data file is kept.
    """
    with sharing(path) as queue:
        started = queue.groups.seek(name, start)
    if as_json:
        write_json({"group": name, **asdict(started)})
    else:
        click.echo(f"group {printable(name)} continues at offset {started.offset}{_note(started)}")


def _note(started: GroupStart) -> str:
    return "" if started.is_complete else "; the log is not kept back to there, or has gaps behind it"


@groups.command()
@queue_argument
@_name_argument
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def delete(path: Path, name: str, yes: bool, as_json: bool) -> None:
    """Delete a group and its progress. Asks before it does."""
    with sharing(path) as queue:
        if not yes and not is_sure(f"delete group {printable(name)} of {printable(str(path))} for good?"):
            click.echo("nothing was deleted; --yes does not ask", err=True)
            exit_with(FAILED)
        queue.groups.delete(name)
    if as_json:
        write_json({"group": name})
    else:
        click.echo(f"group {printable(name)} is deleted")
