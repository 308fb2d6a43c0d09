"""``get`` and ``peek``: messages, taken or only shown."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from holdfast.cli.display import write_table
from holdfast.cli.ending import NOTHING_CAME, exit_with
from holdfast.cli.opening import group_option, json_option, looking, queue_argument, taking
from holdfast.cli.output import json_line, message_document, write_bytes, write_json
from holdfast.cli.seconds import Seconds
from holdfast.cli.text import moment, preview
from holdfast.errors import Empty
from holdfast.log import printable
from holdfast.queue.dispatch.delivery import DeliveryBatch

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
