"""``ps``: who shares a queue, without a lock."""

from __future__ import annotations

import time
from pathlib import Path

import click

from holdfast.cli.display import write_table
from holdfast.cli.opening import json_option, queue_argument, require_queue
from holdfast.cli.output import Document, write_json
from holdfast.cli.text import duration
from holdfast.log import printable
from holdfast.persistence.filesystem.storage import OsStorage
from holdfast.queue.inspect.members import Member, list_members
from holdfast.queue.options.arguments import absolute_path


@click.command("ps")
@queue_argument
@json_option
def ps(path: Path, as_json: bool) -> None:
    """List the handles that share a queue: owner and clients, since when, and what each has in hand.

    A process whose handle is not of the mode "shared" is not listed; `stats` names it.
    """
    require_queue(path)
    members = list_members(OsStorage(), absolute_path(path, "queue"))
    if as_json:
        write_json([_document(each) for each in members])
    elif members:
        write_table(("SESSION", "ROLE", "PROCESS", "HOST", "OPEN FOR", "IN HAND"), [_row(each) for each in members])
    else:
        click.echo(f"no process shares {path.absolute()}")


def _document(member: Member) -> Document:
    return {
        "session": f"{member.session:08x}",
        "role": _role(member),
        "pid": member.pid,
        "host": member.host,
        "started_ns": member.started_ns,
        "in_hand": dict(member.in_hand),
    }


def _row(member: Member) -> tuple[str, ...]:
    age = None if member.started_ns is None else max(0.0, (time.time_ns() - member.started_ns) / 1e9)
    return (
        f"{member.session:08x}",
        _role(member),
        "?" if member.pid is None else str(member.pid),
        "?" if member.host is None else printable(member.host),
        duration(age),
        ", ".join(f"{group}: {count}" for group, count in member.in_hand.items()) or "-",
    )


def _role(member: Member) -> str:
    return "owner" if member.is_owner else "client"
