"""``prepared``, ``commit`` and ``abort``: transactions that are durable and undecided."""

from __future__ import annotations

from pathlib import Path

import click

from holdfast.arrow.draining.queue_drain import PREFIX
from holdfast.cli.display import write_table
from holdfast.cli.ending import DAMAGED, exit_with
from holdfast.cli.opening import json_option, looking, queue_argument, sharing
from holdfast.cli.output import Document, damage_document, span, write_json
from holdfast.cli.text import counted, duration, offsets, size
from holdfast.log import printable
from holdfast.persistence.format.commit_record import PartOf
from holdfast.queue.prepared.prepared_transactions import PreparedTransaction

_GIVEN_BACK = (
    "the next batch that begins with its first message gets this id again, with other rows:"
    " remove from the sink what it has of the id before the next drain"
)

_id_argument = click.argument("transaction_id", metavar="ID")
_force_option = click.option(
    "--force",
    is_flag=True,
    help="Decide it here, even if another queue's log or a joint commit should, or if damage may hide its outcome.",
)


@click.command()
@queue_argument
@json_option
def prepared(path: Path, as_json: bool) -> None:
    """List the prepared transactions, oldest first, and what is damaged."""
    with looking(path) as queue:
        found = queue.prepared()
    if as_json:
        write_json(
            [
                {
                    "id": each.id,
                    "age_seconds": each.age_seconds,
                    "put_count": each.put_count,
                    "ack_count": each.ack_count,
                    "size_bytes": each.size_bytes,
                    "coordinator": None if each.coordinator is None else str(each.coordinator),
                    "part_of": None if each.part_of is None else _part_document(each.part_of),
                    "damage": [damage_document(damage) for damage in each.damage],
                }
                for each in found
            ]
        )
    else:
        write_table(
            ("ID", "AGE", "PUTS", "ACKS", "SIZE", "DECIDED BY", "DAMAGE"),
            [
                (
                    each.id,
                    duration(each.age_seconds),
                    each.put_count,
                    each.ack_count,
                    size(each.size_bytes),
                    printable(_decided_by(each)),
                    printable(each.damage[0].reason) if each.damage else "-",
                )
                for each in found
            ],
        )
    exit_with(DAMAGED if any(each.damage for each in found) else 0)


def _part_document(part_of: PartOf) -> Document:
    """Return the joint commit of a part; ``directory`` is that of the document that decides for several queues."""
    of_several = {"directory": part_of.directory} if part_of.is_shared else {}
    return {"application": part_of.application, "version": part_of.version, **of_several}


def _decided_by(transaction: PreparedTransaction) -> str:
    """Return which queue decides, or which joint commit; a dash if it is the caller."""
    if transaction.part_of is not None:
        return f"{transaction.part_of.application}, version {transaction.part_of.version}"
    return "-" if transaction.coordinator is None else str(transaction.coordinator)


@click.command()
@queue_argument
@_id_argument
@_force_option
@json_option
def commit(path: Path, transaction_id: str, force: bool, as_json: bool) -> None:
    """Commit a prepared transaction; a second time does nothing, and prints the same."""
    with sharing(path) as queue:
        put = queue.commit_prepared(transaction_id, force=force)
    if as_json:
        write_json({"id": transaction_id, **span(put)})
    else:
        click.echo(f"committed {printable(transaction_id)}: put {counted(len(put), 'message')}, {offsets(put)}")


@click.command()
@queue_argument
@_id_argument
@_force_option
@json_option
def abort(path: Path, transaction_id: str, force: bool, as_json: bool) -> None:
    """Abort a prepared transaction; a second time does nothing."""
    with sharing(path) as queue:
        queue.abort_prepared(transaction_id, force=force)
    if as_json:
        write_json({"id": transaction_id})
    else:
        click.echo(f"aborted {printable(transaction_id)}")
    if transaction_id.startswith(f"{PREFIX}-"):
        click.echo(_GIVEN_BACK, err=True)
