"""``put``: messages from an argument, a file, or JSON lines on standard input."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BufferedReader, UnsupportedOperation
from pathlib import Path
from typing import Any, BinaryIO, cast

import click

from holdfast.cli.display import progress
from holdfast.cli.lines import JSON_CONTENT_TYPE, json_batches
from holdfast.cli.opening import json_option, queue_argument, sharing
from holdfast.cli.output import span, write_json
from holdfast.cli.seconds import Seconds
from holdfast.cli.text import counted, offsets
from holdfast.messages import CommonHeaders
from holdfast.queue.options.put_options import Put
from holdfast.queue.persistent_queue import PersistentQueue

_CONTENT_TYPE = "content-type"


def _as_headers(_ctx: click.Context, _param: click.Parameter, pairs: tuple[str, ...]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"{pair!r} is not NAME=VALUE")
        if name in headers:
            raise click.BadParameter(f"{name} is there twice; a message has one header of a name")
        headers[name] = value
    return headers


@click.command()
@queue_argument
@click.argument("payload", required=False)
@click.option("--file", type=click.File("rb"), help="Put what this file holds; - is standard input.")
@click.option("--lines", is_flag=True, help="Put each line of standard input, which has to be JSON.")
@click.option(
    "--header",
    "headers",
    metavar="NAME=VALUE",
    multiple=True,
    callback=_as_headers,
    help="A header of the message; may be repeated.",
)
@click.option("--content-type", help=f"The header content-type; {JSON_CONTENT_TYPE} with --lines.")
@click.option("--delay", type=Seconds(), help="Seconds before the message can be delivered.")
@click.option(
    "--priority", type=click.IntRange(0, 9), default=0, help="Messages of higher priority are delivered first."
)
@click.option("--ttl", type=Seconds(min_open=True), help="Seconds after which the message expires.")
@click.option("--order-key", help="Messages of one key are delivered in order, one at a time.")
@click.option("--dedup-id", help="A second put of this id writes nothing, and returns the offset of the first.")
@click.option("--timeout", type=Seconds(), help="Seconds to wait for space; default: for ever.")
@click.option("--create", is_flag=True, help="Create the queue if it does not exist.")
@json_option
def put(
    path: Path,
    payload: str | None,
    file: BinaryIO | None,
    lines: bool,
    headers: dict[str, str],
    content_type: str | None,
    timeout: float | None,
    create: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Put messages: PAYLOAD, a file, or JSON lines on standard input.

    Works beside the processes that share the queue, and when there are none. Lines are put in batches as they
    come. A line that is not JSON ends it: those before it are put, nothing behind it is.
    """
    if (payload is not None) + (file is not None) + lines != 1:
        raise click.UsageError("one of PAYLOAD, --file and --lines says what to put")
    if lines and options["dedup_id"] is not None:
        raise click.UsageError("--dedup-id is for one message, --lines puts many")
    if content_type is not None and _CONTENT_TYPE in headers:
        raise click.UsageError("--content-type is that header: give one of them")
    if content_type is not None or lines:
        headers.setdefault(_CONTENT_TYPE, content_type or JSON_CONTENT_TYPE)
    options["headers"] = CommonHeaders(headers)
    with sharing(path, create=create) as queue, _told(as_json) as note:
        if lines:
            del options["dedup_id"]
            _put_lines(queue, timeout, note, options)
        else:
            content = file.read() if file is not None else os.fsencode(payload or "")
            offset = queue.put(content, timeout=timeout, **options)
            note(range(offset, offset + 1))


Note = Callable[[range], None]
"""Takes note of offsets that were put."""


@contextmanager
def _told(as_json: bool) -> Iterator[Note]:
    """Report the messages put at the end, also after an error."""
    count, first, end = 0, 0, 0

    def note(new: range) -> None:
        nonlocal count, first, end
        first = new.start if not count else min(first, new.start)
        count, end = count + len(new), max(end, new.stop)

    try:
        yield note
    finally:
        if as_json:
            write_json(span(range(first, end), count))
        elif count:
            click.echo(f"put {counted(count, 'message')}, {offsets(range(first, end))}")


# -- Lines -----------------------------------------------------------------------------------------------------------


def _put_lines(queue: PersistentQueue, timeout: float | None, note: Note, options: dict[str, Any]) -> None:
    stdin = cast(BufferedReader, sys.stdin.buffer)
    with progress(_size(stdin), is_shown=not stdin.isatty()) as advance:
        for batch in json_batches(stdin.read1):
            note(queue.put_many([Put(line, **options) for line in batch], timeout=timeout))
            advance(len(batch), sum(map(len, batch)) + len(batch))


def _size(stdin: BufferedReader) -> int | None:
    """Return how much there is to read; None if unknown."""
    try:
        status = os.fstat(stdin.fileno())
    except UnsupportedOperation:  # bytes in memory
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None
