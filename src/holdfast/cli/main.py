"""The command ``holdfast``: which commands there are. Each command has a module of its own. docs/cli.md."""

from __future__ import annotations

import click

from holdfast.cli.commands.compacting import compact
from holdfast.cli.commands.dead import dead
from holdfast.cli.commands.demo import demo
from holdfast.cli.commands.draining import drain
from holdfast.cli.commands.figures import ls, stats
from holdfast.cli.commands.groups import groups
from holdfast.cli.commands.members import ps
from holdfast.cli.commands.prepared import abort, commit, prepared
from holdfast.cli.commands.putting import put
from holdfast.cli.commands.serving import serve
from holdfast.cli.commands.settings import set_
from holdfast.cli.commands.taking import get, peek, tail
from holdfast.cli.commands.verifying import verify
from holdfast.cli.commands.work import work
from holdfast.cli.ending import Commands

COMMANDS: tuple[click.Command, ...] = (
    ls,
    stats,
    ps,
    put,
    get,
    peek,
    tail,
    groups,
    dead,
    prepared,
    commit,
    abort,
    set_,
    verify,
    compact,
    serve,
    work,
    drain,
    demo,
)
"""In the order in which help lists them. A new command is registered here."""


@click.group(cls=Commands, commands=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="holdfast", message="%(prog)s %(version)s")
def holdfast() -> None:
    """Inspect durable queues, put and take messages, decide transactions and dead letters.

    QUEUE is the path of a queue's directory. Every command takes --json.

    Exit codes: 0 done; 1 failed; 2 damage found; 3 get: nothing came; 64 wrong usage; 75 try again later; 130
    interrupted; 141 the reader of the output is gone.
    """


def main() -> None:
    """Run the command with the arguments of this process, and exit."""
    holdfast.main()
