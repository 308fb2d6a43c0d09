"""``dead``: lists, retries, discards and exports dead letters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import click

from holdfast.cli.display import be_sure, write_table
from holdfast.cli.opening import group_option, json_option, looking, queue_argument, sharing
from holdfast.cli.output import message_document, write_json
from holdfast.cli.text import counted, moment, preview
from holdfast.errors import CorruptionError, NotFoundError
from holdfast.log import printable
from holdfast.persistence.format.constants import DEAD_REASONS
from holdfast.queue.inspect.dead_letters import DeadLetter
from holdfast.queue.persistent_queue import PersistentQueue

Command = TypeVar("Command", bound=Callable[..., object])

_reason_option = click.option("--reason", type=click.Choice(DEAD_REASONS[1:]), help="Dead letters with this reason.")


@click.group()
def dead() -> None:
    """List, retry or discard dead letters.

    Works beside the processes that share the queue, and when there are none.
    """


@dead.command("list")
@queue_argument
@_reason_option
@click.option("-n", "--count", type=click.IntRange(min=1), help="How many at most; default: all.")
@group_option
@json_option
def list_letters(path: Path, reason: str | None, count: int | None, group: str, as_json: bool) -> None:
    """List dead letters; with --json each is a line of JSON."""
    with looking(path, group) as queue:
        wanted = queue.dead.offsets(reason=reason)[:count]
        letters = queue.dead.list(reason=reason, limit=count)
        unread = set(wanted) - {each.offset for each in letters}
        if as_json:
            for letter in letters:
                write_json(
                    message_document(letter)
                    | {
                        "reason": letter.reason,
                        "detail": letter.detail,
                        "exception": letter.exception,
                        "traceback": letter.traceback,
                        "first_failure_ns": letter.first_failure_ns,
                        "last_failure_ns": letter.last_failure_ns,
                    }
                )
        else:
            _write_letters(letters)
        unread &= set(queue.dead.offsets())
        if unread:  # and not discarded meanwhile
            raise CorruptionError(
                f"{counted(len(unread), 'dead letter')} of {queue.path} cannot be read, the first one at offset "
                f"{min(unread)}; `holdfast verify` names the damage, and `holdfast dead discard` finishes them",
                path=str(queue.path),
            )


def _write_letters(letters: Sequence[DeadLetter]) -> None:
    write_table(
        ("OFFSET", "REASON", "DELIVERED", "LAST FAILURE", "DETAIL", "PAYLOAD"),
        [
            (
                letter.offset,
                letter.reason,
                letter.delivery_count,
                moment(letter.last_failure_ns),
                preview(letter.detail.encode()),
                preview(letter.payload),
            )
            for letter in letters
        ],
    )


def _which(command: Command) -> Command:
    """Add the parameters that select dead letters."""
    command = click.option("--all", "all_", is_flag=True, help="All of them.")(command)
    command = _reason_option(command)
    return click.argument("offsets", metavar="[OFFSET]...", type=click.IntRange(min=0), nargs=-1)(command)


@dead.command()
@queue_argument
@_which
@group_option
@json_option
def retry(path: Path, offsets: tuple[int, ...], reason: str | None, all_: bool, group: str, as_json: bool) -> None:
    """Hand dead letters out again: those of these offsets, of one reason, or all."""
    with sharing(path, group) as queue:
        chosen = _choose(queue, offsets, reason, all_)
        _report("retried", queue.dead.retry(chosen), chosen if offsets else [], as_json=as_json)


@dead.command()
@queue_argument
@_which
@click.option("--yes", is_flag=True, help="Do not ask.")
@group_option
@json_option
def discard(
    path: Path, offsets: tuple[int, ...], reason: str | None, all_: bool, yes: bool, group: str, as_json: bool
) -> None:
    """Finish dead letters for good: those of these offsets, of one reason, or all. Asks before it does."""
    with sharing(path, group) as queue:
        chosen = _choose(queue, offsets, reason, all_)
        letters = counted(len(chosen), "dead letter")
        if chosen and not yes:
            be_sure(f"discard {letters} of {printable(str(path))} for good?", "discarded", as_json=as_json)
        _report("discarded", queue.dead.discard(chosen), chosen if offsets else [], as_json=as_json)


def _choose(queue: PersistentQueue, offsets: tuple[int, ...], reason: str | None, all_: bool) -> list[int]:
    """Return the offsets that are meant."""
    if bool(offsets) + (reason is not None) + all_ != 1:
        raise click.UsageError("one of OFFSET..., --reason and --all says which dead letters")
    if offsets:
        return sorted(set(offsets))
    return queue.dead.offsets(reason=reason)


def _report(verb: str, count: int, named: list[int], *, as_json: bool) -> None:
    """Print how many it were; raises NotFoundError if fewer than those that were named."""
    if as_json:
        write_json({"count": count})
    else:
        click.echo(f"{verb} {counted(count, 'dead letter')}")
    if count < len(named):
        raise NotFoundError(f"{len(named) - count} of the {len(named)} that were named are no dead letters")
