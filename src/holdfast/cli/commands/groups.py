"""``groups``: lists, makes, moves and deletes consumer groups."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from holdfast.cli.display import be_sure, write_table
from holdfast.cli.ending import exit_code_of, exit_with, say, worst
from holdfast.cli.opening import json_option, looking, queue_argument, sharing
from holdfast.cli.output import Document, write_json
from holdfast.cli.starts import StartType
from holdfast.errors import GroupNotFoundError, HoldfastError
from holdfast.log import printable
from holdfast.queue.engine.log_starts import GroupStart
from holdfast.queue.options.log_start import Start

_FIGURES = ("depth", "in_flight", "delayed", "dead", "paused")

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
    rows: list[Document] = []
    errors: list[HoldfastError] = []
    with looking(path) as queue:
        for name in queue.groups.list():
            row: Document = {"group": name, "error": None, "message": None}
            try:
                with looking(path, name) as group:
                    figures = group.stats()
                    row |= {each: getattr(figures, each) for each in _FIGURES}
            except GroupNotFoundError:  # deleted meanwhile
                continue
            except HoldfastError as error:
                errors.append(error)
                row |= {"error": error.code, "message": str(error)}
            rows.append(row)
    if as_json:
        for row in rows:
            write_json(row)
    else:
        _write_rows(rows)
        for each in errors:
            say(each, as_json=False)
    exit_with(worst(map(exit_code_of, errors)))


def _write_rows(rows: list[Document]) -> None:
    counts = [[row.get(each, "?") for each in _FIGURES[:-1]] for row in rows]
    paused = [row.get("paused", "?") or "-" for row in rows]
    write_table(
        ("GROUP", "DEPTH", "IN HAND", "DELAYED", "DEAD", "PAUSED"),
        [(row["group"], *each, why) for row, each, why in zip(rows, counts, paused, strict=True)],
    )


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
        if not yes:
            be_sure(f"delete group {printable(name)} of {printable(str(path))} for good?", "deleted", as_json=as_json)
        queue.groups.delete(name)
    if as_json:
        write_json({"group": name})
    else:
        click.echo(f"group {printable(name)} is deleted")
