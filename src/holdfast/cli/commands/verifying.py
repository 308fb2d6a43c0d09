"""``verify``: reads all of a queue, and reports damage."""

from __future__ import annotations

from pathlib import Path

import click

from holdfast.cli.ending import DAMAGED, exit_code_of, exit_with, say, worst
from holdfast.cli.opening import json_option, require_queue
from holdfast.cli.output import Document, damage_document, span, write_json
from holdfast.errors import HoldfastError
from holdfast.log import printable
from holdfast.persistence.format.report import VerifyReport
from holdfast.persistence.verify import verify as verify_queue


@click.command()
@click.argument("paths", metavar="QUEUE...", type=click.Path(path_type=Path), nargs=-1, required=True)
@json_option
def verify(paths: tuple[Path, ...], as_json: bool) -> None:
    """Read all of queues, change nothing, and report every damaged place with the offsets that are lost.

    The exit code is 2 where anything is damaged. Queues may be in use. With --json each is a line of JSON.
    """
    codes: list[int] = []
    for path in paths:
        try:
            require_queue(path)
            report = verify_queue(path)
        except HoldfastError as error:
            say(error, as_json=as_json)
            codes.append(exit_code_of(error))
            continue
        codes.append(0 if report.ok else DAMAGED)
        if as_json:
            write_json(_document(path, report))
        else:
            click.echo(f"{printable(str(path))}: {report}")
    exit_with(worst(codes))


def _document(path: Path, report: VerifyReport) -> Document:
    return {
        "path": str(path.absolute()),
        "ok": report.ok,
        "file_count": report.file_count,
        "frame_count": report.frame_count,
        "message_count": report.message_count,
        "lost_count": report.lost_count,
        "lost": [span(run) for run in report.lost],
        "damage": [damage_document(damage) for damage in report.damage],
        "torn_bytes": report.torn_bytes,
        "notes": list(report.notes),
    }
