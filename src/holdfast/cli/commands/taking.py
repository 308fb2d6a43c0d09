"""``get``, ``peek`` and ``tail``: messages, taken or only shown."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from holdfast.cli.display import write_table
from holdfast.cli.ending import NOTHING_CAME, exit_with
from holdfast.cli.opening import group_option, json_option, looking, queue_argument, taking
from holdfast.cli.output import Document, json_line, message_document, write_bytes, write_json
from holdfast.cli.seconds import Seconds
from holdfast.cli.starts import StartType
from holdfast.cli.text import moment, offsets, preview
from holdfast.errors import CorruptionError, Empty
from holdfast.log import printable
from holdfast.messages import Message
from holdfast.queue.dispatch.delivery import DeliveryBatch
from holdfast.queue.inspect.log_reading import LogReading
from holdfast.queue.options.log_start import Start

_BATCH_COUNT = 100
"""Messages that are written before they are acknowledged together; so many come again after a broken pipe."""


_LEASE_SECONDS = 100 * 365 * 86400
"""A reader of the output may be slow; if it goes away, so does this process."""


@click.command()
@queue_argument
@click.option("-n", "--count", type=click.IntRange(min=1), default=1, show_default=True, help="How many messages.")
@click.option("--timeout", type=Seconds(), help="Seconds to wait for the next message; default: for ever.")
@group_option
@json_option
def get(path: Path, count: int, timeout: float | None, group: str, as_json: bool) -> None:
    """Take messages, write their payloads, and acknowledge them.

    One payload is written exactly as it is; of several, each with a line end. With --json each is a line of JSON.

    A message is acknowledged once it is written: one that could not be stays in the queue. If no message came, the exit
    code is 3.
    """
    taken = 0
    with taking(path, group) as queue:
        while taken < count:
            try:
                batch = queue.receive_many(
                    min(count - taken, _BATCH_COUNT), timeout=timeout, lease_seconds=_LEASE_SECONDS
                )
            except Empty:
                break
            _write(batch, as_json=as_json, line_end=b"\n" if count > 1 or sys.stdout.isatty() else b"")
            batch.ack()
            taken += len(batch)
    exit_with(0 if taken else NOTHING_CAME)


def _write(batch: DeliveryBatch, *, as_json: bool, line_end: bytes) -> None:
    for delivery in batch:
        write_bytes(json_line(message_document(delivery)) if as_json else delivery.payload + line_end)
    sys.stdout.flush()  # a failed write shows before the acknowledgement


@click.command()
@queue_argument
@click.option("-n", "--count", type=click.IntRange(min=1), default=10, show_default=True, help="How many messages.")
@group_option
@json_option
def peek(path: Path, count: int, group: str, as_json: bool) -> None:
    """Show messages that would come next, in offset order, and take none.

    Those that a consumer has in hand just now are among them. With --json each is a line of JSON.
    """
    with looking(path, group) as queue:
        messages = queue.peek(count)
        if as_json:
            for message in messages:
                write_json(message_document(message))
            return
        write_table(
            ("OFFSET", "PUT", "DELIVERED", "HEADERS", "PAYLOAD"),
            [
                (
                    message.offset,
                    moment(message.timestamp_ns),
                    message.delivery_count,
                    printable(" ".join(f"{name}={value}" for name, value in message.headers.items())),
                    preview(message.payload),
                )
                for message in messages
            ],
        )


@click.command()
@queue_argument
@click.option("--from", "start", type=StartType(), default="-10", show_default=True, help="Where to begin.")
@click.option(
    "--to", "stop", type=StartType(), help="In front of which message to end; default: at the end of the log."
)
@click.option("--filter", "expression", help='Only messages that match this expression, such as "priority > 3".')
@click.option("-f", "--follow", is_flag=True, help="Wait for messages that are put later.")
@click.option("--timeout", type=Seconds(), help="With --follow: seconds to wait for the next message.")
@json_option
def tail(
    path: Path,
    start: Start,
    stop: Start | None,
    expression: str | None,
    follow: bool,
    timeout: float | None,
    as_json: bool,
) -> None:
    """Show messages of the log, whatever any group has done with them, and take none.

    --from takes earliest, latest, an offset, -10 for the last ten messages, a time as 2026-05-04T12:30, or 90s, 30m, 2h
    or 7d ago; so does --to. With --json each is a line of JSON.

    Messages that are not there any more are named on standard error.
    """
    with looking(path) as queue, queue.read(start, stop, filter=expression, follow=follow, timeout=timeout) as reading:
        told = 0
        for message in reading:
            told = _tell_gaps(reading, told)
            write_bytes(json_line(_logged(message)) if as_json else _log_line(message))
            sys.stdout.flush()
        _tell_gaps(reading, told)
        if reading.damage:
            raise CorruptionError(
                f"{reading.damage[0]}; `holdfast verify` reads all of it", path=str(reading.damage[0].path)
            )


def _tell_gaps(reading: LogReading, told: int) -> int:
    for gap in reading.gaps[told:]:
        click.echo(f"{offsets(gap)} not there any more: reclaimed, or lost if `holdfast verify` says so", err=True)
    return len(reading.gaps)


def _logged(message: Message) -> Document:
    """Return a message without what a group has done with it."""
    return {name: value for name, value in message_document(message).items() if name != "delivery_count"}


def _log_line(message: Message) -> bytes:
    headers = printable(" ".join(f"{name}={value}" for name, value in message.headers.items()))
    fields = (str(message.offset), moment(message.timestamp_ns), headers, preview(message.payload))
    return ("  ".join(each for each in fields if each) + "\n").encode()
