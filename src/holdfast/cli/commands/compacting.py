"""``compact``: merges data files with little that lives."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from holdfast.cli import ending
from holdfast.cli.ending import exit_with, say_line
from holdfast.cli.opening import json_option, queue_argument, sharing
from holdfast.cli.output import write_json
from holdfast.errors import CorruptionError
from holdfast.persistence.compaction.compactor import DAMAGED, Compaction


@click.command()
@queue_argument
@click.option("--dry-run", is_flag=True, help="Only tell what would be done, about.")
@json_option
def compact(path: Path, dry_run: bool, as_json: bool) -> None:
    """Merge data files that live by a quarter at most, and give the space of the rest back.

    A message lives as long as any group has not finished it. Prints what was freed, what was written for it, and why
    other files stay. The queue may be in use, if it is shared.
    """
    with sharing(path) as queue:
        done = queue.compact(dry_run=dry_run)
    if as_json:
        write_json(asdict(done))
    else:
        for line in _lines(done, "would be" if dry_run else "were"):
            click.echo(line)
    if count := done.kept.get(DAMAGED):
        message = f"{path} is damaged: {count} data files stay as they are for it; `holdfast verify` says where"
        say_line(CorruptionError.code, message, as_json=as_json)
        exit_with(ending.DAMAGED)


def _lines(done: Compaction, verb: str) -> list[str]:
    lines = [
        f"{done.file_count} data files {verb} merged into {done.merged_count}: {done.freed_bytes} bytes freed, "
        f"{done.written_bytes} bytes written"
    ]
    return lines + [f"{count} stay: {reason}" for reason, count in sorted(done.kept.items())]
