"""``ls`` and ``stats``: figures of queues, without a lock."""

from __future__ import annotations

from pathlib import Path

import click

from holdfast.cli.display import write_table
from holdfast.cli.ending import exit_code_of, exit_with, say, worst
from holdfast.cli.opening import group_option, json_option, looking, queue_argument
from holdfast.cli.output import Document, write_json
from holdfast.cli.text import duration, size
from holdfast.errors import HoldfastError, QueueNotFoundError
from holdfast.log import printable
from holdfast.persistence.filesystem.layout import QueueDirectory, is_queue
from holdfast.persistence.filesystem.locks import read_owner
from holdfast.persistence.filesystem.storage import OsStorage
from holdfast.queue.persistent_queue import PersistentQueue


@click.command()
@click.argument("directory", metavar="[DIR]", type=click.Path(path_type=Path), default=Path())
@json_option
def ls(directory: Path, as_json: bool) -> None:
    """List the queues below a directory, or one queue.

    Depth and dead letters are those of the default group; `stats --group` has the others.
    """
    rows: list[Document] = []
    errors: list[HoldfastError] = []
    for path in _find_queues(directory):
        row: Document = {"name": path.absolute().name, "path": str(path.absolute()), "error": None, "message": None}
        try:
            with looking(path) as queue:
                row |= _listed(queue)
        except HoldfastError as error:
            errors.append(error)
            row |= {"error": error.code, "message": str(error)}
        rows.append(row)
    if as_json:
        write_json(rows)
    else:
        _write_rows(rows, directory)
        for each in errors:
            say(each, as_json=False)
    exit_with(worst(map(exit_code_of, errors)))


def _find_queues(directory: Path) -> list[Path]:
    storage = OsStorage()
    if is_queue(storage, directory.absolute()):
        return [directory]
    try:
        found = [each for each in directory.iterdir() if not each.name.startswith(".")]  # that was deleted
        return sorted(each for each in found if is_queue(storage, each.absolute()))
    except (FileNotFoundError, NotADirectoryError):
        raise QueueNotFoundError(f"no directory at {directory.absolute()}", path=str(directory)) from None


def _write_rows(rows: list[Document], directory: Path) -> None:
    if not rows:
        click.echo(f"no queues in {directory.absolute()}")
        return
    write_table(
        ("NAME", "DEPTH", "DEAD", "IN DOUBT", "SIZE", "FILES", "OLDEST", "PAUSED"),
        [
            (
                row["name"],
                row.get("depth", "?"),
                row.get("dead", "?"),
                row.get("in_doubt", "?"),
                size(row["bytes_on_disk"]) if "bytes_on_disk" in row else "?",
                row.get("file_count", "?"),
                _age(row),
                _paused(row.get("paused")),
            )
            for row in rows
        ],
    )


def _paused(reason: str | None) -> str:
    return "-" if reason is None else printable(reason) or "yes"


def _age(row: Document) -> str:
    """Return how long the oldest message waits; of one put by a clock that was set back since, nothing is known."""
    return "?" if row.get("clock_back_seconds") else duration(row.get("oldest_age_seconds"))


def _listed(queue: PersistentQueue) -> Document:
    figures = queue.stats()
    return {
        "depth": figures.depth,
        "dead": figures.dead,
        "in_doubt": queue.prepared_count(),
        "bytes_on_disk": figures.bytes_on_disk,
        "file_count": figures.file_count,
        "oldest_age_seconds": figures.oldest_age_seconds,
        "clock_back_seconds": figures.clock_back_seconds,
        "paused": figures.paused,
    }


@click.command()
@queue_argument
@group_option
@json_option
def stats(path: Path, group: str, as_json: bool) -> None:
    """Show figures of a queue.

    Leased are messages that were delivered, even if their owner has died since. The last writer and reader may have
    gone.
    """
    with looking(path, group) as queue:
        figures = queue.stats()
        directory = QueueDirectory(queue.path)
        row: Document = {
            "name": queue.path.name,
            "path": str(queue.path),
            "group": group,
            **_listed(queue),
            "leased": figures.leased,
            "lost": figures.lost,
            "skipped": figures.skipped,
            "oldest_prepared_seconds": figures.oldest_prepared_seconds,
            "first_offset": figures.first_offset,
            "next_offset": figures.next_offset,
            "last_writer": _owner(directory.write_lock),
            "last_reader": _owner(directory.group_lock(group)),
        }
        if as_json:
            write_json(row)
            return
        shown = row | {
            "bytes_on_disk": f"{size(row['bytes_on_disk'])} ({row['bytes_on_disk']})",
            "oldest_age_seconds": _age(row),
            "clock_back_seconds": duration(row["clock_back_seconds"]),
            "oldest_prepared_seconds": duration(row["oldest_prepared_seconds"]),
            "paused": _paused(row["paused"]),
            "last_writer": _owner_text(row["last_writer"]),
            "last_reader": _owner_text(row["last_reader"]),
        }
        rows = [(name.removesuffix("_seconds").replace("_", " "), str(value)) for name, value in shown.items()]
        write_table(("FIGURE", "VALUE"), rows)


def _owner(lock: Path) -> Document | None:
    """Return who took a lock last; whether it is still held only an attempt to take it could tell."""
    owner = read_owner(OsStorage(), lock)
    return None if owner.pid is None else {"pid": owner.pid, "host": owner.host}


def _owner_text(owner: Document | None) -> str:
    return "-" if owner is None else f"process {owner['pid']} on {printable(owner['host'])}"
